"""A node that is back before Slurm has missed it, while the step waits for Slurm to act."""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from steps import Run, nodes

from hpresume.devcluster.lifecycle import slurm_version

pytestmark = pytest.mark.e2e

#: No process of a job survives its requeue here, so Slurm's own is waited for, 300 s and more.
CLUSTER = {
    "nodes": 3,
    "gpus_per_node": 4,
    "plugin": True,
    "cgroup": True,
    "overrides": (("AuthInfo", "cred_expire=5"),),
}

#: From this release on a node that was booted takes no step of the job any more.
STRANDS = (23, 2)


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
    again = nodes(run.wait_up(2, 3, 60))
    out = run.finish()
    assert f"{first[2]} came back before Slurm noticed the loss" in out
    assert "code=0" in out
    if slurm_version() < STRANDS:
        assert again == first
        assert "requeueing" not in out.partition("came back")[2]
    else:
        assert sorted(again) == sorted(first)  # good for the job's next run
        assert "requeueing the job" in out.partition("came back")[2]
    shown = cluster.exec(["sinfo", "-h", "-N", "-o", "%N %T"], check=True).stdout
    assert "drain" not in shown
