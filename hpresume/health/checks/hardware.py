"""What hardware the node has and should have, without any vendor's tool."""

from __future__ import annotations

import os
import re

from hpresume.health.env import Env
from hpresume.health.policy import CheckPolicy, Limit

_PCI = "/sys/bus/pci/devices"

_NVIDIA = "0x10de"
_AMAZON = "0x1d0f"

#: EFA's device ids begin with this (efa0, efa1, …: 0xefa0 to 0xefa3 so far).
_EFA = "0xefa"


def instance_type(env: Env) -> str:
    """The EC2 instance type, which EC2 gives as the product's name; empty elsewhere."""
    vendor = (env.text("/sys/class/dmi/id/sys_vendor") or "").strip()
    if vendor != "Amazon EC2":
        return ""
    return (env.text("/sys/class/dmi/id/product_name") or "").strip()[:64]


def expected_count(policy: CheckPolicy, instance: str) -> Limit | None:
    """How many devices the node should have; None where nobody says."""
    if policy.limits["expected"].value:
        return policy.limits["expected"]
    table = policy.limits["by_instance_type"]
    if instance in table.value:
        return Limit(table.value[instance], f"{table.source}, {instance}")
    return None


def gpus_on_bus(env: Env) -> int:
    """NVIDIA devices of PCI class 03 (display controllers, 3D controllers among them)."""
    return sum(
        _id(env, name, "vendor") == _NVIDIA and _id(env, name, "class").startswith("0x03")
        for name in env.names(_PCI)
    )


def efa_on_bus(env: Env) -> int:
    """EFA adapters."""
    return sum(
        _id(env, name, "vendor") == _AMAZON and _id(env, name, "device").startswith(_EFA)
        for name in env.names(_PCI)
    )


def _id(env: Env, device: str, what: str) -> str:
    return (env.text(f"{_PCI}/{device}/{what}") or "").strip().lower()


def hidden_gpus(env: Env) -> int:
    """Device files of NVIDIA GPUs that may not be opened; asked without opening them."""
    return sum(
        re.fullmatch(r"nvidia\d+", name) is not None
        and not os.access(env.path(f"/dev/{name}"), os.R_OK | os.W_OK)
        for name in env.names("/dev")
    )
