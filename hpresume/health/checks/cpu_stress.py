"""CPU stress with stress-ng, sized to the node."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpresume.health.env import Answer, Env, whole
from hpresume.health.model import Absent, Broken, Check, Fault, Result, one_line, unknown, verdict
from hpresume.health.policy import CheckPolicy

#: stress-ng's exit codes, from its manual: 2 says that a stressor failed.
_STRESSOR_FAILED = 2
_DONE = "successful run completed"
_FAIL = re.compile(r"stress-ng: fail: +\[\d+\] (.*)")


@dataclass(frozen=True)
class Stress:
    """How the run ended, what it complained about, and how busy the cores were (percent)."""

    answer: Answer
    cpus: int
    busy: float | None


def workers(cpus: int, available_mib: int, seconds: int) -> tuple[str, ...]:
    """The run for a node.

    SageMaker HyperPod's mix (32 cpu, 2 vm, 1 hdd, 8 fork, 4 switch) to scale.
    """
    vm = max(1, cpus // 16)
    mib = max(16, min(1024, available_mib // (4 * vm)))
    return (
        "--cpu", str(cpus), "--vm", str(vm), "--vm-bytes", f"{mib}m", "--hdd", "1",
        "--hdd-bytes", "128m", "--fork", str(max(1, cpus // 4)),
        "--switch", str(max(1, cpus // 8)), "--verify", "--metrics-brief",
        "--temp-path", "/tmp", "--timeout", f"{seconds}s",
    )  # fmt: skip


def gather(env: Env) -> Stress | Absent | Broken:
    """Run it on every core."""
    before = busy_ticks(env.text("/proc/stat") or "")
    if before is None:
        return Broken("/proc/stat tells no CPUs")
    available = re.search(r"^MemAvailable: +(\d{1,12}) kB", env.text("/proc/meminfo") or "", re.M)
    mib = (whole(available[1]) or 0) // 1024 if available else 256
    seconds = int(env.policy.number("seconds"))
    answer = env.run("stress-ng", *workers(before[2], mib, seconds))
    if not isinstance(answer, Answer):
        return answer
    after = busy_ticks(env.text("/proc/stat") or "")
    busy = None
    if after is not None and after[1] > before[1]:
        busy = 100 * (after[0] - before[0]) / (after[1] - before[1])
    return Stress(answer, before[2], busy)


def busy_ticks(stat: str) -> tuple[int, int, int] | None:
    """Busy ticks, all ticks and number of CPUs in /proc/stat."""
    match = re.search(r"^cpu +((?:\d{1,18} ?){4,10})", stat, re.MULTILINE | re.ASCII)
    cpus = len(re.findall(r"^cpu\d", stat, re.MULTILINE | re.ASCII))
    if match is None or not cpus:
        return None
    ticks = [int(word) for word in match[1].split()][:8]
    if len(ticks) < 4:
        return None
    return sum(ticks) - sum(ticks[3:5]), sum(ticks), cpus


def judge(stress: Stress, policy: CheckPolicy, _now: float) -> Result:
    """A stressor that found a wrong result is a fault; a run that did not end well says nothing."""
    answer = stress.answer
    said = answer.stdout + "\n" + answer.stderr
    measured = "" if stress.busy is None else f"{stress.busy:.0f} % busy"
    complaints = [one_line(text, 160) for text in _FAIL.findall(said)]
    if answer.returncode == _STRESSOR_FAILED and complaints:
        return verdict(policy, [Fault(text, measured) for text in complaints[:3]], "")
    if answer.doubt or _DONE not in said:
        return unknown(policy, (*answer.doubt, "stress-ng did not say that it is done")[0])
    seconds = policy.limits["seconds"].shown
    return verdict(policy, (), f"{stress.cpus} cores, {seconds}, with memory and disk", measured)


CHECKS = (Check("cpu-stress", "CPU stress", gather, judge, load=True),)
