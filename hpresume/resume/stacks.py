"""Collecting what the ranks of a hung step are doing, from all its nodes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from hpresume.resume import rank_stacks
from hpresume.resume.command import neutral_environment, watch_command
from hpresume.resume.hang import Touch
from hpresume.resume.process import ends_with_us

#: Longest time for it (s): the training stands still meanwhile.
LIMIT_S = 10.0

#: Longest time to count ranks (s).
COUNT_LIMIT_S = 3.0


_RANK = re.compile(r"^rank (\d+) on (\S+)$", re.MULTILINE)
_NO_RANK = re.compile(rf"^{rank_stacks.NO_RANK} (\S+)$", re.MULTILINE)


def collect(
    srun: str, job_id: int, step_id: str, nodes: Sequence[str], environ: Mapping[str, str]
) -> str:
    """Text about every rank on ``nodes``, or why there is none; never raises for a failed step."""
    program = [sys.executable, "-I", "-S", rank_stacks.__file__, f"{job_id}.{step_id}"]
    argv = watch_command(srun, job_id, nodes, program)
    try:
        done = subprocess.run(
            ends_with_us(argv),
            env=neutral_environment(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        got = (error.stdout or b"").decode(errors="replace")
        return f"{got}\n(not all nodes answered within {LIMIT_S:.0f} s)\n"
    except OSError as error:
        return f"no stacks: {srun}: {error.strerror}\n"
    said = done.stderr.decode(errors="replace").splitlines(keepends=True)
    return done.stdout.decode(errors="replace") + "".join(w for w in said if "error:" in w)


def ended_ranks(
    text: str, ranks: int, touches: Mapping[int, Touch], nodes: Sequence[str]
) -> frozenset[int]:
    """Ranks of a step on ``nodes`` that have surely ended, by what ``collect`` gave. Pure."""
    running = {int(rank) for rank, _ in _RANK.findall(text)}
    told = {node for _, node in _RANK.findall(text)} | set(_NO_RANK.findall(text))
    complete = told >= set(nodes)
    return frozenset(
        rank
        for rank in range(ranks)
        if rank not in running and (complete or (rank in touches and touches[rank].node in told))
    )


def is_deserted(
    srun: str, job_id: int, step_id: str, nodes: Sequence[str], environ: Mapping[str, str]
) -> bool:
    """Whether no rank of a step runs on ``nodes`` any more; False where that is not certain.

    slurmctld keeps a step whose ranks have ended when the root of its tree of
    slurmstepd waits for the one of a dead node.
    """
    program = [sys.executable, "-I", "-S", rank_stacks.__file__, "--count", f"{job_id}.{step_id}"]
    try:
        done = subprocess.run(
            watch_command(srun, job_id, nodes, program),
            env=neutral_environment(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COUNT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    counted = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == rank_stacks.COUNT_PREFIX and words[2].isdecimal():
            counted[words[1]] = int(words[2])
    return set(counted) == set(nodes) and not any(counted.values())
