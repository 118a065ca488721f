"""srun on its own, in a salloc shell, and with --jobid from outside."""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from steps import Run, nodes

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 5, "gpus_per_node": 4, "plugin": True}


def test_srun_on_its_own_gets_a_new_allocation(cluster: E2eCluster) -> None:
    run = Run(cluster)
    process = run.srun("--auto-resume=1", "-N3", "--exclusive", "--gres=gpu:4", "{rank}")
    victim = nodes(run.wait_up(1, 3))[2]
    run.wait_watched(1)
    old = cluster.jobs()
    cluster.crash(victim)
    assert victim not in nodes(run.wait_up(2, 3))
    assert cluster.jobs() != old
    run.stop()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == ""
    assert f"starting again in a new allocation without {victim}\n" in err


def test_srun_on_its_own_with_the_users_node_list(cluster: E2eCluster) -> None:
    run = Run(cluster)
    process = run.srun(
        "--auto-resume=1", "-N2", "-w", "n2,n3", "-x", "n1", "--gres=gpu:4", "{rank}"
    )
    run.wait_up(1, 2)
    run.wait_watched(1)
    cluster.crash("n3")
    second = run.wait_up(2, 2)
    assert nodes(second) in (["n2", "n4"], ["n2", "n5"])
    run.stop()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_salloc_even_its_first_node(cluster: E2eCluster) -> None:
    run = Run(cluster)
    process = cluster.popen(
        ["salloc", "-N4", "--exclusive", "--gres=gpu:4",
         "srun", "--auto-resume=1", "--gres=gpu:4", "-N3", "-n3", str(run.rank_script)],
        user="trainer", cwd=run.dir, env=run.environ,
    )  # fmt: skip
    first = run.wait_up(1, 3)
    (run.job_id,) = map(int, cluster.jobs())
    job = run.job_nodes()
    assert nodes(first)[0] == job[0]
    run.wait_watched(1)
    cluster.crash(job[0])
    second = run.wait_up(2, 3)
    assert nodes(second) == job[1:]
    assert {u.master_node for u in second} == {job[1]}
    run.stop()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_salloc_without_spare_says_so(cluster: E2eCluster) -> None:
    run = Run(cluster)
    process = cluster.popen(
        ["salloc", "-N3", "--exclusive", "--gres=gpu:4",
         "srun", "--auto-resume=1", "--gres=gpu:4", str(run.rank_script)],
        user="trainer", cwd=run.dir, env=run.environ,
    )  # fmt: skip
    first = run.wait_up(1, 3)
    run.wait_watched(1)
    cluster.crash(first[2].node)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "warning: after the loss of a node the step cannot go on" in err
    assert "not resumed: no way is left" in err


def test_jobid_from_outside_the_job(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch("while [ ! -e $RUN_DIR/release ]; do sleep 0.2; done", "-N4", "--exclusive",
              "--gres=gpu:4")  # fmt: skip
    run.wait(
        lambda: (
            "RUNNING" in cluster.exec(["squeue", "-h", "-j", str(run.job_id), "-o", "%T"]).stdout
        ),
        20,
        "the job does not start",
    )
    process = run.srun(
        f"--jobid={run.job_id}", "--auto-resume=1", "--gres=gpu:4", "-N3", "-n3", "{rank}"
    )
    first = nodes(run.wait_up(1, 3))
    job = run.job_nodes()
    assert first[0] == job[0]
    run.wait_watched(1)
    cluster.crash(first[2])
    assert nodes(run.wait_up(2, 3)) == [n for n in job if n != first[2]]
    run.stop()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    run.write("release", "")
    run.wait_end()
