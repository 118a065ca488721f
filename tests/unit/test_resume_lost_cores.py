"""When an attempt starts over cores that slurmctld takes for used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpresume.resume.model import Cause, Context, Snapshot, StepShape, Verdict
from hpresume.resume.resized import over_lost_cores
from hpresume.slurm.models import Job, JobState

NODES = ("n1", "n3")
JOB = Job(7, JobState.RUNNING, nodes=("n1", "n2", "n3"), start_time=100.0)
LOST = Snapshot(
    Context.BATCH, Verdict(Cause.NODE_FAILURE), 1, StepShape(("n1", "n2"), 2), job=JOB
)  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "shrunk", "expected"),
    [
        (LOST, True, True),
        (LOST, False, False),
        (replace(LOST, job=replace(JOB, resize_time=200.0)), False, True),
        (replace(LOST, job=replace(JOB, resize_time=50.0)), False, False),  # of an earlier run
        (replace(LOST, step=replace(LOST.step, can_overlap=False)), True, False),
        (replace(LOST, busy=frozenset({"n3"})), True, False),  # another step's cores and GPUs
        (replace(LOST, busy=frozenset({"n2"})), True, True),
    ],
)
def test_only_where_the_job_shrank_and_nothing_else_runs(
    snapshot: Snapshot, shrunk: bool, expected: bool
) -> None:
    assert over_lost_cores(snapshot, NODES, shrunk=shrunk) is expected
