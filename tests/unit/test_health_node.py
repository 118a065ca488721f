"""The node itself: stress, memory, disks, mounts, clock, daemons."""

import os
import shutil
from pathlib import Path

import pytest
from health_node import NOW, FakeNode, check_named, policy_of, sample

from hpresume.health.checks.cpu_stress import busy_ticks, workers
from hpresume.health.checks.node import Clock, judge_clock, kernel_bound, parse_tracking
from hpresume.health.checks.slurm_node import parse_state
from hpresume.health.env import Env
from hpresume.health.model import Action, Status
from hpresume.health.runner import examine

MEMINFO = "MemTotal:       16384000 kB\nMemAvailable:    8192000 kB\n"
STAT = "cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 5 0 5 40 0 0 0 0 0 0\ncpu1 5 0 5 40 0 0 0 0 0 0\n"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    node.file("/proc/meminfo", MEMINFO)
    node.file("/proc/stat", STAT)
    node.environ["SLURMD_NODENAME"] = "n1"
    return node


# -- stress


def test_stress_is_sized_to_the_node() -> None:
    argv = workers(32, 100_000, 60)
    assert argv[:6] == ("--cpu", "32", "--vm", "2", "--vm-bytes", "1024m")
    assert argv[argv.index("--fork") + 1] == "8"
    assert argv[argv.index("--switch") + 1] == "4"
    small = workers(1, 100, 5)
    assert small[:6] == ("--cpu", "1", "--vm", "1", "--vm-bytes", "25m")


def test_stress(node: FakeNode) -> None:
    assert "stress-ng is not installed" in node.check("cpu-stress").evidence
    node.says("stress-ng", sample("stress-ng-done.txt"))
    result = node.check("cpu-stress")
    assert (result.status, "2 cores, 60 s" in result.evidence) == (Status.PASS, True)
    node.says("stress-ng", "", 2, sample("stress-ng-failed.txt").replace("'", ""))
    result = node.check("cpu-stress")
    assert (result.status, result.action) == (Status.FAIL, Action.REPLACE)
    assert "fft error detected" in result.evidence


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("garbage", 0), ("stress-ng: error: out of memory", 3), ("", 2), ("", 5)],
)
def test_stress_that_says_nothing_is_unknown(node: FakeNode, text: str, code: int) -> None:
    node.says("stress-ng", text, code)
    assert node.check("cpu-stress").status is Status.UNKNOWN


def test_busy_ticks() -> None:
    assert busy_ticks(STAT) == (20, 100, 2)
    assert busy_ticks("cpu 1 2") is None
    assert busy_ticks("") is None


@pytest.mark.skipif(shutil.which("stress-ng") is None, reason="stress-ng is not installed")
def test_stress_for_real() -> None:
    import time

    policy = policy_of("cpu-stress", seconds=1)
    env = Env(policy, time.monotonic() + 60, environ=dict(os.environ))
    assert examine(check_named("cpu-stress"), env, NOW).status is Status.PASS


# -- memory


SHOWN = (
    "NodeName=n1 Arch=x86_64 CPUTot=2 NodeAddr=n1 NodeHostName=n1 RealMemory={} State=IDLE "
    "BootTime=1700000000 SlurmdStartTime=1700000000"
)


def test_memory(node: FakeNode) -> None:
    assert "no slurm.conf" in node.check("memory-size").evidence
    node.file("/etc/slurm/slurm.conf")
    assert "scontrol" in node.check("memory-size").evidence
    node.says("scontrol", SHOWN.format(16000))
    assert node.check("memory-size").status is Status.PASS
    node.says("scontrol", SHOWN.format(32000))
    result = node.check("memory-size")
    assert (result.status, result.hold, result.measured) == (Status.FAIL, True, "16000 MB")
    # It could be a typing error in slurm.conf.
    assert result.action is Action.NONE
    assert node.check("memory-size", min_percent=50).status is Status.PASS
    node.file("/proc/meminfo", "garbage")
    assert node.check("memory-size").status is Status.UNKNOWN


def test_memory_while_slurm_does_not_answer(node: FakeNode) -> None:
    node.file("/etc/slurm/slurm.conf")
    node.says("scontrol", "", 1, "Unable to contact slurm controller (connect failure)")
    assert node.check("memory-size", timeout_s=1).status is Status.UNKNOWN
    node.tool("scontrol", "exec sleep 60")
    assert node.check("memory-size", timeout_s=0.7).status is Status.UNKNOWN


# -- disks


def test_disk_space(node: FakeNode) -> None:
    result = node.check("disk-space", min_percent=0)
    assert result.status is Status.PASS
    result = node.check("disk-space", min_percent=100)
    assert (result.status, result.hold) == (Status.FAIL, True)
    assert node.check("disk-space", paths=["/nowhere"]).status is Status.SKIPPED


