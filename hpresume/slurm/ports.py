"""The port on which the ranks of a training step meet.

Every task computes it by itself, so it depends on nothing but the numbers that
all tasks of a step share. ``scripts/hpresume-env.sh`` holds the same formula.
"""

from __future__ import annotations

#: Above the ports of services, below those that Linux and Kubernetes hand out.
FIRST_PORT = 20000

#: A prime, so that a difference in one of the three numbers alone shows unless it
#: is a multiple of this.
PORT_COUNT = 9973

#: Two triples that differ by less than 16 attempts, 32 steps and 19 jobs differ.
_PER_STEP = 16
_PER_JOB = 512

#: Neighbours land far apart: some programs also take the port after theirs.
_SPREAD = 6163

#: Steps with a name instead of a number.
_NAMED_STEPS = {"batch": 31, "interactive": 30, "extern": 29}


def master_port(job_id: int, step_id: int | str, attempt: int) -> int:
    """The port for one attempt of one step.

    Differs between the attempts of a step, the steps of a job and the jobs of a
    node; only a pair that differs in several of the numbers by more than the
    windows above may meet (one in ten thousand).
    """
    if isinstance(step_id, str):
        step_id = _NAMED_STEPS.get(step_id, 0) if not step_id.isdigit() else int(step_id)
    number = job_id * _PER_JOB + step_id * _PER_STEP + attempt
    return FIRST_PORT + number * _SPREAD % PORT_COUNT
