"""What runs on a node after a step on it failed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from health_node import FakeNode

from hpresume.health import after_failure
from hpresume.health.after_failure import PREFIX, adapted, chosen, lines
from hpresume.health.model import Action, Result, Status
from hpresume.health.policy import load_policy

SHIPPED = load_policy("/dev/null")


def test_the_policy_after_a_failure() -> None:
    policy = adapted(SHIPPED, age_s=100.0, limit_s=3.0)
    assert policy.check("kernel-xid").number("max_age_s") == 100  # shipped: since the boot
    assert policy.check("kernel-hung-task").number("max_age_s") == 100  # shipped: an hour
    assert adapted(SHIPPED, 9999.0, 3.0).check("kernel-hung-task").number("max_age_s") == 3600
    assert policy.check("gpu-count").timeout_s == 3.0
    assert policy.check("gpu-count").limits["by_slurm"].value is False
    assert adapted(SHIPPED, 100.0, 99.0).check("gpu-count").timeout_s == 30
    # The step's failure is a strike.
    strikes = {n: policy.check(n).strikes for n in ("gpu-ecc", "efa-devices", "gpu-temperature")}
    assert strikes == {"gpu-ecc": 1, "efa-devices": 1, "gpu-temperature": 2}


def test_only_checks_that_can_justify_an_action(tmp_path: Path) -> None:
    names = {check.name for check in chosen(SHIPPED)}
    assert {
        "kernel-xid", "gpu-count", "gpu-ecc", "gpu-recovery-action", "gpu-nvlink", "dcgm-health",
        "dcgm-policy", "neuron-count", "neuron-health", "efa-devices", "efa-provider",
        "disk-readonly", "kernel-machine-check",
    } <= names  # fmt: skip
    # No load on the node, no question to slurmctld from every node at once.
    assert names.isdisjoint({"cpu-stress", "dcgm-diag", "memory-size", "slurmd", "munge", "clock"})
    (tmp_path / "health.toml").write_text('[clock]\naction = "reboot"\n')
    changed = load_policy(str(tmp_path / "health.toml"))
    assert {check.name for check in chosen(changed)} == names | {"clock"}


def test_what_is_printed() -> None:
    results = (
        Result("gpu-ecc", Status.FAIL, "2 errors", action=Action.REPLACE),
        Result("kernel-xid", Status.FAIL, "XID 79", action=Action.REBOOT, since=990.0),
        Result("gpu-throttle", Status.FAIL, "hot"),
        Result("gpu-count", Status.UNKNOWN, "no answer"),
        Result("gpu-power", Status.PASS, "good"),
        Result("efa-devices", Status.SKIPPED, "none"),
    )
    assert lines("n1", results, 1000.0) == [
        f"{PREFIX} n1 fail gpu-ecc replace 0.0 2 errors",
        f"{PREFIX} n1 fail kernel-xid reboot 10.0 XID 79",
        f"{PREFIX} n1 unknown gpu-count none 0.0 no answer",
        f"{PREFIX} n1 done 6",
    ]
    long = Result("gpu-ecc", Status.FAIL, "é" * 300, action=Action.REPLACE)
    assert len(lines("n1", [long], 0.0)[0].encode()) < 1024


def run(path: str = "/usr/bin:/bin", age: str = "60", limit: str = "2") -> list[str]:
    environ = {"PATH": path, "SLURMD_NODENAME": "n7"}
    command = [sys.executable, "-I", "-S", after_failure.__file__, age, limit]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_as_it_runs_on_a_node() -> None:
    """For real, on this machine, with the standard library alone."""
    *_, last = run()
    assert last == f"{PREFIX} n7 done {len(chosen(SHIPPED))}"


def test_a_mistake_in_the_policy_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "health.toml"
    file.write_text("[gpu-ecc]\nacton = 1\n")
    monkeypatch.setattr("hpresume.health.policy.SYSTEM_FILE", str(file))
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    assert after_failure.main(60.0, 2.0) == 0
    first, last = capfd.readouterr().out.splitlines()
    assert first.startswith(f"{PREFIX} n7 unknown policy none 0 {file}: gpu-ecc")
    assert last == f"{PREFIX} n7 done 0"


def test_gpus_that_a_cgroup_hides_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(tmp_path)
    node.gpus(4)
    node.says("nvidia-smi", "No devices were found\n", 6)
    for number in range(4):
        node.file(f"/dev/nvidia{number}")
    node.file("/dev/nvidiactl")
    assert node.check("gpu-count").status is Status.FAIL
    denied: set[str] = set()
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: os.path.basename(path) not in denied and real(path, mode)
    )
    denied |= {f"nvidia{n}" for n in range(4)}
    result = node.check("gpu-count")
    assert (result.status, bool(result.left_out)) == (Status.SKIPPED, True)
    assert "4 of 4 GPUs are hidden" in result.evidence
    # One of those that may be seen is gone.
    denied.discard("nvidia3")
    result = node.check("gpu-count")
    assert result.status is Status.FAIL
    assert "3 of the 4 GPUs" in result.evidence


def test_it_starts_fast() -> None:
    """Slow start-up would be felt after every failure; 0.15 s where nothing else runs."""
    begun = time.monotonic()
    run()
    assert time.monotonic() - begun < 3
