"""Jobs that go back to the queue: no spare, or the batch host is gone."""

from __future__ import annotations

import time

import pytest
from cluster import E2eCluster
from steps import Run, nodes

pytestmark = pytest.mark.e2e

# SlurmdTimeout and the credential's lifetime rule how soon Slurm itself starts a job again that
# lost its batch host: 300 s and 121 s by default, far too long for a test.
CLUSTER = {
    "nodes": 5,
    "gpus_per_node": 4,
    "plugin": True,
    "slurmd_timeout": 15,
    "overrides": (("AuthInfo", "cred_expire=5"),),
}

PROTECTED = (
    "echo run $SLURM_RESTART_COUNT on $SLURM_JOB_NODELIST\n"
    "srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?"
)


def test_gpu_job_without_spare_is_requeued_fast(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(PROTECTED, "-N3", "--exclusive", "--gres=gpu:4")
    first = run.wait_up(1, 3)
    assert {u.node_list for u in first} == {",".join(nodes(first))}
    assert "the job is requeued, to run again in about 5 s" in run.wait_output("requeues the job")
    run.wait_watched(1)
    victim = first[2].node
    cluster.crash(victim)
    crashed = time.time()
    second = run.wait_up(2, 3)
    again = nodes(second)
    assert victim not in again
    assert again == run.job_nodes()
    assert {(u.node_list, u.master_addr) for u in second} == {(",".join(again), again[0])}
    # Slurm alone: SlurmdTimeout at least.
    assert max(u.t for u in second) - crashed < 15
    out = run.finish()
    assert f"this job was requeued: going on with attempt 2; nodes that failed: {victim}\n" in out
    assert "code=0" in out
    shown = cluster.exec(["scontrol", "show", "job", str(run.job_id)], check=True).stdout
    assert "Restarts=1" in shown
    assert f"ExcNodeList={victim}\n" in shown
    assert [r["nodes"] for r in run.events("requeue") if "nodes" in r] == []
    assert run.events("requeue")[0]["exclude"] == [victim]
    # No GPU got lost in the accounting: the nodes are all there for the next job.
    after = Run(cluster)
    after.batch("srun --gres=gpu:4 true && echo all=4", "-N4", "--exclusive", "--gres=gpu:4")
    assert "all=4" in after.wait_end()


def test_requeue_lifts_the_users_own_node_list(cluster: E2eCluster) -> None:
    """And a free node that died unnoticed, which slurmctld would choose, is kept out too."""
    run = Run(cluster)
    run.batch(PROTECTED, "-N3", "-w", "n2,n3,n4", "--exclusive", "--gres=gpu:4")
    run.wait_up(1, 3)
    run.wait_watched(1)
    cluster.crash("n1")
    cluster.crash("n3")
    assert nodes(run.wait_up(2, 3)) == ["n2", "n4", "n5"]
    assert "code=0" in run.finish()


def test_no_requeue_is_said_and_respected(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(PROTECTED, "-N3", "--exclusive", "--gres=gpu:4", "--no-requeue")
    first = nodes(run.wait_up(1, 3))
    out = run.wait_output("ends the job")
    assert "warning: after the loss of a node the step cannot go on" in out
    assert f"warning: the loss of {first[0]}, which runs the batch script, ends the job" in out
    run.wait_watched(1)
    cluster.crash(first[2])
    out = run.wait_end()
    assert "not resumed: no way is left" in out
    assert "--no-requeue" in out
    assert "code=137" in out
    assert not run.ups(2)


def test_loss_of_the_batch_host(cluster: E2eCluster) -> None:
    """Slurm notices and requeues; the new run goes on where the journal ends."""
    run = Run(cluster)
    run.batch(PROTECTED, "-N3", "--exclusive", "--gres=gpu:4")
    host = nodes(run.wait_up(1, 3))[0]
    assert host == run.job_nodes()[0]
    run.wait_watched(1)
    cluster.crash(host)
    again = nodes(run.wait_up(2, 3, timeout=90))
    assert host not in again
    assert again == run.job_nodes()
    out = run.finish()
    assert "Slurm started this job again: going on with attempt 2" in out
    assert "code=0" in out
    lost = run.events("ended")
    assert [r["cause"] for r in lost] == ["node failure"]
    assert run.events("fault")[0]["nodes"] == [host]


def test_two_requeues_in_a_row(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(PROTECTED, "-N3", "--exclusive", "--gres=gpu:4")
    victims = []
    for attempt in (1, 2):
        victims.append(nodes(run.wait_up(attempt, 3))[2])
        run.wait_watched(attempt)
        cluster.crash(victims[-1])
    # Of five nodes, the three that are left.
    assert nodes(run.wait_up(3, 3)) == sorted({"n1", "n2", "n3", "n4", "n5"} - {*victims})
    assert "code=0" in run.finish()


def test_a_job_that_needs_every_node_waits_for_the_lost_one(cluster: E2eCluster) -> None:
    """Excluded from the partition's last nodes, the job would be held for good."""
    run = Run(cluster)
    run.batch(PROTECTED, "-N5", "--exclusive", "--gres=gpu:4")
    first = run.wait_up(1, 5)
    run.wait_watched(1)
    victim = first[3].node
    cluster.crash(victim)
    run.wait_output("DUE TO JOB REQUEUE")
    cluster.boot(victim)
    second = run.wait_up(2, 5, timeout=90)
    assert victim in {u.node for u in second}
    assert "code=0" in run.finish()
