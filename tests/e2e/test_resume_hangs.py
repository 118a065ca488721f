"""Failures that kill nothing: a frozen rank, a frozen node."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cluster import E2eCluster
from steps import Run, nodes

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "plugin": True}

PROTECTED = "srun --auto-resume=1 --gres=gpu:4 -N3 -n3 {rank}; echo code=$?"

# Each rank touches its file every 0.2 s; rank 1 of the first attempt stops doing so when it is
# told, as a process that is frozen would.
_TOUCHING = """
while [ ! -e "$RUN_DIR/stop" ]; do
    : > "$RUN_DIR/beat.$SLURM_PROCID"
    if [ "$HPRESUME_ATTEMPT.$SLURM_PROCID" = 1.1 ] && [ -e "$RUN_DIR/freeze" ]; then
        kill -STOP $$
    fi
    sleep 0.2
done
"""


_TALKING = """
while [ ! -e "$RUN_DIR/stop" ]; do
    [ -e "$RUN_DIR/hush" ] && [ "$HPRESUME_ATTEMPT" = 1 ] || echo still here
    sleep 0.5
done
"""


def test_a_stopped_rank_is_named_and_the_step_starts_again(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.environ |= {
        "HPRESUME_HEARTBEAT_FILE": str(run.dir / "beat.{rank}"),
        "HPRESUME_HANG_TIMEOUT": "3",
        "HPRESUME_HANG_GRACE": "10",
    }
    run.write("on_up.sh", _TOUCHING)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    first = nodes(run.wait_up(1, 3))
    run.wait_watched(1)
    beat, watched = run.dir / "beat.1", time.time()
    # Until every node's agent has told of it: a file that one node alone sees is that node's.
    run.wait(
        lambda: beat.exists() and beat.stat().st_mtime > watched + 2.5,
        10,
        "rank 1 does not touch its file",
    )
    run.write("freeze", "")
    frozen = time.time()
    second = run.wait_up(2, 3, timeout=40)
    assert nodes(second) == first
    assert min(u.t for u in second) > frozen + 3
    out = run.finish()
    assert "hang: rank 1 silent for" in out
    assert "code=0" in out
    (ended,) = run.events("ended")
    assert ended["cause"] == "hang"
    (stacks,) = (cluster.home() / ".local/state/hpresume").glob("*/*.step0.attempt1.stacks.txt")
    text = Path(stacks).read_text()
    for rank in range(3):
        assert f"rank {rank} on {first[rank]}" in text
    assert "state T (stopped)" in text


def test_silence_on_the_output_is_a_hang(cluster: E2eCluster) -> None:
    """The ranks of this training print now and then, until they are told to be silent."""
    run = Run(cluster, HPRESUME_OUTPUT_TIMEOUT="4", HPRESUME_HANG_GRACE="0")
    run.write("on_up.sh", _TALKING)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    run.wait_up(1, 3)
    run.wait_watched(1)
    run.wait_output("still here")
    run.write("hush", "")
    run.wait_up(2, 3, timeout=40)
    out = run.finish()
    assert "hang: no output for" in out
    assert "code=0" in out


def test_nobody_hangs_while_all_ranks_touch_their_files(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.environ |= {
        "HPRESUME_HEARTBEAT_FILE": str(run.dir / "beat.{rank}"),
        "HPRESUME_HANG_TIMEOUT": "3",
        "HPRESUME_HANG_GRACE": "0",
    }
    run.write("on_up.sh", _TOUCHING)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    run.wait_up(1, 3)
    run.wait_watched(1)
    beat = run.dir / "beat.0"
    run.wait(beat.exists, 10, "rank 0 does not touch its file")
    first = beat.stat().st_mtime
    cluster.restart_daemon("slurmctld")
    run.wait(lambda: beat.stat().st_mtime > first + 8, 30, "rank 0 stopped touching its file")
    out = run.finish()
    assert "code=0" in out
    assert "taken for a hang: a rank that is silent for 3 s\n" in out
    assert "ended after" not in out
    assert "hangs" not in out
    assert not run.ups(2)


def test_a_frozen_node_is_left_for_a_spare(cluster: E2eCluster) -> None:
    run = Run(cluster, HPRESUME_FROZEN_TIMEOUT="4")
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    victim = nodes(run.wait_up(1, 3))[2]
    left = [n for n in run.job_nodes() if n != victim]
    run.wait_watched(1)
    cluster.hang(victim)
    assert nodes(run.wait_up(2, 3, timeout=40)) == left
    cluster.thaw(victim)
    # The old rank dies with its node's return: nobody of attempt 1 is left to write anything.
    run.wait(
        lambda: not any("rank.sh" in _command(p) for p in cluster.pids_on(victim)),
        20,
        "the old rank lives on",
    )
    out = run.finish()
    assert f"{victim} is frozen: " in out
    assert "code=0" in out


# Ranks other than 0 end at once; rank 0 touches its file and prints into srun's own file.
_EARLY = """
[ "$SLURM_PROCID" = 0 ] || exit 0
while [ ! -e "$RUN_DIR/stop" ]; do : > "$RUN_DIR/beat.0"; echo step; sleep 0.2; done
"""


def test_ranks_that_have_ended_and_output_in_sruns_own_file_are_no_hang(
    cluster: E2eCluster,
) -> None:
    run = Run(cluster, HPRESUME_HANG_GRACE="0", HPRESUME_HANG_TIMEOUT="2")
    run.environ |= {
        "HPRESUME_HEARTBEAT_FILE": str(run.dir / "beat.{rank}"),
        "HPRESUME_OUTPUT_TIMEOUT": "2",
    }
    run.write("on_up.sh", _EARLY)
    run.batch(PROTECTED.replace("{rank}", "-o step.out {rank}"), "-N4", "--exclusive",
              "--gres=gpu:4")  # fmt: skip
    run.wait_output("ranks 1, 2 ended; no heartbeat is expected there any more")
    beat, told = run.dir / "beat.0", time.time()
    run.wait(lambda: beat.stat().st_mtime > told + 4, 20, "rank 0 does not go on")
    out = run.finish()
    assert "ended after" not in out
    assert "code=0" in out


# Rank 0 goes on only while rank 1 does, as in a collective operation.
_TOGETHER = """
while [ ! -e "$RUN_DIR/stop" ]; do
    : > "/tmp/beat-$SLURM_JOB_ID.$SLURM_PROCID"
    mine="$RUN_DIR/at.$HPRESUME_ATTEMPT.$SLURM_PROCID"
    date +%s > "$mine.new" && mv "$mine.new" "$mine"
    other="$RUN_DIR/at.$HPRESUME_ATTEMPT.1"
    until [ -e "$RUN_DIR/stop" ] ||
        [ "$(($(date +%s) - $(cat "$other" 2> /dev/null || date +%s)))" -lt 2 ]; do sleep 0.2; done
    sleep 0.2
