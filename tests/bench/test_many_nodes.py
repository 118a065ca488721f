"""Watching 64 nodes: its price, and how soon the loss of one is seen."""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from faults import crash
from measure import hold, report
from processes import pythons, usage
from steps import Run

from hpresume.resume import agent

pytestmark = pytest.mark.bench

CLUSTER = {"nodes": 64, "gpus_per_node": 0, "cpus_per_node": 1, "plugin": True}

SECONDS = 10.0


def test_watching_64_nodes(cluster: E2eCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(cluster)
    # Ranks that look around ten times a second would take the machine for themselves.
    run.write("on_up.sh", 'until [ -e "$RUN_DIR/stop" ]; do sleep 2; done')
    run.batch("srun --auto-resume=1 -N63 -n63 {rank}", "-N64", "--exclusive")
    run.wait_up(1, 63, 60.0)
    run.wait_watched(1)
    nodes = cluster.spec.node_names
    run.wait(lambda: all(pythons(cluster, n, agent.__file__) for n in nodes), 60.0, "no agents")
    (supervisor,) = pythons(cluster, "n1", "supervise")
    used = usage([supervisor], SECONDS)[supervisor]
    crashed = crash(cluster, monkeypatch, "n7")
    second = run.wait_up(2, 63, 60.0)
    (fault,) = run.events("fault")
    assert fault["nodes"] == ["n7"]
    report("supervisor of 64 nodes: memory", [used.rss_mb], "MB")
    report("64 nodes, crash to all ranks", [max(u.t for u in second) - crashed], "s")
    hold(
        report("supervisor of 64 nodes: share of a core", [used.cpu_percent], "%", 20.0),
        report("64 nodes, crash to detected", [fault["seen_at"] - crashed], "s", 10.0),
    )
