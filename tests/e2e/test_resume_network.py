"""A node that is cut off and comes back does not disturb the attempt that replaced it."""

from __future__ import annotations

import subprocess
import time

import pytest
from cluster import E2eCluster
from steps import Run

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "plugin": True}

PROTECTED = "srun --auto-resume=1 --gres=gpu:4 -N3 -n3 {rank}; echo code=$?"

# Each rank writes into a "checkpoint" of its own attempt, ten times a second.
# By a rename: a rank that is killed between opening and writing would leave nothing behind.
_WRITING = """
written="$RUN_DIR/written.$HPRESUME_ATTEMPT.$SLURM_PROCID"
while [ ! -e "$RUN_DIR/stop" ]; do
    date +%s.%N > "$written.new"
    mv "$written.new" "$written"
    sleep 0.1
done
"""


def _written(run: Run, attempt: int, rank: int) -> float:
    text = run.output(f"written.{attempt}.{rank}").strip()
    return float(text) if text else 0.0


def test_a_node_that_was_cut_off_returns(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.write("on_up.sh", _WRITING)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    first = run.wait_up(1, 3)
    run.wait_watched(1)
    victim = first[2]
    cluster.disconnect(victim.node)
    second = run.wait_up(2, 3)
    assert victim.node not in {u.node for u in second}
    # Cut off, the old rank lives on: nobody can reach it.
    before = _written(run, 1, victim.rank)
    run.wait(
        lambda: _written(run, 1, victim.rank) > max(u.t for u in second),
        10,
        "the old rank was expected to live on while its node is cut off",
    )
    assert before > 0
    cluster.reconnect(victim.node)
    returned = time.time()
    # The link's return ends it: its srun is gone.
    run.wait(
        lambda: time.time() - _written(run, 1, victim.rank) > 3,
        60,
        "the old rank still writes",
    )
    assert _written(run, 1, victim.rank) - returned < 5
    assert _written(run, 2, 0) > returned
    out = run.finish()
    assert "code=0" in out
    assert {u.attempt for u in run.ups()} == {1, 2}


@pytest.mark.parametrize("way", ["replace", "regrow"])
def test_ranks_on_a_node_that_stayed_in_the_job_end_when_it_is_back(
    cluster: E2eCluster, way: str
) -> None:
    """It was no crash, so the ranks live; silent ones would do so until the end of the job.

    For some seconds the kernel of srun's host would still tell them that srun is gone.
    """
    run = Run(cluster, HPRESUME_REPLACE_TIMEOUT="60" if way == "replace" else "0")
    if way == "regrow":
        run.environ |= {"HPRESUME_MIN_NODES": "2", "HPRESUME_REGROW": "1"}
        run.environ["HPRESUME_CHECKPOINT"] = str(run.dir)
    run.write("on_up.sh", _WRITING)
    run.batch("srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?", "-N3", "--exclusive",
              "--gres=gpu:4")  # fmt: skip
    victim = run.wait_up(1, 3)[2]
    run.wait_watched(1)
    cluster.disconnect(victim.node)
    if way == "replace":
        run.wait_output("waiting up to 60 s")
    else:
        run.wait_up(2, 2)
    cut = time.time()
    run.wait(lambda: _written(run, 1, victim.rank) > cut + 10, 20, "the old rank does not live")
    returned = time.time()
    cluster.reconnect(victim.node)
    # Or slurmctld takes up to a third of SlurmdTimeout to find it again.
    cluster.restart_daemon("slurmd", victim.node)
    run.wait_output(f"{victim.node} is back, and healthy", timeout=40)
    last = _written(run, 1, victim.rank)
    if way == "replace":
        assert min(u.t for u in run.wait_up(2, 3)) > last
    assert last < returned + 20
    written = _written(run, 2, 0)
    run.wait(lambda: _written(run, 2, 0) > written + 2, 20, "the new attempt does not write")
    assert _written(run, 1, victim.rank) == last
    assert "code=0" in run.finish()


def test_the_only_other_node_is_cut_off_for_a_moment(cluster: E2eCluster) -> None:
    """A gap shorter than the limit is none of our business."""
    run = Run(cluster, HPRESUME_HEARTBEAT_TIMEOUT="20")
    run.batch("srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?", "-N2", "--exclusive",
              "--gres=gpu:4")  # fmt: skip
    first = run.wait_up(1, 2)
    out = run.wait_output("protecting the step")
    run.wait_watched(1)
    cluster.disconnect(first[1].node)
    # Four beats are missed …
    gone = time.monotonic()
    run.wait(lambda: time.monotonic() - gone > 4, 10, "time stands still")
    cluster.reconnect(first[1].node)
    out = run.finish()
    assert "code=0" in out
    assert "lost" not in out
    assert not run.ups(2)


def _sentinels(cluster: E2eCluster, run: Run, node: str) -> list[subprocess.Popen[bytes]]:
    """Processes of the same user on the same node that are none of the step's."""
    other = {"SLURM_JOB_ID": str(run.job_id), "SLURM_STEP_ID": "77"}
    command = ["sleep", "600.5"]
    return [cluster.popen(command, node, user="trainer", env=env) for env in ({}, other)]


def _running(cluster: E2eCluster, node: str, pattern: str) -> int:
    found = cluster.exec(["pgrep", "-u", "trainer", "-f", pattern], node)
    return len(found.stdout.split())


def test_a_node_that_is_cut_off_ends_its_ranks_before_the_next_attempt(
    cluster: E2eCluster,
) -> None:
    run = Run(cluster, HPRESUME_FENCE_TIMEOUT="5")
    run.write("on_up.sh", _WRITING)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    victim = run.wait_up(1, 3)[2]
    run.wait_watched(1)
    sentinels = _sentinels(cluster, run, victim.node)
    # Every agent has its lease once it beats, which is when the watch step has come up.
    run.wait(lambda: _running(cluster, victim.node, "resume/agent.py") == 1, 10, "no agent")
    written = _written(run, 1, victim.rank)
    run.wait(lambda: _written(run, 1, victim.rank) > written + 2, 10, "the rank does not write")
    cluster.disconnect(victim.node)
    cut = time.time()
    second = run.wait_up(2, 3)
    assert victim.node not in {u.node for u in second}
    last = _written(run, 1, victim.rank)
    # It went on writing to the storage that it still reached, until its lease was over.
    assert cut + 3 < last < cut + 8
    assert last < min(u.t for u in second)
    assert _running(cluster, victim.node, "rank.sh") == 0
    assert _running(cluster, victim.node, "sleep 600.5") == len(sentinels)
    out = run.finish()
    assert _written(run, 1, victim.rank) == last
    assert "then the ranks on what was lost have ended themselves" in out
    assert "code=0" in out
    for sentinel in sentinels:
        sentinel.kill()
        sentinel.wait()


def test_nobody_is_fenced_while_the_supervisor_is_only_stopped(cluster: E2eCluster) -> None:
    run = Run(cluster, HPRESUME_FENCE_TIMEOUT="5")
    run.write("on_up.sh", _WRITING)
    run.batch("srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?", "-N2", "--exclusive",
              "--gres=gpu:4")  # fmt: skip
    first = run.wait_up(1, 2)
    run.wait_watched(1)
    run.wait(
        lambda: all(_running(cluster, u.node, "resume/agent.py") for u in first), 10, "no agents"
    )
    stopped = time.time()
    cluster.exec(["pkill", "-STOP", "-u", "trainer", "-f", "hpresume"], first[0].node, check=True)
    run.wait(lambda: _written(run, 1, 1) > stopped + 13, 30, "a rank does not write any more")
    cluster.exec(["pkill", "-CONT", "-u", "trainer", "-f", "hpresume"], first[0].node, check=True)
    out = run.finish()
    assert "code=0" in out
    assert not run.ups(2)


def test_everybody_was_cut_off_from_the_supervisor(cluster: E2eCluster) -> None:
    """It could ask nobody, so it decided nothing; what has ended itself is started again."""
    run = Run(cluster, HPRESUME_FENCE_TIMEOUT="5")
    run.write("on_up.sh", _WRITING)
    run.batch("srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?", "-N3", "--exclusive",
              "--gres=gpu:4")  # fmt: skip
    first = run.wait_up(1, 3)
    run.wait_watched(1)
    written = _written(run, 1, 2)
    run.wait(lambda: _written(run, 1, 2) > written + 2, 10, "the rank does not write")
    cluster.disconnect(first[0].node)
    cut = time.time()
    for up in first[1:]:
        run.wait(
            lambda node=up.node: _running(cluster, node, "rank.sh") == 0, 15, "the rank lives on"
        )
    assert _written(run, 1, 0) > cut + 4  # beside its supervisor, nobody is cut off
    cluster.reconnect(first[0].node)
    second = run.wait_up(2, 3, timeout=40)
    assert [u.node for u in second] == [u.node for u in first]
    out = run.finish()
    assert "was cut off for 5 s and ended its tasks" in out
    assert "code=0" in out
    (ended,) = run.events("ended")
    assert ended["cause"] == "node failure"
