"""Hangs: how soon a stopped rank is noticed and replaced, and that nobody cries wolf.

``HPRESUME_BENCH_SOAK`` is the length in seconds of the run under full load: 60 by
default, 3600 for the claim about an hour.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from cluster import E2eCluster
from measure import hold, report
from steps import Run

pytestmark = pytest.mark.bench

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "plugin": True}

RUNS = 5

#: The limits that are measured (s).
HANG_TIMEOUT_S = 4.0
SOAK_HANG_TIMEOUT_S = 10.0

SOAK_S = float(os.environ.get("HPRESUME_BENCH_SOAK", "60"))

# Rank 1 of the first attempt stops for good when it is told, and says when.
_TOUCHING = """
while [ ! -e "$RUN_DIR/stop" ]; do
    : > "$RUN_DIR/beat.$SLURM_PROCID"
    if [ "$HPRESUME_ATTEMPT.$SLURM_PROCID" = 1.1 ] && [ -e "$RUN_DIR/freeze" ]; then
        date +%s.%N > "$RUN_DIR/frozen.new"
        mv "$RUN_DIR/frozen.new" "$RUN_DIR/frozen"
        kill -STOP $$
    fi
    sleep 0.1
done
"""


def start(cluster: E2eCluster, limit: float) -> Run:
    """A watched job of three ranks that touch their files."""
    run = Run(cluster)
    run.environ |= {
        "HPRESUME_HEARTBEAT_FILE": str(run.dir / "beat.{rank}"),
        "HPRESUME_HANG_TIMEOUT": f"{limit:g}",
        "HPRESUME_HANG_GRACE": "30",
    }
    run.write("on_up.sh", _TOUCHING)
    run.batch(
        "srun --auto-resume=1 --gres=gpu:4 -N3 -n3 {rank}; echo code=$?",
        "-N4", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    run.wait_up(1, 3)
    run.wait_watched(1)
    return run


def test_a_stopped_rank_to_all_ranks_of_the_next_attempt(cluster: E2eCluster) -> None:
    seen, running = [], []
    for _ in range(RUNS):
        cluster.reset()
        run = start(cluster, HANG_TIMEOUT_S)
        beat, watched = run.dir / "beat.1", time.time()
        run.wait(
            lambda beat=beat, watched=watched: beat.stat().st_mtime > watched + 2.5,
            20,
            "rank 1 does not touch its file",
        )
        run.write("freeze", "")
        second = run.wait_up(2, 3, timeout=60)
        frozen = float(run.output("frozen"))
        (ended,) = run.events("ended")
        assert ended["cause"] == "hang"
        assert "rank 1 " in ended["why"]
        seen.append(ended["t"] - frozen)
        running.append(max(u.t for u in second) - frozen)
        run.finish()
    title = f"hang_timeout {HANG_TIMEOUT_S:g} s, a rank's SIGSTOP to"
    report(f"{title} stacks kept", seen, "s")
    hold(report(f"{title} all ranks of attempt 2", running, "s", HANG_TIMEOUT_S + 3.0))


def _busy_and_total() -> tuple[int, int]:
    """Ticks of all cores so far: not idle, and all (first line of /proc/stat)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


@pytest.mark.timeout(SOAK_S + 300)
def test_no_false_alarm_under_full_load(cluster: E2eCluster) -> None:
    cluster.reset()
    cores = os.cpu_count() or 1
    run = start(cluster, SOAK_HANG_TIMEOUT_S)
    before = _busy_and_total()
    stress = subprocess.Popen(
        ["stress-ng", "--cpu", str(cores), "--timeout", f"{SOAK_S:g}s", "--quiet"]
    )
    began = time.monotonic()
    try:
        run.wait(
            lambda: time.monotonic() - began >= SOAK_S or bool(run.events("ended")),
            SOAK_S + 60,
            "time stands still",
        )
    finally:
        stress.terminate()  # and its workers with it
        stress.wait()
    lasted, load = time.monotonic() - began, os.getloadavg()[0]
    after = _busy_and_total()
    busy = 100.0 * (after[0] - before[0]) / (after[1] - before[1])
    last_touch = (run.dir / "beat.1").stat().st_mtime
    assert time.time() - last_touch < SOAK_HANG_TIMEOUT_S, "the training itself stood still"
    out = run.finish()
    alarms = len(run.events("ended")) + out.count("is silent but its address answers")
    report(f"soak on {cores} cores: length", [lasted], "s")
    report(f"soak on {cores} cores: share of the cores in use", [busy], "%")
    report(f"soak on {cores} cores: load at its end", [load], "")
    hold(report(f"soak on {cores} cores: false alarms", [alarms], "alarms", 0.0))
    assert busy > 95.0, "it was no full load"
    assert "code=0" in out
    assert not run.ups(2)
