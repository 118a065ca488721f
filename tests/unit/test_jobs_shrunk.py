"""Nodes that slurmctld miscounts after a shrink."""

from __future__ import annotations

import pytest

from hpresume.jobs.shrunk import miscounted, warning
from hpresume.slurm.models import Job, JobState


@pytest.mark.parametrize(
    ("exclusive", "left", "found"),
    [
        (True, {"n3", "n2"}, ("n2", "n3")),
        (True, set(), ()),
        (False, {"n3"}, ()),
    ],
)
def test_which_nodes_are_miscounted(
    exclusive: bool, left: set[str], found: tuple[str, ...]
) -> None:
    job = Job(7, JobState.RUNNING, nodes=("n1",), exclusive=exclusive)
    assert miscounted(job, left) == found


def test_the_warning_says_what_to_do() -> None:
    said = warning(7, "n3")
    assert said.startswith("n3: job 7, ")
    assert "`scontrol reconfigure`" in said
