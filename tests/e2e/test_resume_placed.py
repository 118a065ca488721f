"""Steps that the user has placed, or that something keeps from being anywhere."""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from steps import Run, nodes

pytestmark = pytest.mark.e2e

#: With GPUs, so that a job without a spare is requeued; a shell of salloc runs on its first node.
CLUSTER = {
    "nodes": 5,
    "gpus_per_node": 4,
    "plugin": True,
    "overrides": (("LaunchParameters", "use_interactive_step"),),
}

GPU_JOB = ("--exclusive", "--gres=gpu:4")


def test_relative_to_the_nodes_of_the_job(cluster: E2eCluster) -> None:
    """srun takes no -r beside the nodes that are named for the second attempt."""
    run = Run(cluster)
    run.batch("srun --auto-resume=1 -N2 -n2 -lr1 {rank}; echo code=$?", "-N4", *GPU_JOB)
    first = nodes(run.wait_up(1, 2))
    job = run.job_nodes()
    assert first == job[1:3]
    run.wait_watched(1)
    cluster.crash(first[1])
    assert nodes(run.wait_up(2, 2)) == [job[0], job[1]]
    assert "code=0" in run.finish()


def test_a_node_for_every_task_from_a_file(cluster: E2eCluster) -> None:
    """The tasks of the lost node move together."""
    run = Run(cluster)
    script = """
        scontrol show hostnames | sed -n '2p;3p;3p' >hosts
        SLURM_HOSTFILE=hosts srun --auto-resume=1 -n3 {rank}; echo code=$?"""
    run.batch(script, "-N4", *GPU_JOB)
    first = nodes(run.wait_up(1, 3))
    job = run.job_nodes()
    assert first == [job[1], job[2], job[2]]
    run.wait_watched(1)
    cluster.crash(job[2])
    assert nodes(run.wait_up(2, 3)) == [job[1], job[0], job[0]]
    assert "code=0" in run.finish()


def test_nodes_named_by_the_user_after_a_requeue(cluster: E2eCluster) -> None:
    run = Run(cluster)
    script = """
        [ -e hosts ] || scontrol show hostnames >hosts
        srun --auto-resume=1 -w ./hosts {rank}; echo code=$?"""
    run.batch(script, "-N3", *GPU_JOB)
    first = nodes(run.wait_up(1, 3))
    run.wait_watched(1)
    cluster.crash(first[2])
    second = nodes(run.wait_up(2, 3, 60))
    assert first[2] not in second
    assert second == run.job_nodes()
    assert "code=0" in run.finish()


def test_a_spare_on_which_nothing_runs_is_taken_first(cluster: E2eCluster) -> None:
    """On another one the step would wait for the end of what runs there."""
    run, other = Run(cluster), Run(cluster)
    script = f"""
        RUN_DIR={other.dir} srun -N2 -n2 {other.rank_script} &
        until [ -e {other.dir}/ranks ]; do sleep 0.1; done
        srun --auto-resume=1 -N2 -n2 {{rank}}; echo code=$?; wait"""
    run.batch(script, "-N5", *GPU_JOB)
    first = nodes(run.wait_up(1, 2))
    job = run.job_nodes()
    busy = nodes(other.wait_up(0, 2))
    (spare,) = set(job) - set(first) - set(busy)
    assert f", spare {spare}\n" in run.wait_output(", spare ")
    cluster.crash(first[1])
    assert nodes(run.wait_up(2, 2)) == [first[0], spare]
    other.stop()
    assert "code=0" in run.finish()


def test_srun_on_its_own_keeps_its_size_without_the_users_node(cluster: E2eCluster) -> None:
    """-w alone says how many nodes there are to be."""
    run = Run(cluster)
    process = run.srun("--auto-resume=1", "-w", "n2,n3", "{rank}")
    assert nodes(run.wait_up(1, 2)) == ["n2", "n3"]
    run.wait_watched(1)
    cluster.crash("n3")
    second = nodes(run.wait_up(2, 2))
    assert second[0] == "n2" or second[1] == "n2"
    assert "n3" not in second
    run.stop()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_srun_on_its_own_that_needs_every_node(cluster: E2eCluster) -> None:
    """Slurm would refuse an allocation without the lost one."""
    run = Run(cluster)
    process = run.srun("--auto-resume=1", "-N5", "{rank}", stderr=(run.dir / "out").open("w"))
    run.wait_up(1, 5)
    run.wait_watched(1)
    cluster.crash("n3")
    run.wait_output("partition main is too small without n3: waiting for it")
    run.wait_output("queued and waiting for resources")
    cluster.boot("n3")
    assert nodes(run.wait_up(2, 5, 60)) == ["n1", "n2", "n3", "n4", "n5"]
    run.stop()
    assert process.wait(timeout=60) == 0, run.output()


def test_a_shell_on_a_node_of_its_own_job(cluster: E2eCluster) -> None:
    """The node that is marked runs the shell and the supervisor: it must not leave the job."""
    run = Run(cluster)
    run.write("on_up.sh", 'until [ -e "$RUN_DIR/go" ]; do sleep 0.1; done\n'
              '[ "$HPRESUME_ATTEMPT" != 1 ] || exit 9\n')  # fmt: skip
    command = f"srun --auto-resume=1 -N2 -n2 {run.rank_script}; echo code=$?"
    process = cluster.popen(
        ["salloc", "-N3", *GPU_JOB, "srun", "--interactive", "bash", "-c", command],
        user="trainer", cwd=run.dir, env=run.environ, stderr=(run.dir / "out").open("w"),
    )  # fmt: skip
    here, other = nodes(run.wait_up(1, 2))
    run.wait_output(f"warning: the loss of {here}, on which this srun runs, ends the step")
    cluster.exec(
        ["scontrol", "update", f"nodename={here}", "state=fail", "reason=test"], check=True
    )
    run.write("go", "")
    assert here not in nodes(run.wait_up(2, 2))
    run.stop()
    out, _ = process.communicate(timeout=60)
    assert "code=0" in out, run.output()
    assert other in run.output()


def test_a_step_around_this_one_is_not_cancelled(cluster: E2eCluster) -> None:
    """It loses a node too, and nobody protects it; but this srun would end with it."""
    run = Run(cluster)
    outer = run.write(
        "outer.sh",
        "#!/bin/bash\n[ $SLURM_PROCID = 0 ] || exec sleep 600\n"
        f"srun --auto-resume=1 --overlap -N2 -n2 {run.rank_script}; echo code=$?\n",
    )
    run.batch(f"srun -N3 -n3 {outer}", "-N3", *GPU_JOB)
    first = nodes(run.wait_up(1, 2))
    third = (set(run.job_nodes()) - set(first)).pop()
    run.wait_watched(1)
    cluster.crash(first[1])
    assert nodes(run.wait_up(2, 2)) == [first[0], third]
    run.stop()
    assert "in which this srun runs, has lost its task there too" in run.wait_output("code=0")
