"""A node for the tests of health checks: a fake root, fake tools, the shipped policy."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpresume.health.env import Env
from hpresume.health.model import AnyCheck, Result
from hpresume.health.policy import CheckPolicy, Limit, load_policy
from hpresume.health.registry import CHECKS
from hpresume.health.runner import examine

NOW = 1_700_000_000.0
SAMPLES = Path(__file__).parent / "health_samples"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def policy_of(name: str, **limits: Any) -> CheckPolicy:
    """The shipped policy of a check, with other limits."""
    policy = load_policy("/dev/null").check(name)
    changed = {key: Limit(value, "the test") for key, value in limits.items()}
    return replace(policy, limits={**policy.limits, **changed})


def check_named(name: str) -> AnyCheck:
    return next(check for check in CHECKS if check.name == name)


class FakeNode:
    """Files below a root, tools on a PATH of their own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        self.root.mkdir()
        self.bin.mkdir()
        self.environ = {"PATH": str(self.bin)}

    def file(self, name: str, text: str = "") -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def files(self, **texts: str) -> None:
        for name, text in texts.items():
            self.file(name.replace("__", "/"), text)

    def tool(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
        path.chmod(0o755)

    def says(self, name: str, text: str, code: int = 0, stderr: str = "") -> None:
        """A tool that prints a text and ends with a code."""
        said = self.root.parent / f"{name}.said"
        said.write_text(text)
        self.tool(name, f"cat '{said}'\nprintf '%s' '{stderr}' >&2\nexit {code}")

    def pci(self, count: int, vendor: str, device: str, kind: str) -> None:
        for number in range(count):
            at = f"/sys/bus/pci/devices/0000:{number:02x}:00.0-{vendor}"
            self.file(f"{at}/vendor", vendor + "\n")
            self.file(f"{at}/device", device + "\n")
            self.file(f"{at}/class", kind + "\n")

    def gpus(self, count: int) -> None:
        self.pci(count, "0x10de", "0x20b0", "0x030200")

    def efa(self, count: int, verbs: int | None = None) -> None:
        """EFA adapters, of which the driver has ``verbs``."""
        self.pci(count, "0x1d0f", "0xefa1", "0x020000")
        for number in range(count if verbs is None else verbs):
            self.file(f"/dev/infiniband/uverbs{number}")
            self.verbs(f"rdmap{16 * (number + 1)}s27", "efa")
        for module in ("efa", "ib_uverbs", "ib_core"):
            self.file(f"/sys/module/{module}/refcnt", "0")

    def verbs(self, name: str, driver: str) -> None:
        at = self.root / f"sys/class/infiniband/{name}/device"
        at.mkdir(parents=True, exist_ok=True)
        (at / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")

    def instance(self, kind: str) -> None:
        self.file("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n")
        self.file("/sys/class/dmi/id/product_name", kind + "\n")

    def env(self, policy: CheckPolicy, timeout_s: float = 5.0) -> Env:
        deadline = time.monotonic() + timeout_s
        return Env(policy, deadline, str(self.root), self.environ, now=NOW)

    def check(self, name: str, timeout_s: float = 5.0, **limits: Any) -> Result:
        """Run one check on this node."""
        env = self.env(policy_of(name, **limits), timeout_s)
        return examine(check_named(name), env, NOW)
