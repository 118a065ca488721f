"""What all sub-commands have in common: help, mistakes, packages that need not be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpresume import __version__
from hpresume.cli.app import main

#: Packages of the extras (pyproject.toml): ``pip install .`` brings none of them.
_EXTRAS = ("sqlalchemy", "botocore", "boto3", "starlette", "uvicorn", "psycopg", "pyslurm")

_COMMANDS = ["check", "deep-check", "controller", "nodes", "replace", "reboot", "events", "usage"]


def _without_extras(*args: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({_EXTRAS!r}))\n"
        "from hpresume.cli.app import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_checks_need_none_of_the_extras() -> None:
    found = _without_extras("check", "--list")
    assert (found.returncode, found.stderr) == (0, "")
    assert "kernel-xid" in found.stdout


@pytest.mark.parametrize("command", [["controller"], ["nodes"], ["replace", "n1"], ["usage"]])
def test_a_missing_package_is_one_line_that_says_how_to_get_it(command: list[str]) -> None:
    found = _without_extras(*command)
    assert found.returncode == 1
    [line] = found.stderr.splitlines()
    assert line.endswith("in hpresume's checkout, pip install '.[controller]'")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["frob"], "hpresume: No such command 'frob'; see hpresume --help"),
        (["devcluster", "frob"], "No such command 'frob'; see hpresume devcluster --help"),
        (["replace"], "hpresume replace: Missing argument 'NODES'; see hpresume replace --help"),
        (["replace", "n1", "n2"], "(n2); see hpresume replace --help"),
        *(([name, "--frob"], f"; see hpresume {name} --help") for name in _COMMANDS),
    ],
)
def test_a_mistake_is_one_line(
    args: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert said.endswith(line)
    assert said.startswith("hpresume")


def test_the_list_of_commands_is_not_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:")[2]
    assert commands.count("\n") > len(_COMMANDS)
    assert "..." not in commands
    assert "`" not in commands


@pytest.mark.parametrize("args", [[], ["devcluster"], ["api"]])
def test_a_group_named_alone_shows_its_help(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    shown = capsys.readouterr()
    assert "Commands:" in shown.out + shown.err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hpresume {__version__}\n"


def test_an_interruption_while_modules_are_loaded_is_no_traceback(tmp_path: Path) -> None:
    package = tmp_path / "typer.py"  # found before the real one
    package.write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "hpresume", "nodes"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")
