"""From a crash to all ranks running again, with the controller: no spare, or no batch host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import E2eCluster
from measure import hold, report
from reporting import URL, Guardian
from steps import Run

pytestmark = pytest.mark.bench

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "plugin": True}

RUNS = 3

#: From the start of the watch step to regular beats of all nodes (s).
SETTLED_S = 1.0


@pytest.fixture
def guardian(cluster: E2eCluster, tmp_path: Path) -> Iterator[Guardian]:
    """The controller of the cluster."""
    made = Guardian(cluster, tmp_path)
    made.start()
    yield made
    made.end()


# In this order: slurmctld gives a node that an exclusive job was shrunk by to nobody for some
# minutes after the next one (docs/recovery.md), and a requeue shrinks its job.
@pytest.mark.parametrize(
    ("rank", "what", "bound"), [(0, "loss of the batch host", 10.0), (2, "GPU requeue", 10.0)]
)
def test_crash_to_all_ranks_after_a_requeue(
    guardian: Guardian, rank: int, what: str, bound: float
) -> None:
    times = [recover(guardian, rank) for _ in range(RUNS)]
    hold(report(f"{what}, crash to all ranks of attempt 2", times, "s", bound))


def recover(guardian: Guardian, rank: int) -> float:
    """One job that loses the node of a rank; seconds until all its ranks run again."""
    cluster = guardian.cluster
    cluster.reset()
    run = Run(cluster, HPRESUME_CONTROLLER=URL)
    body = "srun --auto-resume=1 --gres=gpu:4 {rank}"
    run.batch(body, "-N3", "--exclusive", "--gres=gpu:4")
    first = run.wait_up(1, 3)
    run.wait_watched(1)
    guardian.wait_guarded(run.job_id)
    time.sleep(SETTLED_S)
    crashed = time.time()
    cluster.crash(first[rank].node)
    second = run.wait_up(2, 3, timeout=60)
    assert first[rank].node not in {u.node for u in second}
    run.finish()
    return max(u.t for u in second) - crashed
