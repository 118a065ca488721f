"""EFA adapters: on the bus, with the driver, with libfabric, and able to talk."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass

from hpresume.health.checks.hardware import efa_on_bus, expected_count, instance_type
from hpresume.health.checks.slurm_node import slurmd_pids
from hpresume.health.env import Answer, Env, whole
from hpresume.health.model import Absent, Broken, Check, Fault, Result, passed, unknown, verdict
from hpresume.health.policy import CheckPolicy, Limit

VERBS = "/sys/class/infiniband"
_NO_EFA = Absent("no EFA adapter on the PCI bus")
_MODULES = ("efa", "ib_uverbs", "ib_core")
_COUNTERS = ("rx_drops", "retrans_timeout_events")


def verbs_devices(env: Env) -> tuple[str, ...]:
    """Names of the verbs devices that the efa driver made."""
    return tuple(name for name in env.names(VERBS) if driver(env, name) == "efa")


def driver(env: Env, device: str) -> str:
    """The kernel driver of a verbs device; empty where it cannot be told."""
    try:
        return os.path.basename(os.readlink(env.path(f"{VERBS}/{device}/device/driver")))
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True)
class Devices:
    """What the node shows of its adapters."""

    on_bus: int
    verbs: int
    uverbs: int
    missing_modules: tuple[str, ...] = ()
    instance: str = ""


def gather_devices(env: Env) -> Devices | Absent | Broken:
    """Counts at every level."""
    on_bus, instance = efa_on_bus(env), instance_type(env)
    if not on_bus and not expected_count(env.policy, instance):
        return _NO_EFA
    return Devices(
        on_bus,
        len(verbs_devices(env)),
        sum(name.startswith("uverbs") for name in env.names("/dev/infiniband")),
        tuple(m for m in _MODULES if not env.path(f"/sys/module/{m}").is_dir()),
        instance,
    )


def judge_devices(found: Devices, policy: CheckPolicy, _now: float) -> Result:
    """Every adapter of the bus is with the driver, and none that should be there is missing."""
    faults = []
    wanted = expected_count(policy, found.instance)
    if wanted and found.on_bus < wanted.value:
        text = f"{found.on_bus} EFA adapters on the PCI bus, the node should have {wanted.value}"
        faults.append(Fault(text, str(found.on_bus), wanted))
    bus = Limit(found.on_bus, "PCI bus of the node")
    if found.missing_modules:
        text = f"modules not loaded: {', '.join(found.missing_modules)}"
        faults.append(Fault(text, "", bus))
    for count, what in ((found.verbs, "verbs devices"), (found.uverbs, "/dev/infiniband/uverbs*")):
        if count < found.on_bus:
            faults.append(Fault(f"{count} {what} for {found.on_bus} adapters", str(count), bus))
    return verdict(policy, faults, f"{found.on_bus} EFA adapters", str(found.on_bus))


@dataclass(frozen=True)
class Domains:
    """libfabric's domains of the provider efa, against the adapters."""

    names: tuple[str, ...]
    adapters: int
    doubt: tuple[str, ...] = ()


#: Whole lines only: half a name would be one more adapter.
_DOMAIN = re.compile(r"^\s*domain:\s*(\S{1,80})[ \t]*\n", re.MULTILINE)
_PROVIDER = re.compile(r"^provider:\s*efa\b", re.MULTILINE)


def parse_domains(text: str) -> tuple[str, ...]:
    """The adapters in ``fi_info -p efa``, each of which has several domains."""
    if not _PROVIDER.search(text):
        return ()
    names = (re.sub(r"-(rdm|dgrm)$", "", name) for name in _DOMAIN.findall(text))
    return tuple(dict.fromkeys(names))


def gather_domains(env: Env) -> Domains | Absent | Broken:
    """What libfabric sees."""
    adapters = efa_on_bus(env)
    if not adapters:
        return _NO_EFA
    answer = env.run("fi_info", "-p", "efa")
    if not isinstance(answer, Answer):
        return answer
    names = parse_domains(answer.stdout)
    if not names and "fi_getinfo" not in answer.stdout + answer.stderr:
        return Broken((*answer.doubt, "fi_info printed no domains")[0])
    return Domains(names, adapters, answer.doubt)


def judge_domains(found: Domains, policy: CheckPolicy, _now: float) -> Result:
    """As many as there are adapters."""
    faults = []
    seen = len(found.names)
    if seen < found.adapters:
        limit = Limit(found.adapters, "PCI bus of the node")
        text = f"libfabric sees {seen} of {found.adapters} EFA adapters"
        faults.append(Fault(text, str(seen), limit))
    return verdict(policy, faults, f"libfabric sees {seen} adapters", str(seen), found.doubt)


@dataclass(frozen=True)
class Memlock:
    """A limit of locked memory in bytes, None for none, and whose it is."""

    limit: int | None
    of_slurmd: bool


_LOCKED = re.compile(r"^Max locked memory\s+(\S+)\s", re.MULTILINE)


def parse_memlock(text: str) -> tuple[bool, int | None]:
    """Whether the text of /proc/PID/limits has a limit, and it in bytes."""
    match = _LOCKED.search(text)
    if match is None:
        return False, None
    if match[1] == "unlimited":
        return True, None
    number = whole(match[1])
    return number is not None, number