done
"""


def test_a_training_that_waits_for_a_frozen_node_leaves_it(cluster: E2eCluster) -> None:
    """With heartbeat files alone: ranks of the frozen node cannot be seen any more."""
    run = Run(cluster, HPRESUME_HANG_GRACE="10", HPRESUME_HANG_TIMEOUT="4")
    run.write("on_up.sh", _TOGETHER)
    body = "export HPRESUME_HEARTBEAT_FILE=/tmp/beat-$SLURM_JOB_ID.{{rank}}\n" + PROTECTED
    run.batch(body, "-N4", "--exclusive", "--gres=gpu:4")
    victim = nodes(run.wait_up(1, 3))[1]
    left = [n for n in run.job_nodes() if n != victim]
    run.wait_watched(1)
    run.wait(lambda: (run.dir / "at.1.2").exists(), 10, "the ranks do not begin")
    cluster.hang(victim)
    assert nodes(run.wait_up(2, 3, timeout=40)) == left
    cluster.thaw(victim)
    out = run.finish()
    assert f"node failure: {victim} is frozen: " in out
    assert "code=0" in out


def test_an_agent_that_is_killed_is_no_frozen_node(cluster: E2eCluster) -> None:
    run = Run(cluster, HPRESUME_FROZEN_TIMEOUT="4")
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    victim = nodes(run.wait_up(1, 3))[1]
    run.wait_watched(1)
    agents = ["pgrep", "-u", "trainer", "-f", "^[^ ]*python[^ ]* .*resume/agent.py"]
    run.wait(lambda: bool(cluster.exec(agents, victim).stdout), 20, "there is no agent")
    (old,) = cluster.exec(agents, victim).stdout.split()
    cluster.exec(["kill", "-KILL", old], victim, check=True)
    run.wait_output("the watch step ended (srun: error: ")
    run.wait(
        lambda: cluster.exec(agents, victim).stdout.split() not in ([], [old]), 20, "no new agent"
    )
    out = run.finish()
    assert "is frozen" not in out
    assert not run.ups(2)
    assert "code=0" in out


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
