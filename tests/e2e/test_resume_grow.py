"""Jobs that change their size more than once: shrink and grow, five crashes in a row.

With accounting: until 24.05 Slurm changes the size of a job only once without slurmdbd.
"""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from steps import Run, nodes

from hpresume.slurm.nodeset import fold

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 8, "gpus_per_node": 0, "accounting": True, "plugin": True}

WHOLE_JOB = "srun --auto-resume=1 {rank}; echo code=$?"


def test_job_without_gpus_shrinks_and_grows(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(WHOLE_JOB, "-N3", "--exclusive")
    first = nodes(run.wait_up(1, 3))
    out = run.wait_output("Slurm itself requeues")
    assert "after the loss of a node the step goes on with a new node, merged into the job" in out
    run.wait_watched(1)
    cluster.crash(first[1])
    second = run.wait_up(2, 3, timeout=40)
    (new,) = {*nodes(second)} - {*first}
    grown = sorted([first[0], first[2], new])
    assert nodes(second) == grown == run.job_nodes()
    listed = ",".join(grown)
    assert {(u.node_list, u.job_nodelist) for u in second} == {(listed, listed)}
    out = run.finish()
    assert f"{new} merged into job" in out
    assert "code=0" in out
    shown = cluster.exec(["scontrol", "show", "job", str(run.job_id)], check=True).stdout
    assert "Restarts=0" in shown
    assert f" NodeList={fold(grown)}\n" in shown
    assert cluster.jobs() == []  # no donor is left
    assert not list(run.dir.glob("slurm_job_*"))


def test_no_node_is_free(cluster: E2eCluster) -> None:
    """Growing waits for its limit, cleans up after itself, and the job is requeued."""
    other = Run(cluster)
    other.batch("srun {rank}", "-N5", "--exclusive")
    other.wait_up(0, 5)
    run = Run(cluster, HPRESUME_GROW_TIMEOUT="3")
    run.batch(WHOLE_JOB, "-N3", "--exclusive")
    first = run.wait_up(1, 3)
    run.wait_watched(1)
    cluster.crash(first[2].node)
    out = run.wait_output("requeueing the job", timeout=40)
    assert "that failed" in out
    other.finish()
    second = run.wait_up(2, 3, timeout=60)
    assert first[2].node not in {u.node for u in second}
    assert "code=0" in run.finish()
    assert cluster.jobs() == []


def test_five_crashes_in_a_row_in_one_job(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch("srun --auto-resume=1 -N3 -n3 {rank}; echo code=$?", "-N8", "--exclusive")
    job, victims = [f"n{i}" for i in range(1, 9)], []
    for attempt in range(1, 6):
        up = nodes(run.wait_up(attempt, 3, timeout=40))
        assert up[0] == job[0]
        run.wait_watched(attempt)
        victims.append(up[2] if attempt == 1 else up[1])
        cluster.crash(victims[-1])
    last = run.wait_up(6, 3, timeout=40)
    assert nodes(last) == [n for n in job if n not in victims] == run.job_nodes()
    assert {u.master_node for u in run.ups()[3:]} == {job[0]}
    assert len({u.master_port for u in run.ups()}) == 6
    out = run.finish()
    assert "code=0" in out
    assert [n for r in run.events("fault") for n in r["nodes"]] == victims
    shown = cluster.exec(["scontrol", "show", "job", str(run.job_id)], check=True).stdout
    assert "Restarts=0" in shown
