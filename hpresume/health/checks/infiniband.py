"""InfiniBand ports, from sysfs."""

from __future__ import annotations

from dataclasses import dataclass

from hpresume.health.checks.efa import VERBS, driver
from hpresume.health.env import Env
from hpresume.health.model import Absent, Broken, Check, Fault, Result, one_line, skipped, verdict
from hpresume.health.policy import CheckPolicy, Limit

_STATE = Limit("ACTIVE", "Azure node health checks")
_LINK = Limit("LinkUp", "Azure node health checks")

#: What the kernel calls them (drivers/infiniband/core/sysfs.c).
_STATES = frozenset({"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"})
_PHYSICAL = frozenset(
    {
        "Sleep",
        "Polling",
        "Disabled",
        "PortConfigurationTraining",
        "LinkUp",
        "LinkErrorRecovery",
        "Phy Test",
    }
)


@dataclass(frozen=True)
class Port:
    """One port; None where a file cannot be read."""

    name: str
    state: str | None
    physical: str | None
    link_downed: int | None


def gather(env: Env) -> tuple[Port, ...] | Absent | Broken:
    """All ports whose link layer is InfiniBand."""
    ports = tuple(_port(env, name) for name in infiniband_ports(env))
    return ports or Absent("no InfiniBand port in sysfs")


def infiniband_ports(env: Env) -> list[str]:
    """Names of the ports, such as ``mlx5_0/1``; neither those of EFA nor of RoCE."""
    ports = []
    for device in env.names(VERBS):
        if driver(env, device) == "efa":
            continue
        for number in env.names(f"{VERBS}/{device}/ports"):
            layer = env.text(f"{VERBS}/{device}/ports/{number}/link_layer") or "InfiniBand"
            if layer.strip() == "InfiniBand":
                ports.append(f"{device}/{number}")
    return ports


def _port(env: Env, name: str) -> Port:
    device, _, number = name.rpartition("/")
    at = f"{VERBS}/{device}/ports/{number}"
    return Port(
        name,
        _word(env.text(f"{at}/state")),
        _word(env.text(f"{at}/phys_state")),
        env.number(f"{at}/counters/link_downed"),
    )


def _word(text: str | None) -> str | None:
    """``ACTIVE`` of ``4: ACTIVE``."""
    return None if text is None else one_line(text.rpartition(":")[2], 40)


def judge(ports: tuple[Port, ...], policy: CheckPolicy, _now: float) -> Result:
    """Active, up, and steady."""
    faults, doubts = [], []
    limit = policy.limits["max_link_downed"]
    ignored = policy.items("ignore")
    ports = tuple(port for port in ports if port.name not in ignored)
    if not ports:
        return skipped(policy, "the policy ignores every InfiniBand port")
    for port in ports:
        if port.state is None or port.physical is None:
            doubts.append(f"{port.name}: its state cannot be read")
            continue
        if port.state not in _STATES or port.physical not in _PHYSICAL:
            doubts.append(f"{port.name}: strange state {port.state} {port.physical}")
            continue
        if port.state != _STATE.value:
            faults.append(Fault(f"{port.name} is {port.state}", port.state, _STATE))
        if port.physical != _LINK.value:
            faults.append(Fault(f"{port.name} is {port.physical}", port.physical, _LINK))
        if port.link_downed is not None and port.link_downed > limit.value:
            text = f"{port.name}: link went down {port.link_downed} times"
            faults.append(Fault(text, str(port.link_downed), limit))
    return verdict(policy, faults, f"{len(ports)} ports active", doubts=doubts)


CHECKS = (Check("infiniband-ports", "InfiniBand", gather, judge),)
