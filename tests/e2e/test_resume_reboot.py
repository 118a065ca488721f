"""A node that is back before Slurm has missed it, while the step waits for Slurm to act."""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from steps import Run, nodes

pytestmark = pytest.mark.e2e

#: No process of a job survives its requeue here, so Slurm's own is waited for, 300 s and more.
CLUSTER = {"nodes": 3, "gpus_per_node": 4, "plugin": True, "cgroup": True}


def test_slurm_would_never_requeue_the_job(cluster: E2eCluster) -> None:
    """The node is not declared DOWN any more, and the job stays as it is."""
    run = Run(cluster)
    run.batch(
        "srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?",
        "-N3", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    first = nodes(run.wait_up(1, 3))
    run.wait_watched(1)
    cluster.crash(first[2])
    run.wait_output("waiting for Slurm to notice the loss and to requeue the job")
    cluster.boot(first[2])
    assert nodes(run.wait_up(2, 3, 60)) == first
    out = run.finish()
    assert f"{first[2]} came back before Slurm noticed the loss" in out
    assert "code=0" in out
