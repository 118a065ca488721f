"""Losses at bad moments, with bad luck, or under options of the user's own."""

from __future__ import annotations

import re
import time

import pytest
from cluster import E2eCluster
from steps import Run
from watched import PROTECTED, Watched

pytestmark = pytest.mark.e2e

#: Without permission to expand jobs.
CLUSTER = {
    "nodes": 6,
    "gpus_per_node": 0,
    "plugin": True,
    "overrides": (("SchedulerParameters", "bf_interval=2,sched_interval=2,batch_sched_delay=0"),),
}

#: Host names of the job's nodes, to be cut into a list by more of the pipeline.
HOSTS = "scontrol show hostnames"


def test_in_the_first_second_of_the_step(cluster: E2eCluster) -> None:
    """Before the nodes are watched, or while the watch step comes up."""
    run = Run(cluster)
    run.batch(PROTECTED, "-N3", "--exclusive")
    first, second = (u.node for u in run.wait_up(1, 2))
    cluster.crash(second)
    again = {u.node for u in run.wait_up(2, 2)}
    assert first in again
    assert second not in again
    out = run.finish()
    assert "code=0" in out
    assert f"node failure: {second} is lost" in out


def test_of_the_next_node_while_the_first_loss_is_dealt_with(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(PROTECTED, "-N4", "--exclusive")
    first, second = (u.node for u in run.wait_up(1, 2))
    run.wait_watched(1)
    cluster.crash(second)
    out = run.wait_output("starting again on")
    third = re.search(rf"starting again on {first},(\w+)", out)[1]
    cluster.crash(third)

    def both_up(attempt: int) -> bool:
        nodes = {u.node for u in run.ups(attempt)}
        return len(nodes) == 2 and nodes.isdisjoint({second, third})

    run.wait(lambda: both_up(2) or both_up(3), 60, "the step does not come back")
    # Slurm until 24.05 lets only one node leave a job: the job may complete for long.
    run.stop()
    run.wait_output("code=0")


def test_of_a_slurmd_before_the_step_is_launched(cluster: E2eCluster) -> None:
    """Its kernel answers, and slurmctld has not missed it yet: srun cannot launch there."""
    run = Run(cluster)
    go = run.dir / "go"
    run.batch(f"until test -e {go}; do sleep 0.1; done\n{PROTECTED}", "-N3", "--exclusive")
    run.wait(lambda: len(run.job_nodes()) == 3, 30, "the job does not start")
    first, second, third = run.job_nodes()
    cluster.exec(["pkill", "-KILL", "-x", "slurmd"], second, check=True)
    run.write("go", "")
    assert {u.node for u in run.wait_up(2, 2, 60)} == {first, third}
    out = run.finish()
    assert "code=0" in out
    assert f"node failure: {second} is lost: never heard, slurmd's port: Connection refused" in out


def test_of_a_slurmd_that_the_training_fails_after(cluster: E2eCluster) -> None:
    """What runs goes on without it, its heartbeat too; a new attempt could not start there."""
    run = Run(cluster)
    go = run.dir / "go"
    run.write(
        "on_up.sh",
        f'[ "$HPRESUME_ATTEMPT" = 2 ] || {{ until test -e {go}; do sleep 0.1; done; exit 7; }}',
    )
    run.batch(PROTECTED, "-N3", "--exclusive")
    first, second = (u.node for u in run.wait_up(1, 2))
    run.wait_watched(1)
    cluster.exec(["pkill", "-KILL", "-x", "slurmd"], second, check=True)
    run.write("go", "")
    (third,) = {u.node for u in run.wait_up(2, 2)} - {first}
    assert third != second
    out = run.finish()
    assert "code=0" in out
    assert f"node failure: {second} runs no slurmd: its port: Connection refused" in out


def test_without_any_way_to_go_on(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(PROTECTED, "-N2", "--exclusive", "--no-requeue")
    first, second = (u.node for u in run.wait_up(1, 2))
    run.wait_watched(1)
    lost = time.time()
    cluster.crash(second)
    out = run.wait_output("code=")
    assert time.time() - lost < 25  # and not SlurmdTimeout, 300 s
    assert re.search(r"^code=([1-9]\d*)$", out, re.MULTILINE)
    assert out.count("warning: after the loss of a node the step cannot go on: ") == 1
    assert (
        out.count(f"warning: the loss of {first}, which runs the batch script, ends the job") == 1
    )
    given_up = re.search(
        r"^\[Auto Resume\] not resumed: no way is left \((.*)\); exit code 137$", out, re.M
    )
    assert "spare: 1 good nodes in the job, 2 needed" in given_up[1]
    assert "grow: SchedulerParameters lacks permit_job_expansion" in given_up[1]
    assert "requeue: the job was submitted with --no-requeue" in given_up[1]
    assert {u.attempt for u in run.ups()} == {1}


def test_with_a_journal_that_cannot_be_written(cluster: E2eCluster) -> None:
    out = Watched.started(cluster, HPRESUME_JOURNAL_DIR="/proc/journals").survives()
    assert out.count("warning: /proc/journals/") == 1


def test_with_a_requeue_and_a_journal_that_cannot_be_written(cluster: E2eCluster) -> None:
    run = Run(cluster, HPRESUME_JOURNAL_DIR="/proc/journals")
    run.batch(PROTECTED, "-N2", "--exclusive")
    _, second = (u.node for u in run.wait_up(1, 2))
    run.wait_output("after the loss of a node the job is requeued")
    cluster.crash(second)
    run.wait(lambda: len(run.ups()) == 4, 60, "the job does not run again")
    assert second not in {u.node for u in run.ups()[2:]}
    assert "code=0" in run.finish()


def test_with_a_spare_that_the_user_excluded(cluster: E2eCluster) -> None:
    run = Run(cluster)
    excluded = f'-x "$({HOSTS} | tail -n1)"'
    run.batch(PROTECTED.replace("-N2", f"{excluded} -N2"), "-N3", "--exclusive", "--no-requeue")
    first, second = (u.node for u in run.wait_up(1, 2))
    run.wait_watched(1)
    cluster.crash(second)
    out = run.wait_output("code=")
    assert "code=137" in out
    assert ", spare" not in out
    assert "spare: 1 good nodes in the job, 2 needed" in out
    assert {u.node for u in run.ups()} == {first, second}


def test_with_nodes_named_output_in_a_file_and_several_programs(cluster: E2eCluster) -> None:
    """What the first attempt wrote is still there, and the second one writes as the first."""
    named = f'-w "$({HOSTS} | head -n2 | paste -sd,)"'
    options = f"{named} --output=log%j --label -N2 -n2 --multi-prog programs"
    run = Watched(cluster)
    run.write("programs", f"0 {run.rank_script} zero\n1 {run.rank_script} one\n")
    run.write("on_up.sh", 'echo "attempt $HPRESUME_ATTEMPT of $1, rank $SLURM_PROCID"\n')
    run.start(f"srun --auto-resume=1 {options}; echo code=$?")
    run.survives()
    written = run.output(f"log{run.job_id}").splitlines()
    assert sorted(line for line in written if re.match(r"\d: ", line)) == [
        "0: attempt 1 of zero, rank 0",
        "0: attempt 2 of zero, rank 0",
        "1: attempt 1 of one, rank 1",
        "1: attempt 2 of one, rank 1",
    ]
