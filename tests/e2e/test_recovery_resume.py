"""A GPU job without a spare: its node is replaced and it goes on, before Slurm has noticed."""

from __future__ import annotations

import time

import pytest
from steps import Run

pytestmark = pytest.mark.e2e

#: ReturnToService=2, or slurmctld would set a node DOWN, and its job with it, that boots
#: while it is believed to be well.
CLUSTER = {
    "nodes": 3, "gpus_per_node": 4, "plugin": True, "slurmd_timeout": 300,
    "overrides": (("ReturnToService", "2"),),
}  # fmt: skip


@pytest.mark.parametrize("address", ["same", "new"])
def test_training_goes_on_on_the_replaced_node(site, cluster, address) -> None:
    controller = site()
    run = Run(cluster, HPRESUME_REPLACE_TIMEOUT="120")
    run.batch(
        "srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?", "-N3", "--exclusive",
        "--gres=gpu:4", "--comment=mine",
    )  # fmt: skip
    run.wait_up(1, 3)
    run.wait_watched(1)
    controller.start(ADDRESS=address, REPORT_BOOT="yes")
    controller.wait(lambda: "leads" in controller.log(), "no leader")
    before = controller.machines("n3")
    began = time.time()
    cluster.crash("n3")
    second = run.wait_up(2, 3, timeout=60)
    took = second[-1].t - began
    assert [up.node for up in second] == ["n1", "n2", "n3"]
    begins = controller.wait_event("replace-begins", "n3")
    assert "silent" in begins.message
    assert controller.machines("n3") != before
    shown = cluster.exec(["scontrol", "show", "job", str(run.job_id)], check=True).stdout
    assert "Restarts=0" in shown
    assert "NodeList=n[1-3]" in shown
    comment = cluster.exec(["squeue", "-h", "-j", str(run.job_id), "-o", "%k"], check=True).stdout
    assert comment.strip() == "mine"
    # Slurm would have needed SlurmdTimeout and more to say that the node is down.
    assert took < 30.0, took
    out = run.finish()
    assert "code=0" in out
    controller.wait_event("node-replaced", "n3")
    print(f"crash to all ranks of the next attempt: {took:.1f} s")


def test_an_order_is_not_held_up_by_a_job_that_waits_for_the_node(site, cluster) -> None:
    controller = site(node_recovery="None")
    run = Run(cluster, HPRESUME_REPLACE_TIMEOUT="120")
    run.batch(
        "srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?", "-N3", "--exclusive",
        "--gres=gpu:4",
    )  # fmt: skip
    run.wait_up(1, 3)
    run.wait_watched(1)
    controller.start(REPORT_BOOT="yes")
    cluster.crash("n3")
    controller.wait(
        lambda: "waits-for:n3" in cluster.exec(
            ["squeue", "-h", "-j", str(run.job_id), "-o", "%k"]
        ).stdout,
        "the job does not say that it waits",
    )  # fmt: skip
    assert controller.events("replace-wanted") == ()
    controller.mark("n3", "fail", "Action:Replace")
    second = run.wait_up(2, 3, timeout=60)
    assert [up.node for up in second] == ["n1", "n2", "n3"]
    assert "code=0" in run.finish()
