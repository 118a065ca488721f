"""From the crash of a node to all ranks running again, on a spare, in a GPU job."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest
from cluster import E2eCluster
from faults import crash
from measure import hold, report
from steps import Run

pytestmark = pytest.mark.bench

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "plugin": True}

RUNS = 7

#: From the start of the watch step to regular beats of all nodes (s).
SETTLED_S = 0.8


@dataclass(frozen=True)
class Recovery:
    """Times of one recovery, in seconds after the crash."""

    detected: float
    running: float

    @property
    def restart(self) -> float:
        return self.running - self.detected


@pytest.mark.parametrize(("heartbeat", "bound"), [(1.0, 3.0), (0.5, 2.0)])
def test_crash_to_all_ranks_on_a_spare(
    cluster: E2eCluster, monkeypatch: pytest.MonkeyPatch, heartbeat: float, bound: float
) -> None:
    runs = [recover(cluster, monkeypatch, heartbeat) for _ in range(RUNS)]
    title = f"heartbeat {heartbeat:g} s, crash to"
    report(f"{title} detected", [r.detected for r in runs], "s")
    report(f"{title} all ranks, from detected", [r.restart for r in runs], "s")
    hold(report(f"{title} all ranks of attempt 2", [r.running for r in runs], "s", bound))


def recover(cluster: E2eCluster, monkeypatch: pytest.MonkeyPatch, heartbeat: float) -> Recovery:
    """One job that loses a node at any moment between two beats."""
    cluster.reset()
    run = Run(cluster, HPRESUME_HEARTBEAT=f"{heartbeat:g}", HPRESUME_WATCH_DELAY="0.2")
    run.batch(
        "srun --auto-resume=1 --gres=gpu:4 -N3 -n3 {rank}", "-N4", "--exclusive", "--gres=gpu:4"
    )
    run.wait_up(1, 3)
    run.wait_watched(1)
    time.sleep(SETTLED_S + random.uniform(0.0, heartbeat))
    crashed = crash(cluster, monkeypatch, "n3")
    second = run.wait_up(2, 3)
    assert {u.node for u in second} == {"n1", "n2", "n4"}
    (fault,) = run.events("fault")
    run.finish()
    return Recovery(fault["seen_at"] - crashed, max(u.t for u in second) - crashed)
