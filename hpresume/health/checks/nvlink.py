"""NVLink links, by what ``nvidia-smi nvlink -s`` says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hpresume.health.checks.hardware import gpus_on_bus, hidden_gpus
from hpresume.health.env import Answer, Env
from hpresume.health.model import Absent, Broken, Check, Fault, Result, unknown, verdict
from hpresume.health.policy import CheckPolicy


@dataclass
class GpuLinks:
    """A GPU and its links: the number of the link, and whether it is up."""

    number: str
    model: str
    links: list[tuple[int, bool]] = field(default_factory=list)

    @property
    def down(self) -> list[int]:
        """The links that are not up."""
        return [number for number, up in self.links if not up]


@dataclass(frozen=True)
class Links:
    """All GPUs of the answer, and how many it should have: those on the bus that are not hidden."""

    gpus: tuple[GpuLinks, ...]
    doubt: tuple[str, ...] = ()
    expected: int = 0


_GPU_LINE = re.compile(r"GPU (\d{1,4}): (.{0,120}?) \(UUID: [^)]{1,80}\)\s*$", re.ASCII)
_LINK_LINE = re.compile(r"\s*Link (\d{1,3}): (\S.*)", re.ASCII)
_SPEED = re.compile(r"\d+(\.\d+)? GB/s\s*$", re.ASCII)


def parse_links(text: str) -> tuple[GpuLinks, ...]:
    """A link that is up has a speed, another one is ``<inactive>``."""
    gpus: list[GpuLinks] = []
    for line in text.split("\n"):
        gpu, link = _GPU_LINE.match(line), _LINK_LINE.match(line)
        if gpu:
            gpus.append(GpuLinks(gpu[1], gpu[2]))
        elif link and gpus:
            gpus[-1].links.append((int(link[1]), _SPEED.match(link[2]) is not None))
    return tuple(gpus)


def gather_links(env: Env) -> Links | Absent | Broken:
    """The links of all GPUs."""
    on_bus = gpus_on_bus(env)
    if not on_bus:
        return Absent("no NVIDIA GPU on the PCI bus")
    answer = env.run("nvidia-smi", "nvlink", "-s")
    if not isinstance(answer, Answer):
        return answer
    gpus = parse_links(answer.stdout)
    if not any(gpu.links for gpu in gpus):
        if answer.returncode == 0 and len(gpus) >= on_bus:
            return Absent("the GPUs have no NVLink")
        return Broken((*answer.doubt, "nvidia-smi nvlink -s printed no links")[0])
    return Links(gpus, answer.doubt, on_bus - hidden_gpus(env))


def judge_links(links: Links, policy: CheckPolicy, _now: float) -> Result:
    """A link that is down, on a GPU that has links up or beside GPUs that have."""
    if not any(up for gpu in links.gpus for _, up in gpu.links):
        # Boards without a bridge show all their links inactive.
        return unknown(policy, "no NVLink of any GPU is up: not connected, or no fabric manager")
    faults, doubts = [], list(links.doubt)
    if len(links.gpus) < links.expected:
        doubts.append(f"{len(links.gpus)} of {links.expected} GPUs shown")
    for gpu in links.gpus:
        if gpu.down:
            text = f"GPU {gpu.number}: NVLink {', '.join(map(str, gpu.down))} down"
            faults.append(Fault(text, f"{len(gpu.down)} down"))
        alike = max(len(each.links) for each in links.gpus if each.model == gpu.model)
        if len(gpu.links) < alike:
            doubts.append(f"GPU {gpu.number}: {len(gpu.links)} of {alike} links shown")
    count = sum(len(gpu.links) for gpu in links.gpus)
    return verdict(policy, faults, f"{count} links up", doubts=doubts)


CHECKS = (Check("gpu-nvlink", "nvidia-smi", gather_links, judge_links),)
