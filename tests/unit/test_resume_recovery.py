"""What is known of a job's nodes when the next attempt is prepared."""

from __future__ import annotations

import pytest

from hpresume.config import ResumeSettings
from hpresume.resume.decide import bad_nodes, decide
from hpresume.resume.model import (
    Cause,
    Context,
    NodeFault,
    Restart,
    Rung,
    Sign,
    Snapshot,
    StepShape,
    Verdict,
)
from hpresume.resume.resized import displaced
from hpresume.resume.supervisor import with_returned
from hpresume.slurm.models import Job, JobState

SIX = ("n1", "n2", "n3", "n4", "n5", "n6")


@pytest.mark.parametrize(
    ("step", "dropped", "lost"),
    [
        ("n1 n2 n3", "n3", ""),
        ("n1 n2 n3", "n2", ""),
        ("n1 n2 n3", "n1", ""),
        ("n1 n2 n3", "", ""),
        ("n1 n2 n3", "n6", ""),
        ("n1 n4 n5", "n4", ""),
        ("n1 n2 n6", "n2", "n6"),
        ("n1 n4 n5", "n2", "n4"),
        ("n1 n4 n6", "n2 n3", "n4"),
        ("n4 n5 n6", "n4", ""),
        ("n4 n5 n6", "n1", "n4"),
        ("", "n1", ""),
    ],
)
def test_displaced(step: str, dropped: str, lost: str) -> None:
    assert displaced(SIX, step.split(), dropped.split()) == tuple(lost.split())


def test_nodes_that_came_back_before_slurm_missed_them() -> None:
    """They are good again, over their dead steps; the others are as lost as before."""
    of = Job(7, JobState.RUNNING, nodes=("n1", "n2", "n3"), num_nodes=3, batch=True)
    faults = tuple(NodeFault(n, Sign.LOST, "is lost") for n in ("n2", "n3"))
    before = Snapshot(
        Context.BATCH,
        Verdict(Cause.NODE_FAILURE, faults, "words"),
        137,
        StepShape(of.nodes, 3),
        job=of,
        unusable=frozenset({"n2", "n3"}),
    )
    after = with_returned(before, ("n3",))
    assert [f.sign for f in after.verdict.faults] == [Sign.LOST, Sign.REBOOTED]
    assert bad_nodes(after) == ("n2",)
    both = with_returned(before, ("n2", "n3"))
    assert decide(both, ResumeSettings(), 0.0) == Restart(Rung.SAME, of.nodes, overlap=True)
