"""Protected steps in a job array: a task is recovered, its siblings go on untouched.

The last task to start has the array's id as its job id; for that id Slurm's
tools show all tasks and act on all tasks.
"""

from __future__ import annotations

import pytest
from cluster import E2eCluster
from steps import Run

pytestmark = pytest.mark.e2e

CLUSTER = {
    "nodes": 6,
    "gpus_per_node": 4,
    "plugin": True,
    "slurmd_timeout": 15,
    "overrides": (("AuthInfo", "cred_expire=5"),),
}


class Array:
    """Two tasks of a job array, each with a directory of its own and a step on two nodes."""

    def __init__(self, cluster: E2eCluster, nodes: int) -> None:
        self.cluster = cluster
        self.first, self.last = Run(cluster), Run(cluster)
        array = self.first.batch(
            f"[ $SLURM_ARRAY_TASK_ID = 1 ] || RUN_DIR={self.last.dir}\n"
            "exec >> $RUN_DIR/out 2>&1\n"
            "srun --auto-resume=1 --gres=gpu:4 -N2 -n2 {rank}; echo code=$?",
            "--array=1-2", f"-N{nodes}", "--exclusive", "--gres=gpu:4",
        )  # fmt: skip
        for run in (self.first, self.last):
            run.wait_up(1, 2)
        for job_id, task in (line.split() for line in self._list("%A %K")):
            (self.first if task == "1" else self.last).job_id = int(job_id)
        assert self.last.job_id == array != self.first.job_id
        for run in (self.first, self.last):
            run.wait_watched(1)

    def _list(self, layout: str, *options: str) -> list[str]:
        argv = ["squeue", "--noheader", *options, f"--format={layout}"]
        return self.cluster.exec(argv, check=True).stdout.splitlines()

    def untouched(self, run: Run) -> tuple[object, ...]:
        """All that must stay as it is while another task is recovered."""
        task = 1 if run is self.first else 2
        here = f"{self.last.job_id}_{task}"
        steps = [s for s in self._list("%i %j %N %S", "--steps") if s.startswith(f"{here}.")]
        return (
            run.ups(),
            run.journal(),
            sorted(step for step in steps if "hpresume-watch" not in step),
            [job for job in self._list("%i %A %T %N %S") if job.startswith(f"{here} ")],
            self.restarts(run),
        )

    def restarts(self, run: Run) -> str:
        """How often Slurm has requeued a task."""
        argv = ["scontrol", "--oneliner", "show", "job", str(self.last.job_id)]
        for line in self.cluster.exec(argv, check=True).stdout.splitlines():
            words = line.split()
            if words[0] == f"JobId={run.job_id}":
                return next(word for word in words if word.startswith("Restarts="))
        raise AssertionError(f"job {run.job_id} is gone")


@pytest.mark.parametrize("which", ["last", "first"])
def test_a_task_resumes_on_its_own_spare(cluster: E2eCluster, which: str) -> None:
    array = Array(cluster, nodes=3)
    hit, other = array.last, array.first
    if which == "first":
        hit, other = other, hit
    before = array.untouched(other)
    first = hit.wait_up(1, 2)
    cluster.crash(first[1].node)
    second = hit.wait_up(2, 2)
    (spare,) = {u.node for u in second} - {u.node for u in first}
    assert second[0].node == first[0].node
    assert array.untouched(other) == before
    assert "code=0" in hit.finish()
    assert f"{spare} of the job" in hit.output() or spare in hit.output()
    assert array.untouched(other) == before
    assert "code=0" in other.finish()
    assert {u.attempt for u in other.ups()} == {1}


@pytest.mark.parametrize("which", ["last", "first"])
def test_a_task_without_a_spare_is_requeued_alone(cluster: E2eCluster, which: str) -> None:
    array = Array(cluster, nodes=2)
    hit, other = array.last, array.first
    if which == "first":
        hit, other = other, hit
    before = array.untouched(other)
    first = hit.wait_up(1, 2)
    cluster.crash(first[1].node)
    second = hit.wait_up(2, 2)
    assert first[1].node not in {u.node for u in second}
    assert array.untouched(other) == before
    assert array.restarts(hit) == "Restarts=1"
    out = hit.finish()
    assert "this job was requeued: going on with attempt 2" in out
    assert "code=0" in out
    assert array.untouched(other) == before
    assert "code=0" in other.finish()
    (log,) = cluster.home().glob(f".local/state/hpresume/*/{hit.job_id}.finisher.log")
    assert "brought back" in log.read_text()
