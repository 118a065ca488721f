"""Applications that fail on nodes which Slurm takes as good: what health checks of them change."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from cluster import E2eCluster
from node_faults import FakeHardware
from steps import Run, nodes

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 5, "gpus_per_node": 4, "plugin": True}

PROTECTED = "srun --auto-resume=1 --gres=gpu:4 -N2 -n2 {rank}; echo code=$? at $(date +%s.%N)"
JOB = ("-N3", "--exclusive", "--gres=gpu:4")

# Every rank ends by itself when it is told, as one whose collective operation fails.
_DIES_WHEN_TOLD = """
die="$RUN_DIR/die$HPRESUME_ATTEMPT"
while [ ! -e "$die" ] && [ ! -e "$RUN_DIR/stop" ]; do sleep 0.05; done
if [ -e "$die" ]; then date +%s.%N > "$RUN_DIR/died.$SLURM_PROCID"; exit 3; fi
"""


@pytest.fixture
def run(cluster: E2eCluster) -> Run:
    run = Run(cluster)
    run.write("on_up.sh", _DIES_WHEN_TOLD)
    return run


@pytest.fixture
def hardware(cluster: E2eCluster, run: Run) -> Iterator[FakeHardware]:
    hardware = FakeHardware(cluster, run)
    yield hardware
    hardware.remove()


def since_death(run: Run, out: str) -> float:
    """Seconds from the last rank's end to that of srun."""
    died = max(float(path.read_text()) for path in run.dir.glob("died.*"))
    ended = re.search(r"^code=\d+ at (\S+)$", out, re.MULTILINE)
    assert ended, out
    return float(ended[1]) - died


def test_a_node_with_evidence_is_left(run: Run, hardware: FakeHardware) -> None:
    """And it stays out, though it stays in the job: it runs the batch script."""
    run.batch(PROTECTED, *JOB)
    first = nodes(run.wait_up(1, 2))
    job = run.job_nodes()
    assert first == job[:2]
    run.wait_watched(1)
    hardware.xid(job[0], 79)
    run.write("die1", "")
    assert nodes(run.wait_up(2, 2)) == job[1:]
    assert run.job_nodes() == job
    out = run.output()
    assert re.search(
        rf"^\[Auto Resume\] attempt 1 ended after .* s: node failure: exit code 3; {job[0]} fails"
        r" health check kernel-xid \(XID 79 on GPU 0000:3b:00 at .*; action: reboot\)$",
        out,
        re.MULTILINE,
    )
    (fault,) = run.events("fault")
    assert fault["nodes"] == [job[0]]
    # The other one fails too: of the job, one good node is left.
    run.wait_watched(2)
    hardware.uncorrected(job[1], 2)
    run.write("die2", "")
    out = run.wait_output("requeueing the job")
    assert f"{job[1]} fails health check gpu-ecc (GPU 00000000:10:1C.0: 2 uncorrected" in out
    third = nodes(run.wait_up(3, 2, timeout=40))
    assert {job[0], job[1]}.isdisjoint(third)
    assert "code=0" in run.finish()


def test_an_application_that_fails_on_good_nodes(run: Run, hardware: FakeHardware) -> None:
    run.environ["HPRESUME_HEARTBEAT"] = "0.2"
    run.batch(PROTECTED, *JOB)
    first = nodes(run.wait_up(1, 2))
    run.wait_watched(1)
    # From before the step, and of an application: no evidence.
    hardware.xid(first[0], 79, ago_s=600)
    hardware.xid(first[1], 31)
    run.write("die1", "")
    out = run.wait_end()
    assert "code=3" in out
    assert run.ups(2) == []
    assert run.events("ended")[0]["cause"] == "application failure"
    assert since_death(run, out) < 2.5  # 0.5 s where nothing else runs


def test_a_tool_that_hangs_delays_no_longer_than_its_limit(
    run: Run, hardware: FakeHardware
) -> None:
    run.environ["HPRESUME_HEALTH_CHECK"] = "4s"
    run.batch(PROTECTED, *JOB)
    first = nodes(run.wait_up(1, 2))
    spare = run.job_nodes()[2]
    run.wait_watched(1)
    hardware.hangs(first[0])
    hardware.xid(first[1], 79)
    run.write("die1", "")
    second = run.wait_up(2, 2)
    assert nodes(second) == [first[0], spare]
    died = max(float(path.read_text()) for path in run.dir.glob("died.*"))
    # The tool gets 1.5 s of it; a step starts in less than another second.
    assert max(up.t for up in second) - died < 4 + 4
    assert re.search(
        rf"not known of the nodes' health: {first[0]}: gpu-\S+: nvidia-smi did not answer within",
        run.output(),
    )
    assert "code=0" in run.finish()


_HANGS_WHEN_TOLD = """
while [ ! -e "$RUN_DIR/stop" ]; do
    [ -e "$RUN_DIR/hush" ] && [ "$HPRESUME_ATTEMPT" = 1 ] || echo still here
    sleep 0.3
done
"""


def test_a_hang_with_evidence_goes_on_elsewhere(run: Run, hardware: FakeHardware) -> None:
    """A step that hangs for a bad node comes back without it, not on the same nodes."""
    run.environ |= {"HPRESUME_OUTPUT_TIMEOUT": "3", "HPRESUME_HANG_GRACE": "1"}
    run.write("on_up.sh", _HANGS_WHEN_TOLD)
    run.batch(PROTECTED, *JOB)
    first = nodes(run.wait_up(1, 2))
    left = [n for n in run.job_nodes() if n != first[1]]
    run.wait_watched(1)
    hardware.uncorrected(first[1], 1)
    run.write("hush", "")
    assert nodes(run.wait_up(2, 2)) == left == run.job_nodes()
    out = run.finish()
    assert f"node failure: no output for 3 s; {first[1]} fails health check gpu-ecc" in out


def test_a_user_without_root_is_told_what_was_left_out(
    cluster: E2eCluster, hardware: FakeHardware
) -> None:
    hardware.uncorrected("n1", 1)
    hardware.log("n1").chmod(0o600)
    program = str(cluster.spec.supervisor)
    environ = {"PATH": f"{hardware.folder}:/usr/bin:/bin", "SLURMD_NODENAME": "n1"}
    done = cluster.exec([program, "check"], "n1", user="trainer", env=environ)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    of_log = [f"kernel-{name}" for name in ("xid", "neuron", "machine-check", "hung-task")]
    for name in of_log:
        assert re.search(rf"^skipped  {name} +the kernel log needs root", done.stdout, re.MULTILINE)
    assert lines[-1] == f"left out without root: {', '.join(of_log)}"
    assert re.search(r"^fail +gpu-ecc +GPU \S+ 1 uncorrected", done.stdout, re.MULTILINE)
    assert re.search(r"^pass +disk-space ", done.stdout, re.MULTILINE)