def gather_memlock(env: Env) -> Memlock | Absent | Broken:
    """The limit that slurmd hands to steps; that of this process where slurmd's is not ours."""
    if not efa_on_bus(env):
        return _NO_EFA
    for pid in slurmd_pids(env):
        known, limit = parse_memlock(env.text(f"/proc/{pid}/limits") or "")
        if known:
            return Memlock(limit, of_slurmd=True)
    known, limit = parse_memlock(env.text("/proc/self/limits") or "")
    return Memlock(limit, of_slurmd=False) if known else Broken("no limit in /proc/self/limits")


def judge_memlock(found: Memlock, policy: CheckPolicy, _now: float) -> Result:
    """At least what the policy says."""
    wanted = policy.limits["min_gib"]
    whose = "slurmd's" if found.of_slurmd else "this process's"
    if found.limit is not None and found.limit < wanted.value * (1 << 30):
        gib = f"{found.limit / (1 << 30):.3g}"
        return verdict(
            policy, [Fault(f"{whose} limit of locked memory: {gib} GiB", gib, wanted)], ""
        )
    left_out = "" if found.of_slurmd else "slurmd's own limit (needs root)"
    return passed(policy, f"{whose} limit is high enough", left_out=left_out)


@dataclass(frozen=True)
class Counters:
    """Counters by adapter; None where one cannot be read."""

    values: tuple[tuple[str, int | None], ...]


def gather_counters(env: Env) -> Counters | Absent | Broken:
    """The hardware counters of all ports."""
    if not efa_on_bus(env):
        return _NO_EFA
    values = [
        (f"{name}: {counter}", env.number(f"{VERBS}/{name}/ports/1/hw_counters/{counter}"))
        for name in verbs_devices(env)
        for counter in _COUNTERS
    ]
    return Counters(tuple(values)) if values else Broken("no EFA adapter has a verbs device")


def judge_counters(found: Counters, policy: CheckPolicy, _now: float) -> Result:
    """Not more events than the policy says; older drivers do not count retransmissions."""
    limit = policy.limits["max_events"]
    known = [(name, value) for name, value in found.values if value is not None]
    if not known:
        return unknown(policy, "the driver shows no counters")
    faults = [Fault(f"{n} is {v}", str(v), limit) for n, v in known if v > limit.value]
    return verdict(policy, faults, f"{len(known)} counters within limits")


@dataclass(frozen=True)
class Bandwidths:
    """Gbps of the adapters; a text where the test gave none."""

    values: tuple[tuple[str, float | str], ...]


#: bytes, #sent, #ack, total, time, MB/sec, …
_PINGPONG = re.compile(
    r"^\S+\s+\d+\s+=?\d+\s+\S+\s+\d+(?:\.\d+)?s\s+(\d{1,9}(?:\.\d{1,6})?)\s",
    re.MULTILINE | re.ASCII,
)


def parse_pingpong(text: str) -> float | None:
    """The best Gbps in what fi_pingpong printed; it counts in MB/s."""
    rates = [float(rate) * 8 / 1000 for rate in _PINGPONG.findall(text)]
    return max(rates, default=None)


def gather_loopback(env: Env) -> Bandwidths | Absent | Broken:
    """fi_pingpong from every adapter to itself, one after the other."""
    if not efa_on_bus(env):
        return _NO_EFA
    if env.find("fi_pingpong") is None:
        return Absent("fi_pingpong is not installed (not on PATH)")
    names = verbs_devices(env)
    if not names:
        return Broken("no EFA adapter has a verbs device")
    return Bandwidths(tuple((name, _loopback(env, name)) for name in names))


def _loopback(env: Env, name: str) -> float | str:
    port = f"{env.policy.number('port'):.0f}"
    argv = ("fi_pingpong", "-p", "efa", "-d", f"{name}-rdm", "-e", "rdm", "-S", "1048576")
    server = threading.Thread(target=env.run, args=(*argv, "-B", port), daemon=True)
    server.start()
    server.join(0.5)  # until it listens
    answer = env.run(*argv, "-P", port, "127.0.0.1")
    if not isinstance(answer, Answer):
        return answer.reason
    rate = parse_pingpong(answer.stdout)
    if rate is not None and (not answer.doubt or rate < env.policy.number("min_gbps")):
        return rate
    return (*answer.doubt, "fi_pingpong printed no rate")[0]


def judge_loopback(found: Bandwidths, policy: CheckPolicy, _now: float) -> Result:
    """Every adapter reaches the rate of the policy; a test that did not run says nothing."""
    limit = policy.limits["min_gbps"]
    faults = [
        Fault(f"{name}: {rate:.1f} Gbps", f"{rate:.1f}", limit)
        for name, rate in found.values
        if isinstance(rate, float) and rate < limit.value
    ]
    doubts = [f"{name}: {said}" for name, said in found.values if isinstance(said, str)]
    return verdict(policy, faults, f"{len(found.values)} adapters fast enough", doubts=doubts)


CHECKS = (
    Check("efa-devices", "EFA", gather_devices, judge_devices),
    Check("efa-provider", "EFA", gather_domains, judge_domains),
    Check("efa-memlock", "EFA", gather_memlock, judge_memlock),
    Check("efa-counters", "EFA", gather_counters, judge_counters),
    Check("efa-loopback", "EFA", gather_loopback, judge_loopback, load=True),
)
