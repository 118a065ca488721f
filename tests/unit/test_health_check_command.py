"""``hpresume check`` as users call it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from health_node import FakeNode

from hpresume.cli.app import main
from hpresume.health import report
from hpresume.health.model import Action, Result, Status
from hpresume.health.registry import CHECKS
from hpresume.slurm.models import Node

HARDWARE = ("gpu-", "dcgm-", "neuron-", "efa-", "infiniband-")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node without any special hardware."""
    node = FakeNode(tmp_path)
    for name in ("PATH", "SLURM_CONF", "SLURM_CONF_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(node.bin))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    node.file("/proc/stat", "cpu 1 1 1 1\ncpu0 1 1 1 1\nbtime 1700000000\n")
    node.file("/dev/kmsg", "6,1,1000,-;Linux version 6.1\n")
    node.file("/proc/self/mounts", "/dev/sda1 / ext4 rw 0 0\n")
    return node


def check(node: FakeNode, *args: str) -> int:
    return main(["check", "--root", str(node.root), "--policy", "/dev/null", *args])


def results(text: str) -> dict[str, dict[str, object]]:
    return {r["check"]: r for r in json.loads(text)["results"]}


def test_a_node_without_hardware(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert check(node, "--json") == 0
    assert time.monotonic() - started < 5  # < 1 s is measured where nothing else runs
    found = results(capsys.readouterr().out)
    hardware = {n: r for n, r in found.items() if n.startswith(HARDWARE)}
    assert len(hardware) > 20 - 2
    assert {r["status"] for r in hardware.values()} == {"skipped"}
    assert all(r["evidence"] for r in hardware.values())


def test_lines_for_people(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.file("/dev/kmsg", "3,1,1000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus")
    assert check(node, "--skip", "clock,munge") == 1
    out = capsys.readouterr().out
    line = next(text for text in out.splitlines() if "kernel-xid" in text)
    assert line.startswith("fail")
    for words in ("XID 79", "action: reboot", "source: NVIDIA/NVSentinel", "since 2023-11-14T"):
        assert words in line
    assert "clock" not in out
    assert "1 fail" in out


def test_a_warning_is_counted_as_one(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.file("/dev/kmsg", "3,1,1000,-;NVRM: Xid (PCI:0000:3b:00): 999, new in this driver")
    assert check(node, "--only", "kernel-xid") == 0
    first, summary = capsys.readouterr().out.splitlines()
    assert first.startswith("warning")
    assert summary == "1 warning"


def test_only_runs_a_check_of_another_profile(
    node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(node, "--only", "cpu-stress", "--json") == 0
    captured = capsys.readouterr()
    assert list(results(captured.out)) == ["cpu-stress"]
    assert "running cpu-stress (at most 180 s)" in captured.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--only", "gpu-tmp"], "--only gpu-tmp: unknown check; did you mean gpu-"),
        (["--skip", "nothing-like-it"], "hpresume check --list shows all"),
        (["--profile", "slow"], "must be one of quick, prolog, deep"),
        (["--policy", "/nowhere"], "/nowhere: no such file"),
        (["--only", "mounts", "--skip", "mounts"], "--only and --skip leave no check"),
        (["--list", "--only", "gpu-tmp"], "--only gpu-tmp: unknown check"),
        (["--root", "/nowhere"], "--root /nowhere: no such directory"),
    ],
)
def test_mistakes(
    args: list[str], words: str, node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(node, *args) == 2
    assert words in capsys.readouterr().err


def test_list(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(node, "--list") == 0
    out = capsys.readouterr().out
    for each in CHECKS:
        assert f"\n{each.name} " in f"\n{out}"
    assert out.count("\n                     source: ") == len(CHECKS)
    assert check(node, "--list", "--json") == 0
    assert {c["name"] for c in json.loads(capsys.readouterr().out)} == {c.name for c in CHECKS}


def test_list_of_some(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(node, "--list", "--json", "--only", "cpu-stress,mounts", "--skip", "mounts") == 0
    assert [c["name"] for c in json.loads(capsys.readouterr().out)] == ["cpu-stress"]


def test_a_profile_without_checks(
    node: FakeNode, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    policy = tmp_path / "health.toml"
    policy.write_text("".join(f'[{c.name}]\nprofiles = ["deep"]\n' for c in CHECKS))
    assert main(["check", "--policy", str(policy)]) == 0
    assert capsys.readouterr().out == "no check is in profile quick\n"


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_log_on_a_full_disk_is_no_fault_of_the_node(node: FakeNode, more: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hpresume", "check", "--root", str(node.root), *more],
            env={**node.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0
    said = "hpresume: the results cannot be printed: No space left on device\n"
    assert done.stderr.endswith(said)
    assert "Traceback" not in done.stderr


def test_a_user_without_root(
    node: FakeNode, capsys: pytest.CaptureFixture[str], mocker: object
) -> None:
    mocker.patch("os.geteuid", return_value=1000)  # type: ignore[attr-defined]
    mocker.patch("hpresume.health.checks.kernel_log._read", side_effect=PermissionError)  # type: ignore[attr-defined]
    assert check(node) == 0
    out = capsys.readouterr().out
    assert "left out without root: kernel-xid" in out
    assert not (node.root / "run/hpresume").exists()
    assert check(node, "--mark") == 2  # 1 would be a fault of the node
    assert "--mark needs root" in capsys.readouterr().err


def test_strikes_are_kept_by_root(node: FakeNode, mocker: object, tmp_path: Path) -> None:
    mocker.patch("os.geteuid", return_value=0)  # type: ignore[attr-defined]
    policy = tmp_path / "health.toml"
    policy.write_text('[mounts]\nrequired = ["/shared"]\n')
    args = ["check", "--root", str(node.root), "--policy", str(policy), "--only", "mounts"]
    assert [main(args), main(args)] == [0, 1]


def test_a_fault_counts_at_once_on_a_node_that_was_never_checked(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "health.toml"
    policy.write_text('[mounts]\nrequired = ["/shared"]\n')
    args = ["check", "--root", str(node.root), "--policy", str(policy), "--only", "mounts"]
    assert main([*args, "--at-once", "--json"]) == 1
    found = results(capsys.readouterr().out)["mounts"]
    assert (found["hold"], found["evidence"]) == (True, "/shared is not mounted")


def test_marking(node: FakeNode, mocker: object, capsys: pytest.CaptureFixture[str]) -> None:
    mocker.patch("os.geteuid", return_value=0)  # type: ignore[attr-defined]
    gateway = mocker.patch("hpresume.cli.check.CliGateway").return_value  # type: ignore[attr-defined]
    gateway.nodes.return_value = {"n1": Node("n1", frozenset({"IDLE"}))}
    node.file("/dev/kmsg", "3,1,1000,-;NVRM: Xid (PCI:0000:3b:00): 62, internal halt")
    assert check(node, "--mark") == 1
    fields = gateway.update_node.call_args.kwargs
    assert fields["State"] == "FAIL"
    assert fields["Reason"].startswith("Action:Replace [hpresume kernel-xid] XID 62 on GPU")
    assert "mark: n1 set FAIL: Action:Replace" in capsys.readouterr().out


def test_slurm_that_does_not_answer_does_not_hide_the_results(
    node: FakeNode, mocker: object, capsys: pytest.CaptureFixture[str]
) -> None:
    mocker.patch("os.geteuid", return_value=0)  # type: ignore[attr-defined]
    assert check(node, "--mark") == 0
    assert "mark: n1 cannot be marked: scontrol is not on PATH" in capsys.readouterr().out


WARNING = Result("a", Status.FAIL, "x")
UNKNOWN = Result("b", Status.UNKNOWN, "x")
FAULT = Result("c", Status.FAIL, "x", action=Action.REBOOT)
HELD = Result("d", Status.FAIL, "x", hold=True)


@pytest.mark.parametrize(
    ("found", "code", "strict"),
    [
        ([], 0, 0),
        ([UNKNOWN], 0, 3),
        ([WARNING], 0, 1),
        ([FAULT], 1, 1),
        ([HELD], 1, 1),
        ([UNKNOWN, WARNING], 0, 1),
    ],
)
def test_exit_codes(found: list[Result], code: int, strict: int) -> None:
    assert report.exit_code(found) == code
    assert report.exit_code(found, strict=True) == strict


def test_without_any_environment(node: FakeNode) -> None:
    """As slurmd starts HealthCheckProgram."""
    done = subprocess.run(
        [sys.executable, "-m", "hpresume", "check", "--root", str(node.root), "--json"],
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert results(done.stdout)["disk-readonly"]["status"] == "pass"