MOUNTS = (
    "/dev/sda1 / ext4 {},relatime 0 0\n"
    "/dev/sdb1 /data\\040disk xfs rw 0 0\n"
    "/dev/loop0 /snap ext4 ro 0 0\n"
    "fs:/x /shared nfs4 rw 0 0\n"
)
FSTAB = "# comment\nUUID=1 / ext4 defaults 0 1\n/dev/sdb1 /data\\040disk xfs defaults 0 0\n"


def test_read_only(node: FakeNode) -> None:
    assert node.check("disk-readonly").status is Status.UNKNOWN
    node.file("/etc/fstab", FSTAB)
    node.file("/proc/self/mounts", MOUNTS.format("rw"))
    assert node.check("disk-readonly").status is Status.PASS
    node.file("/proc/self/mounts", MOUNTS.format("ro"))
    result = node.check("disk-readonly")
    assert (result.status, result.action) == (Status.FAIL, Action.REBOOT)
    assert "/ (ext4) became read-only" in result.evidence
    node.file("/proc/self/mounts", MOUNTS.format("rw,emergency_ro"))
    assert node.check("disk-readonly").status is Status.FAIL
    node.file("/etc/fstab", FSTAB.replace("defaults", "ro"))
    node.file("/proc/self/mounts", MOUNTS.format("ro"))
    assert node.check("disk-readonly").status is Status.PASS


def test_required_mounts(node: FakeNode) -> None:
    assert "requires no mounts" in node.check("mounts").evidence
    node.file("/proc/self/mounts", MOUNTS.format("rw"))
    assert node.check("mounts", required=["/shared/", "/data disk", "/"]).status is Status.PASS
    result = node.check("mounts", required=["/scratch", "/shared"])
    assert (result.evidence, result.hold) == ("/scratch is not mounted", True)


# -- clock


TRACKING = "A29FC87B,ntp1,3,1700000000.0,{},-0.000012,0.0002,1.2,0.0,0.01,0.02,0.001,64.5,{}\n"


def test_clock(node: FakeNode) -> None:
    node.says("chronyc", TRACKING.format("-0.000123456", "Normal"))
    result = node.check("clock")
    assert (result.status, result.measured) == (Status.PASS, "0.000123 s")
    node.says("chronyc", TRACKING.format("31.5", "Normal"))
    result = node.check("clock")
    assert (result.status, result.hold) == (Status.FAIL, True)


@pytest.mark.parametrize(
    "text", ["", "506 Cannot talk to daemon", TRACKING.format("0.0", "Not synchronised"), "a,b"]
)
def test_tracking_that_tells_no_offset(text: str) -> None:
    assert parse_tracking(text) is None


def test_a_clock_that_nothing_synchronises() -> None:
    assert judge_clock(Clock(None, "the kernel"), policy_of("clock"), NOW).status is Status.UNKNOWN
    bound = kernel_bound()
    assert bound is None or bound >= 0


# -- daemons


@pytest.mark.parametrize("name", ["slurmd", "slurmd-wlm"])
def test_slurmd(node: FakeNode, name: str) -> None:
    """The second one is Debian's, as 24.11 is called once it has reconfigured."""
    assert node.check("slurmd").status is Status.SKIPPED
    node.file("/etc/slurm/slurm.conf")
    node.file("/proc/1/comm", "init\n")
    assert node.check("slurmd").evidence == "no process slurmd"
    node.file("/proc/9/comm", f"{name}\n")
    node.file("/proc/9/stat", f"9 ({name}) S 1 9 9 0\n")
    assert node.check("slurmd").status is Status.PASS
    node.file("/proc/9/stat", f"9 ({name}) T 1 9 9 0\n")
    assert node.check("slurmd").status is Status.FAIL
    assert parse_state("9 (a) S (b) Z 1") == "Z"


def test_slurmd_where_others_processes_are_hidden(node: FakeNode) -> None:
    node.file("/etc/slurm/slurm.conf")
    node.file("/proc/77/comm", "bash\n")  # of this user
    result = node.check("slurmd")
    assert (result.status, bool(result.left_out)) == (Status.SKIPPED, True)
    assert "hidepid" in result.evidence


def test_munge(node: FakeNode) -> None:
    assert node.check("munge").status is Status.SKIPPED
    node.file("/etc/slurm/slurm.conf")
    assert "munge is not installed" in node.check("munge").evidence
    node.says("munge", "MUNGE:AwQFAACnHHkkZg==:\n")
    assert node.check("munge").status is Status.PASS
    node.says("munge", "", 6, 'munge: Error: Failed to access "/run/munge/munge.socket.2"')
    result = node.check("munge")
    assert (result.status, result.action) == (Status.FAIL, Action.NONE)
    node.says("munge", "garbage")
    assert node.check("munge").status is Status.UNKNOWN


# -- this machine


@pytest.mark.parametrize("name", ["kernel-xid", "disk-space", "disk-readonly", "clock"])
def test_for_real(name: str) -> None:
    import time

    env = Env(policy_of(name), time.monotonic() + 5, environ=dict(os.environ), now=time.time())
    result = examine(check_named(name), env, time.time())
    assert result.evidence
    assert "check itself failed" not in result.evidence
