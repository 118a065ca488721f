"""A node is set to FAIL or DRAIN while the training on it is well."""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from steps import Run

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "plugin": True}

PROTECTED = "srun --auto-resume=1 --gres=gpu:4 -N3 -n3 {rank}; echo code=$?"

# A training that writes a checkpoint at SIGUSR1 and ends; others do not care for the signal.
_SAVES = """
trap 'sleep "${SAVES_FOR:-0}"; echo saved > "$RUN_DIR/saved.$SLURM_PROCID"; exit 0' USR1
"""
_TOUCHES = """
while [ ! -e "$RUN_DIR/stop" ]; do : > "$RUN_DIR/beat.$SLURM_PROCID"; sleep 0.2; done
"""
_DEAF = """
trap '' USR1
"""


def _mark(cluster: E2eCluster, node: str, state: str) -> None:
    cluster.exec(
        ["scontrol", "update", f"nodename={node}", f"state={state}", "reason=Action:Replace"],
        check=True,
    )


@pytest.mark.parametrize("state", ["fail", "drain"])
def test_the_step_saves_and_moves_off_the_node(cluster: E2eCluster, state: str) -> None:
    run = Run(cluster, HPRESUME_GRACE="USR1@60", HPRESUME_MAX_RESUMES="0", SAVES_FOR="4")
    # What writes a checkpoint touches no heartbeat file, and is no hang.
    run.environ |= {"HPRESUME_HANG_TIMEOUT": "2", "HPRESUME_HANG_GRACE": "60"}
    run.environ["HPRESUME_HEARTBEAT_FILE"] = str(run.dir / "beat.{rank}")
    run.write("on_up.sh", _SAVES + _TOUCHES)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    first = run.wait_up(1, 3)
    run.wait_watched(1)
    victim = first[1]
    _mark(cluster, victim.node, state)
    # max_resumes is 0: a departure is no failure and does not count.
    second = run.wait_up(2, 3, timeout=40)
    assert victim.node not in {u.node for u in second}
    assert len(list(run.dir.glob("saved.*"))) == 3
    out = run.finish()
    assert "SIGUSR1 is sent, the step leaves within 60 s" in out
    assert "code=0" in out
    (ended,) = run.events("ended")
    assert ended["left"] is True
    assert ended["without_progress"] == 0


def test_a_step_that_does_not_care_is_ended_when_the_time_is_over(cluster: E2eCluster) -> None:
    run = Run(cluster, HPRESUME_GRACE="USR1@3")
    run.write("on_up.sh", _DEAF)
    run.batch(PROTECTED, "-N4", "--exclusive", "--gres=gpu:4")
    first = run.wait_up(1, 3)
    run.wait_watched(1)
    _mark(cluster, first[2].node, "fail")
    second = run.wait_up(2, 3, timeout=40)
    assert first[2].node not in {u.node for u in second}
    assert min(u.t for u in second) - max(u.t for u in first) > 3
    assert "code=0" in run.finish()


def test_a_step_with_nowhere_to_go_stays(cluster: E2eCluster) -> None:
    run = Run(cluster, HPRESUME_GRACE="USR1@60", HPRESUME_LADDER="same,spare")
    run.write("on_up.sh", _SAVES)
    run.batch("srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?", "-N3", "--exclusive",
              "--gres=gpu:4")  # fmt: skip
    first = run.wait_up(1, 3)
    run.wait_watched(1)
    _mark(cluster, first[2].node, "fail")
    out = run.wait_output("the step stays: no way is left", timeout=30)
    assert "SIGUSR1 is sent" not in out
    assert not list(run.dir.glob("saved.*"))
    assert "code=0" in run.finish()
