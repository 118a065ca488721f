"""A job without a script that holds whole nodes, and bounded steps in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hpresume.errors import SlurmError
from hpresume.slurm.runner import Answer, Runner, failure

_GRANTED = re.compile(r"salloc: Granted job allocation (\d{1,10})", re.ASCII)

#: What Slurm may take to start a job on nodes that are free.
_START_S = 60


@dataclass(frozen=True)
class Holding:
    """The job: its nodes are its own, GPUs and memory included."""

    runner: Runner
    job_id: int

    def step(self, nodes: Sequence[str], argv: Sequence[str], timeout_s: float) -> Answer:
        """Run a command once on each of ``nodes`` and wait for all of them.

        Raises SlurmTimeoutError after ``timeout_s``; the step ends with its
        srun. Steps may run side by side on one node. The limits of the
        processes are those that slurmd gives, not the caller's.
        """
        call = [
            "srun",
            f"--jobid={self.job_id}",
            f"--nodes={len(nodes)}",
            f"--ntasks={len(nodes)}",
            f"--nodelist={','.join(nodes)}",
            "--overlap",
            "--mem=0",
            "--cpu-bind=none",
            "--propagate=NONE",
            "--chdir=/",
            "--input=none",
            *argv,
        ]
        return self.runner.run(call, timeout_s)


def hold(
    runner: Runner, name: str, reservation: str, nodes: Sequence[str], partition: str, minutes: int
) -> Holding:
    """Start the job on ``nodes``, which have to be free.

    It outlives the loss of a node, and its salloc. Raises SlurmError where it
    does not start within a minute; nothing waits in the queue then.
    """
    argv = [
        "salloc",
        "--no-shell",
        "--no-kill",
        "--no-bell",
        "--exclusive",
        "--mem=0",
        f"--immediate={_START_S}",
        f"--job-name={name}",
        f"--reservation={reservation}",
        f"--nodes={len(nodes)}-{len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--partition={partition}",
        f"--time={minutes}",
    ]
    answer = runner.run(argv, _START_S + 15)
    match = _GRANTED.search(answer.text)
    if answer.returncode or match is None:
        error = failure(argv, answer)
        raise SlurmError(f"no job on the reserved nodes: {error}")
    return Holding(runner, int(match[1]))
