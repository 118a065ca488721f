"""The environment of each attempt. Pure.

A script that trusts SLURM_JOB_NODELIST must be right too after nodes of the
job changed, and so must one in a container without scontrol.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpresume.slurm.nodeset import fold

#: Longest value of a variable that is written name by name (bytes): the kernel
#: starts no program with one of 128 KiB or more.
MAX_VALUE = 100_000

_REPEAT = re.compile(r"(\d+)(?:\(x([1-9]\d{0,8})\))?")


@dataclass(frozen=True)
class AttemptFacts:
    """What is known when an attempt starts.

    ``job_nodes`` is empty where the allocation is not known (srun on its own);
    ``step_nodes`` is empty where srun still chooses. ``master_addr`` is the
    NodeAddr of the first step node.
    """

    attempt: int
    master_port: int
    job_nodes: tuple[str, ...] = ()
    step_nodes: tuple[str, ...] = ()
    master_addr: str = ""


def attempt_environment(environ: Mapping[str, str], facts: AttemptFacts) -> dict[str, str]:
    """``environ`` (that of the first attempt) with the variables of this one.

    The node variables of Slurm are replaced only where the job's nodes changed.
    """
    result = dict(environ)
    result["HPRESUME_ATTEMPT"] = str(facts.attempt)
    if "MASTER_PORT" not in environ or facts.attempt > 1:
        result["MASTER_PORT"] = str(facts.master_port)
    if facts.job_nodes:
        result.update(_job_variables(environ, facts.job_nodes))
    if facts.step_nodes:
        result["NODE_LIST"] = ",".join(facts.step_nodes)
        if len(result["NODE_LIST"]) > MAX_VALUE:
            result["NODE_LIST"] = fold(facts.step_nodes)
        result["MASTER_NODE"] = facts.step_nodes[0]
        result["MASTER_ADDR"] = facts.master_addr or facts.step_nodes[0]
    return result


def _job_variables(environ: Mapping[str, str], nodes: Sequence[str]) -> dict[str, str]:
    """Slurm's variables about the nodes of the job, for a job of ``nodes``."""
    listing, count = ",".join(nodes), str(len(nodes))
    if len(listing) > MAX_VALUE:
        listing = fold(nodes)
    fresh = {
        "SLURM_JOB_NODELIST": listing,
        "SLURM_NODELIST": listing,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
    }
    for name in ("SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if name in environ:
            fresh[name] = resize_counts(environ[name], len(nodes))
    return fresh


def resize_counts(text: str, nodes: int) -> str:
    """Slurm's ``2(x3),4`` for another number of nodes.

    Uneven counts are kept by position; what is missing gets the commonest one.
    Text in another form is returned as it is.
    """
    counts: list[str] = []
    for part in text.split(","):
        match = _REPEAT.fullmatch(part.strip())
        if match is None or len(counts) > 100_000:
            return text
        counts.extend([match[1]] * min(int(match[2] or 1), 100_000))
    usual = Counter(counts).most_common(1)[0][0]
    counts = (counts + [usual] * nodes)[:nodes]
    groups: list[tuple[str, int]] = []
    for count in counts:
        if groups and groups[-1][0] == count:
            groups[-1] = (count, groups[-1][1] + 1)
        else:
            groups.append((count, 1))
    return ",".join(c if n == 1 else f"{c}(x{n})" for c, n in groups)
