"""A lost node comes back under its name; or the step goes on with fewer nodes."""

from __future__ import annotations

import pytest
from cluster import E2eCluster, needs_overlap_of_everything
from steps import Run, nodes

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 3, "gpus_per_node": 4, "plugin": True}

WHOLE_JOB = "srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?"


@pytest.mark.parametrize("new_address", [False, True], ids=["same-address", "new-address"])
def test_gpu_job_keeps_its_allocation(cluster: E2eCluster, new_address: bool) -> None:
    needs_overlap_of_everything()
    run = Run(cluster, HPRESUME_REPLACE_TIMEOUT="120")
    run.batch(WHOLE_JOB, "-N3", "--exclusive", "--gres=gpu:4")
    run.wait_up(1, 3)
    out = run.wait_output("Slurm itself requeues")
    assert "the step waits up to 120 s for it to come back under its name" in out
    run.wait_watched(1)
    cluster.crash("n3")
    run.wait_output("waiting up to")
    cluster.boot("n3", new_address=new_address)
    second = run.wait_up(2, 3, timeout=60)
    assert [u.node for u in second] == ["n1", "n2", "n3"]
    out = run.finish()
    assert "n3 came back after" in out
    assert "n3 is back, and healthy by the quick check" in out
    assert "code=0" in out
    shown = cluster.exec(["scontrol", "show", "job", str(run.job_id)], check=True).stdout
    assert "Restarts=0" in shown
    assert "NodeList=n[1-3]" in shown


def test_the_deadline_passes_and_nothing_is_lost(cluster: E2eCluster) -> None:
    needs_overlap_of_everything()
    run = Run(cluster, HPRESUME_REPLACE_TIMEOUT="6", HPRESUME_MIN_NODES="2")
    run.batch(WHOLE_JOB, "-N3", "--exclusive", "--gres=gpu:4")
    run.wait_up(1, 3)
    run.wait_watched(1)
    cluster.crash("n3")
    second = run.wait_up(2, 2, timeout=60)
    assert [u.node for u in second] == ["n1", "n2"]
    out = run.finish()
    assert "n3 did not come back within 6 s" in out
    assert "going on with fewer nodes, 2 tasks on n1,n2" in out
    assert "code=0" in out


def test_a_fixed_number_of_tasks_cannot_shrink(cluster: E2eCluster) -> None:
    run = Run(cluster, HPRESUME_MIN_NODES="2", HPRESUME_LADDER="fewer")
    run.batch(
        "srun --auto-resume=1 --gres=gpu:4 -n3 {rank}; echo code=$?",
        "-N3", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    run.wait_up(1, 3)
    out = run.wait_output("warning: after the loss of a node")
    assert "the number of tasks is fixed: give --ntasks-per-node instead of -n" in out
    run.finish()


def _fill_tmp(cluster: E2eCluster, node: str) -> None:
    full = "mount -t tmpfs -o size=64k none /tmp && head -c 65536 /dev/zero > /tmp/full"
    cluster.exec(["bash", "-c", full], node, check=True)


def test_a_node_that_comes_back_ill_is_not_used(cluster: E2eCluster) -> None:
    needs_overlap_of_everything()
    run = Run(cluster, HPRESUME_REPLACE_TIMEOUT="10", HPRESUME_MIN_NODES="2")
    run.batch(WHOLE_JOB, "-N3", "--exclusive", "--gres=gpu:4")
    run.wait_up(1, 3)
    run.wait_watched(1)
    cluster.crash("n3")
    run.wait_output("waiting up to 10 s")
    # Nobody uses it before the fault is in place.
    cluster.exec(["scontrol", "update", "nodename=n3", "state=drain", "reason=test"], check=True)
    cluster.boot("n3")
    _fill_tmp(cluster, "n3")
    cluster.exec(["scontrol", "update", "nodename=n3", "state=resume"], check=True)
    second = run.wait_up(2, 2, timeout=60)
    assert nodes(second) == ["n1", "n2"]
    out = run.finish()
    assert "n3 is back, but not used: disk-space: /tmp: 0.0 % of space free" in out
    assert "n3 did not come back in order within 10 s" in out
    assert "code=0" in out
