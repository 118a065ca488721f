"""``all_reduce_perf`` of NVIDIA's nccl-tests between two nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpresume.health.deep import answers
from hpresume.health.deep.matrix import Sample
from hpresume.health.deep.tournament import Pair
from hpresume.health.model import one_line
from hpresume.slurm.runner import Answer

PROGRAM = "all_reduce_perf"

#: #  Rank  0 Group  0 Pid  1234 on  node1 device  0 [0x0f] NVIDIA …   (Group: from 2.13 on)
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,6})\s+(?:Group\s+\d{1,6}\s+)?Pid\s+\d{1,12}\s+on\s+(\S{1,256})\s+device",
    re.ASCII,
)
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?", re.ASCII)
_FAILURE = re.compile(r"(?:Test (?:NCCL|CUDA) failure|Test failure|NCCL WARN|Cuda failure).{0,160}")
_BOUNDS = re.compile(r"# Out of bounds values : (\d{1,12}) (OK|FAILED)", re.ASCII)


@dataclass(frozen=True)
class Nccl:
    """One run: who took part, the bus bandwidth in GB/s of the largest size, and the verdict.

    ``hosts`` has one entry a rank. ``ended``: the closing lines are there.
    """

    hosts: tuple[str, ...]
    busbw: float | None
    wrong: bool = False
    failure: str = ""
    ended: bool = False


def arguments(gpus: int, mib: int) -> list[str]:
    """One process a node, with all its GPUs: one size, results checked."""
    size = f"{mib}M"
    return [PROGRAM, "-b", size, "-e", size, "-g", str(gpus), "-w", "5", "-n", "20", "-c", "1"]


def parse(text: str) -> Nccl:
    """What it printed; never raises."""
    ranks: dict[str, list[str]] = {}
    busbw, wrong, failure, ended = None, False, "", False
    for line in text.split("\n"):
        rank, bounds, found = _RANK.match(line), _BOUNDS.match(line), _busbw(line.split())
        if rank:
            ranks.setdefault(rank[1], []).append(rank[2].partition(".")[0])
        elif bounds:
            ended = True
            wrong = wrong or bounds[2] != "OK" or int(bounds[1]) > 0
        elif found is not None:
            busbw = found
        elif not failure and (match := _FAILURE.search(line)):
            failure = one_line(match[0], 160)
    # A rank twice: every process ran on its own, without MPI between them.
    hosts = tuple(names[0] for names in ranks.values() if len(names) == 1)
    return Nccl(hosts if len(hosts) == len(ranks) else (), busbw, wrong, failure, ended)


def _busbw(words: list[str]) -> float | None:
    """The lower of the two bus bandwidths of a row of results; None for any other line.

    size, count, type, redop, root (not before 2.10), then twice: time, algbw, busbw, #wrong.
    """
    if len(words) not in (12, 13) or not (words[0].isdigit() and words[1].isdigit()):
        return None
    values = [float(word) for word in (words[-6], words[-2]) if _NUMBER.fullmatch(word)]
    return min(values) if len(values) == 2 else None


def sample(pair: Pair, hosts: tuple[str, str], answer: Answer) -> Sample | None:
    """What a run says of its pair; None where the program is of no use here.

    ``hosts`` are the host names of the two nodes. A program that is missing, or
    cannot be loaded, or whose processes do not find each other through MPI,
    says nothing about the nodes.
    """
    if answers.is_unusable(answer.text):
        return None
    if answers.is_lost(answer.stderr):
        return answers.without_result(pair, "nccl", answer)
    run = parse(answer.stdout)
    if run.failure or (failure := _FAILURE.search(answer.stderr)):
        return Sample(pair, "nccl", error=run.failure or one_line(failure[0] if failure else ""))
    if not {host.partition(".")[0] for host in hosts} <= set(run.hosts):
        return None
    if run.wrong:
        return Sample(pair, "nccl", error="all_reduce_perf got wrong results")
    if not run.ended or run.busbw is None or answer.returncode:
        doubt = f"all_reduce_perf ended with code {answer.returncode} before its result"
        return Sample(pair, "nccl", doubt=doubt)
    return Sample(pair, "nccl", gbps=8 * run.busbw)
