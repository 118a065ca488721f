"""Steps of seven nodes and more: slurmstepd reports their end up a tree.

With a dead node in that tree the others wait a minute for it, and slurmctld keeps
the step that long.
"""

from __future__ import annotations

import time

import pytest
from cluster import E2eCluster
from steps import Run

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 10, "gpus_per_node": 1, "cpus_per_node": 1, "plugin": True}


def test_nine_nodes_lose_one(cluster: E2eCluster) -> None:
    run = Run(cluster)
    run.batch(
        "srun --auto-resume=1 --gres=gpu:1 -N9 -n9 {rank}; echo code=$?",
        "-N10", "--exclusive", "--gres=gpu:1",
    )  # fmt: skip
    first = run.wait_up(1, 9)
    run.wait_output("protecting the step")
    run.wait_watched(1)
    victim = first[4]
    cluster.crash(victim.node)
    crashed = time.time()
    second = run.wait_up(2, 9, timeout=60)
    assert victim.node not in {u.node for u in second}
    # The limit for a step that does not end is KillWait + 10 s, 15 s here.
    assert max(u.t for u in second) - crashed < 14
    run.stop()
    run.wait_output("code=0")
    # Slurm itself waits for the old step before it lets go of the job.
    run.wait_end(timeout=150)
    # Nobody drains a node for a step that is only waited for.
    states = cluster.node_states()
    assert not [n for n, state in states.items() if "drain" in state], states
