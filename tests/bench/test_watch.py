"""What watching costs: the agent on every node, the supervisor on the first."""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from measure import hold, report
from processes import pythons, usage
from steps import Run

from hpresume.resume import agent

pytestmark = pytest.mark.bench

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "plugin": True}

SECONDS = 20.0


def test_agents_and_supervisor_at_a_beat_a_second(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch("srun --auto-resume=1 --gres=gpu:4 {rank}", "-N4", "--exclusive", "--gres=gpu:4")
    run.wait_up(1, 4)
    run.wait_watched(1)
    nodes = cluster.spec.node_names
    run.wait(lambda: all(pythons(cluster, n, agent.__file__) for n in nodes), 20.0, "no agents")
    agents = [pid for n in nodes for pid in pythons(cluster, n, agent.__file__)]
    (supervisor,) = pythons(cluster, "n1", "supervise")
    used = usage([*agents, supervisor], SECONDS)
    run.finish()
    assert len(agents) == 4
    of_agents = [used[pid] for pid in agents]
    report("supervisor of 4 nodes: memory", [used[supervisor].rss_mb], "MB")
    report("supervisor of 4 nodes: share of a core", [used[supervisor].cpu_percent], "%")
    hold(
        report("watch agent: memory", [u.rss_mb for u in of_agents], "MB", 15.0),
        report("watch agent: share of a core", [u.cpu_percent for u in of_agents], "%", 0.2),
    )
