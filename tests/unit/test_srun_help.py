"""The option table of srun: asked for once, kept, and asked for again where it is outdated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from srun_text import HELP

from hpresume.errors import SlurmError, UsageError
from hpresume.slurm import srun_help
from hpresume.slurm.srun_options import AUTO_RESUME, Arity, OptionSpec, parse_help


@pytest.fixture
def fake_srun(tmp_path, monkeypatch):
    """An srun that counts its calls and prints HELP."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    (tmp_path / "help").write_text(HELP)
    program = tmp_path / "srun"
    program.write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$1" >>calls\n'
        'if [ "$1" = --help ]; then cat help; else exit 1; fi\n'
    )
    program.chmod(0o755)
    return program


def calls(srun: Path) -> int:
    return len((srun.parent / "calls").read_text().splitlines())


def test_srun_is_asked_once(fake_srun):
    for _ in range(3):
        spec = srun_help.with_table(str(fake_srun), lambda table: table.long("--nodes"))
        assert spec == OptionSpec("nodes", Arity.REQUIRED, "N")
    assert calls(fake_srun) == 2


def test_another_srun_or_configuration_is_asked_again(fake_srun, monkeypatch):
    srun_help.with_table(str(fake_srun), list)
    monkeypatch.setenv("SLURM_CONF", "/elsewhere/slurm.conf")
    srun_help.with_table(str(fake_srun), list)
    os.utime(fake_srun, (1, 1))
    srun_help.with_table(str(fake_srun), list)
    assert calls(fake_srun) == 6


def test_an_error_is_believed_only_with_a_fresh_table(fake_srun):
    srun_help.with_table(str(fake_srun), list)
    help_file = fake_srun.parent / "help"
    help_file.write_text(HELP.replace("--container-writable", "--just-installed"))
    assert srun_help.with_table(str(fake_srun), lambda table: table.long("--just")).short is None
    with pytest.raises(UsageError, match="unrecognized"):
        srun_help.with_table(str(fake_srun), lambda table: table.long("--never"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"rubbish\n",
        b"hpresume option table 1\n",
        b"hpresume option table 1\na b c\n",
    ],
    ids=str,
)
def test_a_damaged_cache_is_replaced(fake_srun, content):
    srun_help.with_table(str(fake_srun), list)
    (file,) = (fake_srun.parent / "cache" / "hpresume").iterdir()
    file.write_bytes(content)
    assert AUTO_RESUME in srun_help.with_table(str(fake_srun), lambda table: table)
    assert file.read_text().endswith(parse_help(HELP).dump())


def test_an_old_cache_is_not_used(fake_srun):
    srun_help.with_table(str(fake_srun), list)
    (file,) = (fake_srun.parent / "cache" / "hpresume").iterdir()
    os.utime(file, (1, 1))
    srun_help.with_table(str(fake_srun), list)
    assert calls(fake_srun) == 4


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null", "relative"])
def test_no_place_for_a_cache(fake_srun, monkeypatch, place):
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    for _ in range(2):
        srun_help.with_table(str(fake_srun), list)
    assert calls(fake_srun) == 4
    assert not Path("relative").exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#!/bin/sh\necho oops >&2\nexit 1\n", "--help failed: oops"),
        ("#!/bin/sh\nexit 3\n", "--help failed: exit code 3"),
        ("#!/bin/sh\necho nothing useful\n", "cannot be read"),
        ("#!/nowhere/sh\n", "cannot run .*No such file"),
    ],
)
def test_an_srun_that_cannot_tell_its_options(fake_srun, script, message):
    fake_srun.write_text(script)
    with pytest.raises(SlurmError, match=message):
        srun_help.with_table(str(fake_srun), list)


def test_the_width_of_the_terminal_is_not_passed_on(fake_srun, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    fake_srun.write_text('#!/bin/sh\n[ -z "$COLUMNS" ] || exit 1\necho "  -l, --label  x"\n')
    assert "label" in srun_help.with_table(str(fake_srun), lambda table: table)
