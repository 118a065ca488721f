"""setup, test and what they share, without installing or starting anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from script_modules import SCRIPTS, load

ROOT = Path(__file__).resolve().parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes accounts, so needs root")


stages = load("stages")


def bash(script: str, *, source: str = "setup") -> subprocess.CompletedProcess[str]:
    """Run lines of bash after reading one of the scripts, which does nothing when sourced."""
    return subprocess.run(
        ["bash", "-c", f'. "{SCRIPTS}/{source}"\n{script}'],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )


# ---------------------------------------------------------------- lib.sh


def test_copy_follows_new_changed_and_deleted_files(tmp_path):
    source, copy = tmp_path / "a b", tmp_path / "copy"
    (source / "pkg/__pycache__").mkdir(parents=True)
    (source / ".venv/bin").mkdir(parents=True)
    for name in (
        "kept.py",
        "gone.py",
        "pkg/new\nline",
        "pkg/__pycache__/x.pyc",
        ".venv/bin/python",
    ):
        (source / name).write_text("1")
    (source / "kept.py").chmod(0o600)
    command = f"copy_sources '{source}' '{copy}'"
    assert bash(command, source="lib.sh").returncode == 0
    (copy / ".venv").mkdir()
    (copy / ".venv/own").write_text("of the copy")
    (source / "gone.py").unlink()
    (source / "kept.py").write_text("2")
    (source / "added.py").write_text("3")
    assert bash(command, source="lib.sh").returncode == 0

    found = {str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file()}
    found = {name for name in found if not name.startswith(".work/")}
    assert found == {"kept.py", "added.py", "pkg/new\nline", ".venv/own"}
    assert (copy / "kept.py").read_text() == "2"
    assert (copy / "kept.py").stat().st_mode & 0o777 == 0o644


@needs_root
@pytest.mark.parametrize(
    ("parent", "file", "expected"),
    [(0o755, 0o644, "yes"), (0o700, 0o644, "no"), (0o755, 0o600, "no")],
    ids=["open", "closed folder above", "closed file in it"],
)
def test_reachable_is_what_the_jobs_account_can_read(parent, file, expected):
    base = Path("/var/tmp", f"hpresume-test-reachable-{os.getpid()}")  # not below /tmp
    try:
        for name in ("hpresume", "examples", "scripts", "spank"):
            (base / "checkout" / name).mkdir(parents=True)
        (base / "checkout/spank/file").touch()
        (base / "checkout/spank/file").chmod(file)
        base.chmod(parent)
        done = bash(f"reachable {base}/checkout && echo yes || echo no", source="lib.sh")
        assert done.stdout.strip() == expected
    finally:
        shutil.rmtree(base)


@pytest.mark.parametrize("folder", ["/tmp", "/tmp/clone", "/run/clone", "/dev/shm/clone"])
def test_folders_that_every_node_has_of_its_own_are_not_reachable(folder):
    done = bash(f"reachable {folder} && echo yes || echo no", source="lib.sh")
    assert done.stdout.strip() == "no"


# ---------------------------------------------------------------- setup


def test_setup_without_root_names_the_command_in_one_line():
    done = bash("is_root() { false; }; needed_commands+=(nonesuch:nice-package); install_packages")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "nice-package" in done.stderr
    assert "apt-get install -y nice-package" in done.stderr


def test_setup_gives_up_when_a_package_does_not_bring_what_it_should():
    done = bash(
        "is_root() { true; }; apt() { :; }; hold_daemons() { :; }; log=/dev/null\n"
        "needed_commands+=(nonesuch:nice-package); install_packages"
    )
    assert done.returncode == 1
    assert "still missing after installing: nice-package" in done.stderr


def test_setup_updates_the_lists_only_when_an_install_fails():
    done = bash(
        "is_root() { true; }; hold_daemons() { :; }; log=/dev/null; tries=0\n"
        'apt() { echo "apt $1" >&2; ((++tries > 1)); }; logged() { "$@"; }\n'
        "missing_packages() { ((tries > 2)) || echo nice-package; }; install_packages"
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("apt")] == [
        "apt update",
        "apt install",
    ]


def test_daemons_are_held_only_while_setup_lives(tmp_path):
    policy = tmp_path / "policy-rc.d"
    done = bash(
        f"policy={policy}; hold_daemons; trap - EXIT\n"
        "for name in munge slurmctld.service slurmd ssh; do\n"
        '"$policy" $name start && echo "$name may start" || echo "$name $?"; done'
    )
    assert done.stdout.splitlines() == [
        "munge 101",
        "slurmctld.service 101",
        "slurmd 101",
        "ssh may start",
    ]
    assert subprocess.run([policy, "munge", "start"]).returncode == 0  # setup has ended
    bash(f"policy={policy}; release_daemons")
    assert not policy.exists()


def test_a_policy_of_somebody_else_stays(tmp_path):
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    bash(f"policy={policy}; hold_daemons; release_daemons")
    assert policy.read_text() == "#!/bin/sh\nexit 101\n"


def test_setup_takes_no_unknown_argument():
    done = subprocess.run([SCRIPTS / "setup", "--torhc"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "setup: unknown argument --torhc (see --help)\n"


@pytest.mark.parametrize("script", ["setup", "test", "demo"])
def test_help_explains_and_does_nothing(script):
    done = subprocess.run([SCRIPTS / script, "--help"], capture_output=True, text=True, timeout=10)
    assert done.returncode == 0
    assert f"scripts/{script}" in done.stdout
    assert not done.stdout.startswith("#")
    assert done.stderr == ""


# ---------------------------------------------------------------- stages.py


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("==== 3 passed, 1 skipped in 0.5s ====", {"passed": 3, "skipped": 1}),
        ("1 failed, 2 passed, 1 error in 61.20s (0:01:01)", {"failed": 2, "passed": 2}),
        ("5 passed in 1.00s\n2 passed, 1 xfailed in 2.00s", {"passed": 2, "skipped": 1}),
        ("no tests ran in 0.01s", {}),
        ("Segmentation fault", {}),
    ],
)
def test_counts_come_from_the_closing_line(log, expected):
    assert stages.test_counts(log) == Counter(expected)


def test_the_last_line_counts_all_tests():
    results = [
        stages.Result("ruff", "FAILED", 0.1),
        stages.Result("unit", "ok", 2.0, counts=Counter(passed=3, skipped=1)),
        stages.Result("e2e a", "FAILED", 2.0, counts=Counter(passed=2, failed=1)),
    ]
    text = stages.summary(results, 4.2)
    assert text.splitlines()[-1] == "5 passed, 1 failed, 1 skipped"
    assert "not ok: ruff, e2e a (4 s)" in text


def test_longest_stages_first_and_unknown_ones_before_them_by_size(tmp_path):
    sizes = {"short": 9, "long": 1, "unknown": 1, "large and unknown": 5}
    for name, size in sizes.items():
        (tmp_path / name).write_text("x" * size)
    ordered = stages.longest_first(
        [stages.Stage(name, (str(tmp_path / name),)) for name in sizes],
        {"short": 1.0, "long": 9.0},
    )
    assert [s.name for s in ordered] == ["large and unknown", "unknown", "long", "short"]


@pytest.mark.parametrize("shares", [1, 2, 3])
def test_every_unit_test_file_is_in_one_share(shares):
    files = [
        name
        for stage in stages.unit_stages(shares)
        for name in stage.argv
        if Path(name).name.startswith("test_")
    ]
    assert sorted(files) == sorted(map(str, (ROOT / "tests/unit").glob("test_*.py")))


def test_long_logs_and_long_lines_are_cut():
    text = stages.excerpt("\n".join(["x" * 1000] * 200), most=3)
    assert text.splitlines()[0] == "[… 197 lines more in the log]"
    assert len(text) < 2000


def test_shell_scripts_are_found_by_name_and_by_first_line(tmp_path):
    for name, text in {
        "a.sh": "",
        "tool": "#!/usr/bin/env bash\n",
        "py": "#!/usr/bin/env python3\n",
        "notes.txt": "#!/bin/sh\n",
        "LICENSE": "text",
        ".venv/activate": "#!/bin/sh\n",
        ".ci/run": "#!/bin/sh\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [str(path.relative_to(tmp_path)) for path in stages.shell_scripts(tmp_path)]
    assert sorted(found) == [".ci/run", "a.sh", "tool"]


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "RESULTS", tmp_path)
    return stages.Runner()


def test_a_failed_stage_shows_its_output_and_the_others_go_on(runner, capsys):
    bad = stages.Stage("bad one", ("sh", "-c", "echo reason; exit 3"))
    runner.run_all([bad, stages.Stage("good", ("true",))])
    assert [(r.name, r.outcome) for r in runner.results] == [("bad one", "FAILED"), ("good", "ok")]
    assert "reason" in capsys.readouterr().out
    assert (stages.RESULTS / "bad-one.log").read_text() == "reason\n"


def test_a_stage_past_its_time_is_ended_with_its_children(runner):
    begun = time.monotonic()
    result = runner.run(stages.Stage("slow", ("sh", "-c", "sleep 60 & wait"), limit=0.2))
    assert result.outcome == "FAILED"
    assert "ended after" in result.detail
    assert time.monotonic() - begun < 15


def test_a_stage_that_cannot_start_fails(runner):
    assert runner.run(stages.Stage("none", ("/nonexistent",))).outcome == "FAILED"


def test_a_pytest_without_a_closing_line_counts_as_a_failure(runner, monkeypatch):
    monkeypatch.setattr(stages, "PYTEST", ("sh", "-c", "exit 139"))
    assert runner.run(stages.Stage("crashed", ("sh", "-c", "exit 139"))).counts["failed"] == 1


def test_what_was_not_run_is_not_good(runner):
    runner.not_run("e2e", "needs root")
    assert not runner.results[0].good
