"""The settings under which HyperPod leaves a job unprotected, and says so only in a log:
proctrack/cgroup, task/cgroup with task/affinity, PrologFlags=Alloc,Contain.
"""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from steps import Run, nodes

pytestmark = pytest.mark.e2e

CLUSTER = {
    "nodes": 4,
    "gpus_per_node": 4,
    "plugin": True,
    "cgroup": True,
    "slurmd_timeout": 15,
    "overrides": (("AuthInfo", "cred_expire=5"),),
}


def test_a_spare_takes_over(cluster: E2eCluster) -> None:
    settings = cluster.exec(["scontrol", "show", "config"], check=True).stdout
    assert "proctrack/cgroup" in settings
    assert "task/cgroup" in settings
    run = Run(cluster)
    run.batch(
        "srun --auto-resume=1 --gres=gpu:4 -N3 -n3 {rank}; echo code=$?",
        "-N4", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    first = nodes(run.wait_up(1, 3))
    job = run.job_nodes()
    run.wait_watched(1)
    cluster.crash(first[2])
    assert nodes(run.wait_up(2, 3)) == [n for n in job if n != first[2]]
    assert "code=0" in run.finish()


def test_the_slow_requeue_is_announced_and_happens(cluster: E2eCluster) -> None:
    """No process of the job survives its requeue here: Slurm's own delays hold."""
    run = Run(cluster)
    run.batch(
        "srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?",
        "-N3", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    first = nodes(run.wait_up(1, 3))
    out = run.wait_output("Slurm itself requeues")
    # 15 s and a third more until the node is down, 5 s + 1 of credential, 5 s of scheduling
    assert "the job is requeued, to run again in about 31 s (proctrack/cgroup" in out
    run.wait_watched(1)
    cluster.crash(first[2])
    # Of four nodes, the three that are left.
    again = sorted({"n1", "n2", "n3", "n4"} - {first[2]})
    assert nodes(run.wait_up(2, 3, timeout=90)) == again
    out = run.finish()
    assert "code=0" in out
