"""A node of a GPU job crashes while the job has a spare."""

from __future__ import annotations

import re
import time

import pytest
from cluster import E2eCluster
from steps import Run, nodes

from hpresume.devcluster.lifecycle import slurm_version
from hpresume.slurm.nodeset import fold

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 6, "gpus_per_node": 4, "plugin": True}

PROTECTED = "srun --auto-resume=1 --gres=gpu:4 -N3 -n3 {rank}; echo code=$?"


def test_crash_of_a_node_with_a_spare(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    first = run.wait_up(1, 3)
    job = run.job_nodes()
    assert nodes(first)[0] == job[0]
    run.wait_watched(1)
    victim = first[2].node
    cluster.crash(victim)
    second = run.wait_up(2, 3)
    left = [n for n in job if n != victim]
    assert nodes(second) == left == run.job_nodes()
    assert {(u.node_list, u.master_node, u.master_addr) for u in second} == {
        (",".join(left), job[0], job[0])
    }
    assert len({u.master_port for u in second}) == 1
    assert second[0].master_port != first[0].master_port
    out = run.finish()
    assert "code=0" in out
    assert re.search(rf"^\[Auto Resume\] attempt 1 ended .* {victim} is lost", out, re.MULTILINE)
    assert [r["nodes"] for r in run.events("attempt")] == [nodes(first), left]
    assert run.events("fault")[0]["nodes"] == [victim]
    # The job kept its place: never requeued, and the dead node is out of it.
    shown = cluster.exec(["scontrol", "show", "job", str(run.job_id)], check=True).stdout
    assert "Restarts=0" in shown
    assert f" NodeList={fold(left)}\n" in shown
    assert not list(run.dir.glob("slurm_job_*"))


def test_two_nodes_crash_at_once(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(PROTECTED, "-N6", "--exclusive", "--gres=gpu:4")
    first, *victims = nodes(run.wait_up(1, 3))
    left = [n for n in run.job_nodes() if n not in victims]
    assert first == left[0]
    run.wait_watched(1)
    for victim in victims:
        cluster.crash(victim)
    # Both may be seen at once or one after the other; the training ends up on good nodes.
    run.wait(
        lambda: {u.node for u in run.ups() if u.attempt > 1} >= set(left[:3]),
        30,
        f"the step does not come back on {left[:3]}",
    )
    out = run.finish()
    assert "code=0" in out


def test_only_the_protected_of_two_steps_resumes(cluster: E2eCluster) -> None:
    run = Run(cluster)
    plain = Run(cluster)
    run.batch(
        f"RUN_DIR={plain.dir} srun --overlap --gres=gpu:0 -N3 -n3 {plain.rank_script}"
        " & first=$!\n"
        "srun --auto-resume=1 --overlap --gres=gpu:4 -N3 -n3 {rank}; echo protected=$?\n"
        "wait $first; echo plain=$?",
        "-N4", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    protected = nodes(run.wait_up(1, 3))
    plain.wait(lambda: len(plain.ups()) == 3, 20, "the plain step does not come up")
    run.wait_watched(1)
    # Slurm may start the second step on other nodes; of four, they share two at least.
    (*_, victim) = [n for n in protected if n in nodes(plain.ups())]
    assert victim != run.job_nodes()[0]
    cluster.crash(victim)
    assert victim not in nodes(run.wait_up(2, 3))
    run.stop()
    run.wait_output("protected=0")
    # The plain step lost a node with the protected one: it ends, as a failure, by itself.
    out = run.wait_end()
    assert len(plain.ups()) == 3  # never started again
    assert "plain=137" in out
    assert "is not protected: cancelled" in out


def test_a_later_step_has_the_first_node_too(cluster: E2eCluster) -> None:
    """Slurm 24.11 would start it behind the nodes of the step before."""
    run = Run(cluster)
    before = "srun -N3 -n3 true; srun -N2 -n2 true\n"
    run.batch(before + PROTECTED, "-N6", "--exclusive", "--gres=gpu:4")
    first = nodes(run.wait_up(1, 3))
    assert first[0] == run.job_nodes()[0]
    run.wait_watched(1)
    cluster.crash(first[1])
    assert nodes(run.wait_up(2, 3))[0] == first[0]
    assert "code=0" in run.finish()


def test_two_protected_steps_at_once_share_the_job(cluster: E2eCluster) -> None:
    """Both would have its first node; neither waits for the other's end."""
    one, other = Run(cluster), Run(cluster)
    step = "srun --auto-resume=1 --gres=gpu:4 -N3 -n3 {rank} &\n"
    one.batch(
        step + f"export RUN_DIR={other.dir}\n{step}wait", "-N6", "--exclusive", "--gres=gpu:4"
    )
    placed = [nodes(run.wait_up(1, 3)) for run in (one, other)]
    assert sorted(placed[0] + placed[1]) == one.job_nodes()
    one.wait(lambda: len(one.events("watched")) == 2, 20, "not both steps are watched")
    other.stop()
    one.finish()
    assert {up.attempt for run in (one, other) for up in run.ups()} == {1}


_DIES_WHEN_TOLD = """
die="$RUN_DIR/die$HPRESUME_ATTEMPT"
while [ ! -e "$die" ] && [ ! -e "$RUN_DIR/stop" ]; do sleep 0.1; done
[ ! -e "$die" ] || exit 3
"""


def test_a_step_on_scattered_nodes_of_a_gpu_job(cluster: E2eCluster) -> None:
    """Slurm loses count of the GPUs of a step's later nodes when an earlier one is dropped."""
    run = Run(cluster, HPRESUME_RESUME_ON="any", HPRESUME_BACKOFF="0")
    run.write("on_up.sh", _DIES_WHEN_TOLD)
    scattered = PROTECTED.replace("-N3", "-w n1,n2,n6 -N3")
    run.batch(scattered, "-N6", "--exclusive", "--gres=gpu:4")
    assert nodes(run.wait_up(1, 3)) == ["n1", "n2", "n6"]
    run.wait_watched(1)
    cluster.crash("n2")
    assert nodes(run.wait_up(2, 3)) == ["n1", "n3", "n6"]
    run.wait_watched(2)
    run.write("die2", "")
    assert nodes(run.wait_up(3, 3)) == ["n1", "n3", "n6"]
    assert "code=0" in run.finish()


def test_a_failing_node_is_left_when_the_step_fails(cluster: E2eCluster) -> None:
    """FAIL alone changes nothing; a failure after it is the node's."""
    run = Run(cluster)
    run.write("on_up.sh", _DIES_WHEN_TOLD)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    marked = nodes(run.wait_up(1, 3))[1]
    left = [n for n in run.job_nodes() if n != marked]
    run.wait_watched(1)
    cluster.exec(
        ["scontrol", "update", f"nodename={marked}", "state=fail", "reason=Action:Replace"],
        check=True,
    )
    assert run.ups(2) == []
    run.write("die1", "")
    second = run.wait_up(2, 3)
    assert nodes(second) == left
    out = run.finish()
    assert "code=0" in out
    assert f"{marked} was set to FAIL (Action:Replace" in out


def test_the_journal_and_the_output_say_what_happened(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    first = nodes(run.wait_up(1, 3))
    (spare,) = [n for n in run.job_nodes() if n not in first]
    out = run.wait_output("Slurm itself requeues")
    assert f"protecting the step on {','.join(first)}: heartbeat every 1 s, spare {spare}\n" in out
    assert "after the loss of a node the step goes on with a spare of the job" in out
    run.finish()
    assert [r["event"] for r in run.journal()] == ["attempt", "watched", "finished"]


_LEAVES_WHEN_TOLD = """
while [ ! -e "$RUN_DIR/leave$HPRESUME_ATTEMPT" ] && [ ! -e "$RUN_DIR/stop" ]; do sleep 0.05; done
exit 1
"""


def test_survivors_that_end_by_themselves_cost_no_time(cluster: E2eCluster) -> None:
    """slurmctld then keeps the old step, whose slurmstepd wait for that of the dead node."""
    run = Run(cluster)
    run.write("on_up.sh", _LEAVES_WHEN_TOLD)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    first = run.wait_up(1, 3)
    run.wait_watched(1)
    cluster.crash(first[2].node)
    crashed = time.time()
    run.write("leave1", "")
    second = run.wait_up(2, 3, timeout=40)
    assert first[2].node not in {u.node for u in second}
    # KillWait + 10 s, 15 s here and 40 s by default, is what it would cost else. Before 22.05
    # the old step keeps its GPUs for as long as the job runs, which is requeued then.
    assert max(u.t for u in second) - crashed < (14 if slurm_version() >= (22, 5) else 40)
    run.stop()
    run.wait_end()
