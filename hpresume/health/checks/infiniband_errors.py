"""Errors of InfiniBand ports within a window of time, from counters kept between runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpresume.health import history
from hpresume.health.checks.efa import VERBS
from hpresume.health.checks.infiniband import infiniband_ports
from hpresume.health.env import Env
from hpresume.health.history import Growth
from hpresume.health.model import Absent, Broken, Check, Fault, Result, verdict
from hpresume.health.policy import CheckPolicy, Limit

_COUNTERS = ("symbol_error", "link_downed")

#: Where the counters of 16 and 8 bits stay once they are there.
_FULL = {"symbol_error": 0xFFFF, "link_downed": 0xFF}


@dataclass(frozen=True)
class PortErrors:
    """What a port's counters grew by; None where it is not known. ``gbps`` of its link."""

    name: str
    gbps: float | None
    symbol_error: Growth | None
    link_downed: Growth | None
    doubt: str = ""


def parse_rate(text: str) -> float | None:
    """``100`` of ``100 Gb/sec (4X EDR)``."""
    match = re.match(r"\s*(\d{1,5}(?:\.\d{1,3})?) Gb/sec", text, re.ASCII)
    return float(match[1]) if match else None


def gather(env: Env) -> tuple[PortErrors, ...] | Absent | Broken:
    """Counters now against those of earlier runs; as root, also keeps them for later ones."""
    ports = [name for name in infiniband_ports(env) if name not in env.policy.items("ignore")]
    if not ports:
        return Absent("no InfiniBand port in sysfs")
    boot = (env.text("/proc/sys/kernel/random/boot_id") or "").strip()
    if not boot:
        return Broken("the kernel does not tell which boot this is")
    path = str(env.path(history.STATE_FILE))
    window_s = env.policy.number("window_s")
    before = history.read(path, boot)
    values = {}
    for name in ports:
        for counter in _COUNTERS:
            value = env.number(f"{_at(name)}/counters/{counter}")
            if value is not None and value >= 0:
                values[f"{name} {counter}"] = value
    found = tuple(_errors(env, name, before, values, window_s) for name in ports)
    if env.is_root:
        try:
            history.write(path, boot, history.extended(before, values, env.now, window_s))
        except OSError as error:
            return Broken(f"{path}: counters cannot be kept: {error.strerror}")
    if not values:
        return Broken("the counters of no InfiniBand port can be read")
    if all(port.symbol_error is None and port.link_downed is None for port in found):
        return Absent(
            "no earlier counters since the boot to compare with"
            + ("" if env.is_root else " (runs as root keep them)"),
            needs_root=not env.is_root,
        )
    return found


def _errors(
    env: Env, name: str, before: history.Series, values: dict[str, int], window_s: float
) -> PortErrors:
    grown: dict[str, Growth | None] = {}
    doubt = ""
    for counter in _COUNTERS:
        key = f"{name} {counter}"
        value = values.get(key)
        if value is None:
            grown[counter] = None
            doubt = doubt or f"{name}: {counter} cannot be read"
            continue
        grown[counter] = history.growth(before.get(key, ()), value, env.now, window_s)
        if value == _FULL[counter]:
            doubt = doubt or f"{name}: {counter} is full ({value}): reset it with perfquery -R"
    rate = parse_rate(env.text(f"{_at(name)}/rate") or "")
    return PortErrors(name, rate, grown["symbol_error"], grown["link_downed"], doubt)


def _at(name: str) -> str:
    device, _, number = name.rpartition("/")
    return f"{VERBS}/{device}/ports/{number}"


def judge(ports: tuple[PortErrors, ...], policy: CheckPolicy, _now: float) -> Result:
    """No more link losses, and no more bit errors, than the window allows.

    As long as the counters are known for a part of the window only, they are held
    against what the whole of it allows: a few errors in the first minute are none.
    """
    faults, doubts = [], []
    window_s = policy.number("window_s")
    downs, ratio = policy.limits["max_link_downed"], policy.limits["max_bit_error_ratio"]
    seconds = 0.0
    for port in ports:
        if port.doubt:
            doubts.append(port.doubt)
        if port.link_downed is not None:
            seconds = max(seconds, port.link_downed.seconds)
            if port.link_downed.count > downs.value:
                text = f"{port.name}: link lost {_within(port.link_downed)}"
                faults.append(Fault(text, str(port.link_downed.count), downs))
        if port.symbol_error is None:
            continue
        seconds = max(seconds, port.symbol_error.seconds)
        if port.gbps is None:
            doubts.append(f"{port.name}: its rate cannot be read")
            continue
        allowed = int(ratio.value * port.gbps * 1e9 * window_s)
        if port.symbol_error.count > allowed:
            text = f"{port.name}: {_within(port.symbol_error, 'symbol errors')}"
            limit = Limit(allowed, ratio.source, f"in {window_s:g} s at {port.gbps:g} Gb/s")
            faults.append(Fault(text, str(port.symbol_error.count), limit))
    return verdict(
        policy, faults, f"{len(ports)} ports within limits over {seconds:.0f} s", doubts=doubts
    )


def _within(grown: Growth, what: str = "times") -> str:
    return f"{grown.count} {what} within {grown.seconds:.0f} s"


CHECKS = (Check("infiniband-errors", "InfiniBand", gather, judge),)
