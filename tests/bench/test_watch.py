"""What watching costs: the agent on every node, the supervisor on the first."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import E2eCluster
from measure import hold, report
from processes import pythons, usage
from steps import Run

from hpresume.resume import agent

pytestmark = pytest.mark.bench

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "plugin": True}

SECONDS = 20.0

#: The agent's share of a core.
BOUND_PERCENT = 0.2

#: A Python that does nothing but wake up once a second, and how many times as much an agent may
#: take where that is more than the bound: what a wake-up costs differs by the machine and the
#: hour, and is most on an idle one (an agent: 0.03 % of a core beside other work, 0.23 % without).
IDLE = "import os, select\nos.write(1, b'.')\nwhile 1: select.select([0], [], [], 1)"
TIMES_IDLE = 8.0


@contextmanager
def idlers(count: int) -> Iterator[list[int]]:
    """So many idle Pythons, for comparison."""
    argv = [sys.executable, "-I", "-S", "-c", IDLE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = [subprocess.Popen(argv, **pipes) for _ in range(count)]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.read(1)  # its start is over
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_agents_and_supervisor_at_a_beat_a_second(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch("srun --auto-resume=1 --gres=gpu:4 {rank}", "-N4", "--exclusive", "--gres=gpu:4")
    run.wait_up(1, 4)
    run.wait_watched(1)
    nodes = cluster.spec.node_names
    run.wait(lambda: all(pythons(cluster, n, agent.__file__) for n in nodes), 20.0, "no agents")
    agents = [pid for n in nodes for pid in pythons(cluster, n, agent.__file__)]
    (supervisor,) = pythons(cluster, "n1", "supervise")
    with idlers(len(agents)) as idle:
        used = usage([*agents, *idle, supervisor], SECONDS)
    run.finish()
    assert len(agents) == 4
    of_agents = [used[pid] for pid in agents]
    of_idle = [used[pid].cpu_percent for pid in idle]
    bound = max(BOUND_PERCENT, round(TIMES_IDLE * statistics.median(of_idle), 2))
    report("supervisor of 4 nodes: memory", [used[supervisor].rss_mb], "MB")
    report("supervisor of 4 nodes: share of a core", [used[supervisor].cpu_percent], "%")
    report("a Python that only wakes up: share of a core", of_idle, "%")
    hold(
        report("watch agent: memory", [u.rss_mb for u in of_agents], "MB", 15.0),
        report("watch agent: share of a core", [u.cpu_percent for u in of_agents], "%", bound),
    )
