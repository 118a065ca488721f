"""Steps of some of the cores of their nodes: those that a shrunk job holds are lost to Slurm."""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from steps import Run

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 5, "gpus_per_node": 0, "cpus_per_node": 4, "plugin": True}


def test_most_cores_of_each_node(cluster: E2eCluster) -> None:
    """With the old step's three cores of four taken for used, there is one left for the new one."""
    run = Run(cluster)
    step = "srun --auto-resume=1 -N3 -n3 -c3"
    run.batch(
        f"{step} {{rank}}; echo code=$?; {step} bash -c 'echo next'; echo code=$?",
        "-N4", "--exclusive",
    )  # fmt: skip
    nodes = [u.node for u in run.wait_up(1, 3)]
    run.wait_watched(1)
    cluster.crash(nodes[1])
    assert nodes[1] not in [u.node for u in run.wait_up(2, 3)]
    out = run.finish()
    # So it is for the next step of the script, which looks at its job after a while.
    assert out.count("next\n") == 3
    assert out.count("code=0") == 2


def test_two_steps_side_by_side_lose_the_same_node(cluster: E2eCluster) -> None:
    first, second = Run(cluster), Run(cluster)
    lines = [
        f"RUN_DIR={run.dir} srun --auto-resume=1 --exact -N3 -n3 -c2 {{rank}} &"
        for run in (first, second)
    ]
    lines += ["for i in 1 2; do wait -n; echo code=$?; done"]
    first.batch("\n".join(lines), "-N4", "--exclusive")
    in_both = set.intersection(*({u.node for u in run.wait_up(1, 3)} for run in (first, second)))
    first.wait(lambda: len(first.events("watched")) == 2, 20, "not both are watched")
    lost = min(in_both - {"n1"})  # there runs the script
    cluster.crash(lost)
    for run in (first, second):
        assert lost not in [u.node for u in run.wait_up(2, 3, timeout=60)]
    second.stop()
    assert first.finish().count("code=0") == 2
