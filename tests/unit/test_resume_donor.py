"""The job whose nodes are merged into another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpresume.resume.execute import donor_for
from hpresume.resume.model import Grow
from hpresume.slurm.models import DonorSpec, Job, JobState

NOW = 1_000_000.0
JOB = Job(
    7,
    JobState.RUNNING,
    partition="gpu",
    qos="high",
    account="lab",
    reservation="keep",
    features="a100",
    nodes=("n1", "n2", "n3"),
    num_cpus=24,
    min_memory_per_node_mb=4000,
    end_time=NOW + 3600,
    exclusive=True,
)
GROW = Grow(2, ("n2", "n3"), ("n2", "n3", "n9"), ("n1",))


def test_a_donor_is_shaped_like_the_job() -> None:
    assert donor_for(GROW, JOB, NOW) == DonorSpec(
        target_job_id=7,
        num_nodes=2,
        partition="gpu",
        qos="high",
        account="lab",
        reservation="keep",
        features="a100",
        exclude=("n2", "n3", "n9"),
        exclusive=True,
        cpus=16,
        memory_per_node_mb=4000,
        memory_per_cpu_mb=0,
        time_limit_min=60,
    )


@pytest.mark.parametrize(
    ("left", "minutes"), [(3600, 60), (119, 1), (60, 1), (59, 1), (0, 1), (-30, 1)]
)
def test_its_time_limit_is_what_is_left(left: float, minutes: int) -> None:
    assert donor_for(GROW, replace(JOB, end_time=NOW + left), NOW).time_limit_min == minutes


def test_no_limit_for_a_job_without_one() -> None:
    assert donor_for(GROW, replace(JOB, end_time=0.0), NOW).time_limit_min == 0


def test_memory_by_cpu() -> None:
    job = replace(JOB, min_memory_per_node_mb=0, min_memory_per_cpu_mb=500)
    donor = donor_for(GROW, job, NOW)
    assert (donor.memory_per_node_mb, donor.memory_per_cpu_mb) == (0, 500)


def test_no_cpus_are_asked_for_where_the_jobs_share_is_not_known() -> None:
    assert donor_for(GROW, replace(JOB, nodes=()), NOW).cpus == 0
