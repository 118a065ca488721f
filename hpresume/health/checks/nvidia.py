"""GPU checks on what nvidia-smi says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hpresume.health.checks import nvidia_xml
from hpresume.health.checks.hardware import (
    expected_count,
    gpus_on_bus,
    hidden_gpus,
    instance_type,
)
from hpresume.health.checks.nvidia_xml import Gpu
from hpresume.health.checks.slurm_node import gpus_by_slurm
from hpresume.health.env import Answer, Env
from hpresume.health.model import (
    Absent,
    Action,
    Broken,
    Check,
    Fault,
    Result,
    skipped,
    unknown,
    verdict,
)
from hpresume.health.policy import CheckPolicy, Limit

#: What is wrong with one GPU; None: the driver does not say, so nobody knows.
Judge = Callable[[Gpu, CheckPolicy], "Iterable[Fault] | None"]


@dataclass(frozen=True)
class Smi:
    """The answer of ``nvidia-smi -q -x``, what is on the PCI bus, and what should be there.

    ``hidden``: GPUs that a device cgroup keeps from this process, as Slurm's
    ConstrainDevices does in a step; nvidia-smi does not show them.
    """

    report: nvidia_xml.Report | None
    doubt: tuple[str, ...]
    on_bus: int
    wanted: Limit | None = None
    lost: str = ""
    hidden: int = 0


#: What nvidia-smi says, instead of a report, of GPUs that left the bus.
_LOST = ("gpu is lost", "fallen off the bus", "no devices were found")


def gather(env: Env) -> Smi | Absent | Broken:
    """One call, shared by all the checks here."""
    on_bus = gpus_on_bus(env)
    if not on_bus:
        return Absent("no NVIDIA GPU on the PCI bus")
    return _ask(env, on_bus)


def gather_count(env: Env) -> Smi | Absent | Broken:
    """As ``gather``, but a node that should have GPUs and has none is no node without GPUs."""
    instance, on_bus = instance_type(env), gpus_on_bus(env)
    wanted = expected_count(env.policy, instance)
    # Other GPUs are in Gres too: Slurm's word counts where there is NVIDIA's driver at least.
    if not wanted and (on_bus or env.path("/sys/module/nvidia").is_dir()):
        wanted = gpus_by_slurm(env)
    if not on_bus:
        if not wanted:
            return Absent("no NVIDIA GPU on the PCI bus")
        return Smi(None, (), 0, wanted)
    return _ask(env, on_bus, wanted)


def _ask(env: Env, on_bus: int, wanted: Limit | None = None) -> Smi | Absent | Broken:
    answer = env.run("nvidia-smi", "-q", "-x")
    if not isinstance(answer, Answer):
        return answer
    report = nvidia_xml.parse(answer.stdout)
    said = (answer.stdout + answer.stderr).lower()
    lost = next((words for words in _LOST if words in said), "")
    if report is None and not lost:
        return Broken((*answer.doubt, "nvidia-smi printed no XML report")[0])
    return Smi(report, answer.doubt, on_bus, wanted, lost, hidden_gpus(env))


def judge_count(smi: Smi, policy: CheckPolicy, _now: float) -> Result:
    """As many GPUs with the driver as on the bus, and as many as there should be."""
    seen = len(smi.report.gpus) if smi.report else 0
    wanted = smi.wanted
    faults = []
    if smi.hidden:
        # Whether it is these that are missing, only somebody who may see all can say.
        if seen + smi.hidden >= smi.on_bus:
            hides = f"{smi.hidden} of {smi.on_bus} GPUs are hidden from this process (cgroup)"
            return skipped(policy, hides, needs_root=True)
        seen += smi.hidden
    if smi.lost:
        faults.append(Fault(f"nvidia-smi says: {smi.lost}", smi.lost))
    if seen < smi.on_bus:
        text = f"the driver has {seen} of the {smi.on_bus} GPUs on the PCI bus"
        faults.append(Fault(text, str(seen), Limit(smi.on_bus, "PCI bus of the node")))
    if wanted and seen < wanted.value:
        text = f"{seen} GPUs, the node should have {wanted.value}"
        faults.append(Fault(text, str(seen), wanted))
    return verdict(policy, faults, f"{seen} GPUs", str(seen), smi.doubt)


def _each(judge_gpu: Judge, good: str) -> Callable[[Smi, CheckPolicy, float], Result]:
    """A judge of all GPUs from a judge of one."""

    def judge(smi: Smi, policy: CheckPolicy, _now: float) -> Result:
        gpus = smi.report.gpus if smi.report else ()
        if not gpus:
            return unknown(policy, "nvidia-smi shows no GPU")
        faults: list[Fault] = []
        silent = 0
        for gpu in gpus:
            found = judge_gpu(gpu, policy)
            silent += found is None
            faults += found or ()
        doubts = smi.doubt
        if silent == len(gpus) and not faults and not (smi.report and smi.report.has_errors):
            return skipped(policy, "these GPUs or their driver do not show it")
        if silent:
            doubts = (*doubts, f"the driver does not say it of {silent} of {len(gpus)} GPUs")
        return verdict(policy, faults, f"{len(gpus)} GPUs: {good}", doubts=doubts)

    return judge


def _above(value: float, limit: Limit, gpu: Gpu, what: str) -> list[Fault]:
    if value <= limit.value:
        return []
    return [Fault(f"GPU {gpu.device}: {value:g} {what}".rstrip(), f"{value:g}", limit)]


def _ecc(gpu: Gpu, policy: CheckPolicy) -> list[Fault] | None:
    if gpu.uncorrected is None:
        return None
    limits = policy.limits
    return [
        *_above(gpu.uncorrected, limits["max_uncorrected"], gpu, "uncorrected ECC errors"),
        *_above(gpu.corrected or 0, limits["max_corrected"], gpu, "corrected ECC errors"),
    ]


def _remapped(gpu: Gpu, _policy: CheckPolicy) -> list[Fault] | None:
    if gpu.remap_failure is None:
        # Before Ampere, GPUs retire pages and remap no rows.
        return None if gpu.retired_pages is None else []
    if gpu.remap_failure:
        return [Fault(f"GPU {gpu.device}: a row could not be remapped", "failure")]
    if gpu.remap_pending:
        text = f"GPU {gpu.device}: a remapped row waits for a reset"
        return [Fault(text, "pending", action=Action.REBOOT)]
    return []


def _retired(gpu: Gpu, policy: CheckPolicy) -> list[Fault] | None:
    if gpu.retired_pages is None:
        return None if gpu.remap_failure is None else []
    faults = _above(gpu.retired_pages, policy.limits["max_pages"], gpu, "retired pages")
    if not faults and gpu.retirement_pending:
        text = f"GPU {gpu.device}: a page to be retired waits for a reboot"
        return [Fault(text, "pending", action=Action.REBOOT)]
    return faults


def _temperature(gpu: Gpu, policy: CheckPolicy) -> list[Fault] | None:
    if gpu.temperature is None:
        return None
    return _above(gpu.temperature, policy.limits["max_c"], gpu, "°C")


def _power(gpu: Gpu, policy: CheckPolicy) -> list[Fault] | None:
    if gpu.power is None or not gpu.power_limit:
        return None
    percent = 100 * gpu.power / gpu.power_limit
    return _above(round(percent), policy.limits["max_percent"], gpu, "% of its power limit")


def _throttle(gpu: Gpu, _policy: CheckPolicy) -> list[Fault] | None:
    if gpu.slowdowns is None:
        return None
    return [Fault(f"GPU {gpu.device}: {name}", name) for name in gpu.slowdowns]


def _pcie(gpu: Gpu, policy: CheckPolicy) -> list[Fault] | None:
    if gpu.width is None or gpu.max_width is None:
        return None
    faults = []
    if gpu.width < gpu.max_width:
        limit = Limit(f"{gpu.max_width:g}x", "what the link can do, says the driver")
        text = f"GPU {gpu.device}: PCIe link {gpu.width:g}x wide instead of {gpu.max_width:g}x"
        faults.append(Fault(text, f"{gpu.width:g}x", limit))
    return faults + _above(gpu.replays or 0, policy.limits["max_replays"], gpu, "PCIe replays")


def _memory(gpu: Gpu, policy: CheckPolicy) -> list[Fault] | None:
    if gpu.used_mib is None or gpu.processes is None:
        return None
    if gpu.processes or gpu.mig:  # with MIG, processes are listed elsewhere
        return []
    what = "MiB in use, no process"
    return _above(gpu.used_mib, policy.limits["max_mib"], gpu, what)


#: Values of the recovery action; a reboot resets a GPU too.
_RECOVERY = {
    "none": None,
    "reset": Action.REBOOT,
    "gpu reset": Action.REBOOT,
    "reboot": Action.REBOOT,
    "node reboot": Action.REBOOT,
    "drain and reset": Action.REBOOT,
    "drain p2p": Action.NONE,
}


def _recovery(gpu: Gpu, _policy: CheckPolicy) -> list[Fault] | None:
    word = (gpu.recovery or "").lower()
    if word not in _RECOVERY:
        return None
    action = _RECOVERY[word]
    if action is None:
        return []
    return [Fault(f"GPU {gpu.device}: the driver asks for: {word}", word, action=action)]


_FAMILY = "nvidia-smi"

CHECKS = (
    Check("gpu-count", _FAMILY, gather_count, judge_count),
    Check("gpu-ecc", _FAMILY, gather, _each(_ecc, "ECC errors within limits")),
    Check("gpu-remapped-rows", _FAMILY, gather, _each(_remapped, "no row waits or failed")),
    Check("gpu-retired-pages", _FAMILY, gather, _each(_retired, "retired pages within limits")),
    Check("gpu-temperature", _FAMILY, gather, _each(_temperature, "cool enough")),
    Check("gpu-power", _FAMILY, gather, _each(_power, "within their power limits")),
    Check("gpu-throttle", _FAMILY, gather, _each(_throttle, "not slowed down")),
    Check("gpu-pcie", _FAMILY, gather, _each(_pcie, "PCIe links as wide as they can be")),
    Check("gpu-memory", _FAMILY, gather, _each(_memory, "no memory left in use")),
    Check(
        "gpu-recovery-action",
        _FAMILY,
        gather,
        _each(_recovery, "none asks for recovery"),
        own_action=True,
    ),
)
