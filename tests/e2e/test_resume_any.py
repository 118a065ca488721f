"""resume_on = "any": failures of the application are resumed, within the limits."""

from __future__ import annotations

import re

import pytest
from cluster import E2eCluster
from steps import Run

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 4, "gpus_per_node": 0, "plugin": True}

PROTECTED = "srun --auto-resume=1 -N2 -n2 {rank}; echo code=$?"

#: Ends a rank with a code in the attempts before ``GOOD_ATTEMPT``.
FAIL = '[ "$HPRESUME_ATTEMPT" -ge "$GOOD_ATTEMPT" ] || exit 3\n'

#: The same, once the attempt is watched, which the journal in the trainer's home tells.
FAIL_LATER = (
    '[ "$HPRESUME_ATTEMPT" -ge "$GOOD_ATTEMPT" ] ||'
    ' until grep -qs watched ~/.local/state/hpresume/*/"$SLURM_JOB_ID".jsonl; do sleep 0.1; done\n'
    + FAIL
)


def eager(cluster: E2eCluster, on_up: str, *, good_attempt: int = 99, **settings: str) -> Run:
    """A run whose ranks do ``on_up`` and which is resumed after every failure."""
    environ = {f"HPRESUME_{name.upper()}": value for name, value in settings.items()}
    run = Run(
        cluster,
        GOOD_ATTEMPT=str(good_attempt),
        **({"HPRESUME_RESUME_ON": "any", "HPRESUME_BACKOFF": "0.1"} | environ),
    )
    run.write("on_up.sh", on_up)
    return run


def said(run: Run, pattern: str) -> list[str]:
    return re.findall(rf"^\[Auto Resume\] {pattern}", run.output(), re.MULTILINE)


@pytest.mark.parametrize("on_up", [FAIL, FAIL_LATER], ids=["at once", "later"])
def test_a_failure_is_resumed_on_the_same_nodes(cluster: E2eCluster, on_up: str) -> None:
    run = eager(cluster, on_up, good_attempt=2)
    run.batch(PROTECTED, "-N2", "--exclusive")
    run.wait_up(1, 2)
    assert [u.node for u in run.wait_up(2, 2)] == ["n1", "n2"]
    run.wait_watched(2)
    out = run.finish()
    assert "code=0" in out
    assert said(run, r"attempt 1 ended after .* s: (.*)") == [
        "application failure: exit code 3, no sign of a bad node"
    ]
    assert said(run, "(starting again .*)") == ["starting again on the same nodes n1,n2"]
    assert [r["nodes"] for r in run.events("attempt")][1:] == [["n1", "n2"]]


def test_a_failure_of_srun_on_its_own_is_resumed_in_a_new_allocation(cluster: E2eCluster) -> None:
    tell_job = 'echo "$SLURM_JOB_ID" >> "$RUN_DIR/jobs"\n'
    run = eager(cluster, tell_job + FAIL_LATER, good_attempt=2)
    srun = run.srun("--auto-resume=1", "-N2", "-n2", "--time=5", "{rank}")
    run.wait_up(2, 2, timeout=60)
    run.stop()
    _, err = srun.communicate(timeout=60)
    assert srun.returncode == 0
    assert "application failure: exit code 3, no sign of a bad node" in err
    assert "[Auto Resume] starting again in a new allocation" in err
    jobs = run.output("jobs").split()
    assert jobs == [jobs[0]] * 2 + [jobs[2]] * 2
    assert jobs[0] != jobs[2]


def test_one_bad_rank_with_kill_on_bad_exit(cluster: E2eCluster) -> None:
    """srun then ends the other ranks with SIGTERM, as if somebody had cancelled the step."""
    run = eager(cluster, '[ "$SLURM_PROCID" = 0 ] || ' + FAIL, good_attempt=2)
    run.batch(PROTECTED.replace("-N2", "-K -N2"), "-N2", "--exclusive")
    run.wait_up(2, 2)
    assert "code=0" in run.finish()


def test_the_breaker_stops_an_application_that_loops(cluster: E2eCluster) -> None:
    run = eager(cluster, FAIL, backoff="0.4")
    run.batch(PROTECTED, "-N2", "--exclusive")
    out = run.wait_end()
    assert "code=3" in out
    assert said(run, "(not resumed: .*)") == [
        "not resumed: 3 attempts in a row made no progress (max_no_progress = 3); exit code 3"
    ]
    assert {u.attempt for u in run.ups()} == {1, 2, 3}
    # Back-off with jitter, doubled: a quarter more or less.
    waits = [float(s) for s in said(run, r"waiting (\S+) s before")]
    assert len(waits) == 2
    assert 0.3 <= waits[0] <= 0.5
    assert 0.6 <= waits[1] <= 1.0
    starts = [min(u.t for u in run.ups(attempt)) for attempt in (1, 2, 3)]
    assert starts[1] - starts[0] > waits[0] - 0.06
    assert starts[2] - starts[1] > waits[1] - 0.06


def test_a_newer_checkpoint_is_progress(cluster: E2eCluster) -> None:
    run = eager(
        cluster,
        '[ "$HPRESUME_ATTEMPT" -gt 3 ] || touch "$RUN_DIR/checkpoints/$HPRESUME_ATTEMPT"\n' + FAIL,
        checkpoint="checkpoints", max_no_progress="2", backoff="0",
    )  # fmt: skip
    cluster.exec(["mkdir", "checkpoints"], user="trainer", cwd=run.dir, check=True)
    run.batch(PROTECTED, "-N2", "--exclusive")
    out = run.wait_end()
    assert "code=3" in out
    assert [r["progress"] for r in run.events("ended")] == [True] * 3 + [False] * 2
    assert "2 attempts in a row made no progress" in out


def test_max_resumes(cluster: E2eCluster) -> None:
    run = eager(cluster, FAIL, max_resumes="1")
    run.batch(PROTECTED, "-N2", "--exclusive")
    out = run.wait_end()
    assert "code=3" in out
    assert said(run, "(not resumed: .*)") == [
        "not resumed: max_resumes = 1 is reached; exit code 3"
    ]
    assert {u.attempt for u in run.ups()} == {1, 2}
