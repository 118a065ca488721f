"""A step that goes on with fewer nodes grows back to all of them at its next checkpoint."""

from __future__ import annotations

import pytest
from cluster import E2eCluster, needs_overlap_of_everything
from steps import Run, nodes

pytestmark = pytest.mark.e2e

# A lost node is kept for 30 s: until 15 s before slurmctld would declare it DOWN.
CLUSTER = {"nodes": 3, "gpus_per_node": 4, "plugin": True, "slurmd_timeout": 45}

WHOLE_JOB = "srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?"

# Rank 0 does one epoch for each file go.N, goes on where the checkpoint left off, and
# writes down which attempt did which epoch.
_EPOCHS = """
while [ ! -e "$RUN_DIR/stop" ]; do
    epoch=$(($(cat "$RUN_DIR/ckpt/epoch" 2>/dev/null || echo 0) + 1))
    if [ "$SLURM_PROCID" = 0 ] && [ -e "$RUN_DIR/go.$epoch" ]; then
        echo "$epoch $HPRESUME_ATTEMPT $SLURM_NTASKS" >> "$RUN_DIR/epochs"
        echo $epoch > "$RUN_DIR/ckpt/.epoch"
        mv "$RUN_DIR/ckpt/.epoch" "$RUN_DIR/ckpt/epoch"
    fi
    sleep 0.1
done
"""


class Epochs(Run):
    """A training that checkpoints when it is told, and grows back at a checkpoint."""

    def __init__(self, cluster: E2eCluster, **environ: str) -> None:
        super().__init__(cluster, HPRESUME_MIN_NODES="2", HPRESUME_REGROW="1", **environ)
        self.environ["HPRESUME_CHECKPOINT"] = str(self.dir / "ckpt")
        (self.dir / "ckpt").mkdir()
        self._own(self.dir / "ckpt")
        self.write("on_up.sh", _EPOCHS)

    def epoch(self, number: int) -> None:
        self.write(f"go.{number}", "")
        self.wait(lambda: self.output("epochs").count("\n") >= number, 10, f"no epoch {number}")


def test_a_gpu_job_grows_back_at_the_next_checkpoint(cluster: E2eCluster) -> None:
    needs_overlap_of_everything()
    # One resume is enough: growing back is no failure and does not count.
    run = Epochs(cluster, HPRESUME_MAX_RESUMES="1")
    run.batch(WHOLE_JOB, "-N3", "--exclusive", "--gres=gpu:4")
    run.wait_up(1, 3)
    run.wait_watched(1)
    run.epoch(1)
    cluster.crash("n3")
    assert nodes(run.wait_up(2, 2)) == ["n1", "n2"]
    run.wait_watched(2)
    run.epoch(2)
    cluster.boot("n3")
    run.wait_output("n3 is back, and healthy by the quick check")
    # The checkpoint of epoch 2 is older: what was done since would be lost.
    assert not run.ups(3)
    run.epoch(3)
    assert nodes(run.wait_up(3, 3)) == ["n1", "n2", "n3"]
    run.epoch(4)
    shown = cluster.exec(["scontrol", "show", "job", str(run.job_id)], check=True).stdout
    assert "Restarts=0" in shown
    assert "NodeList=n[1-3]" in shown
    out = run.finish()
    assert "keeping n3 in the job for its return" in out
    assert "a checkpoint is written, and 3 nodes are there again: growing back" in out
    assert "code=0" in out
    # No epoch was done twice, by anybody.
    assert run.output("epochs").splitlines() == ["1 1 3", "2 2 2", "3 2 2", "4 3 3"]
    lost, grown = run.events("ended")
    assert (lost["cause"], lost["left"]) == ("node failure", False)
    assert (grown["cause"], grown["left"]) == ("growing back", True)
    assert grown["without_progress"] == 0


def test_a_kept_node_that_stays_away_leaves_the_job_in_time(cluster: E2eCluster) -> None:
    """Declared DOWN, it would take the job with it; so both steps of the script run."""
    needs_overlap_of_everything()
    run = Epochs(cluster)
    run.batch(
        WHOLE_JOB + "; srun --auto-resume=1 hostname > after", "-N3", "--exclusive", "--gres=gpu:4"
    )
    run.wait_up(1, 3)
    run.wait_watched(1)
    cluster.crash("n3")
    second = run.wait_up(2, 2)
    assert run.job_nodes() == ["n1", "n2", "n3"]
    run.wait_output("n3 did not come back in time: dropped from job", timeout=60)
    assert run.job_nodes() == ["n1", "n2"]
    run.epoch(1)
    assert nodes(second) == ["n1", "n2"]
    assert not run.ups(3)
    out = run.finish()
    assert "code=0" in out
    assert sorted(run.output("after").split()) == ["n1", "n2"]
