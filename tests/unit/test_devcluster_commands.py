"""Command lines: the user's of ``hpresume devcluster``, and those that go into hosts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpresume.cli.app import main
from hpresume.devcluster import requirements
from hpresume.devcluster.accounts import accounts
from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.plugin import default_plugin
from hpresume.devcluster.processes import ProcessId, run
from hpresume.devcluster.programs import command_line, environment
from hpresume.errors import DevClusterError, MissingDependencyError

ACCOUNTS = accounts(Path("/s/home"))


@pytest.fixture
def exec_argv(mocker):
    """The arguments that the command line hands to DevCluster.exec_argv."""
    mocker.patch("os.execvpe")
    mocker.patch("signal.signal")
    return mocker.patch.object(DevCluster, "exec_argv", return_value=(["x"], {}), autospec=True)


@pytest.mark.parametrize(
    ("words", "host", "command"),
    [
        (["--", "hostname"], "ctl", ["hostname"]),
        (["n2", "--", "srun", "-N2", "--help"], "n2", ["srun", "-N2", "--help"]),
        (["--user", "trainer", "--", "n1", "--", "x"], "ctl", ["n1", "--", "x"]),
        (["--", "--user", "x"], "ctl", ["--user", "x"]),
    ],
)
def test_exec_splits_at_the_first_dashes(exec_argv, words, host, command):
    assert main(["devcluster", "exec", *words]) == 0
    assert exec_argv.call_args.args[1:3] == (command, host)


def test_exec_without_command(exec_argv, capsys):
    assert main(["devcluster", "exec", "n1"]) == 2
    assert capsys.readouterr().err.startswith("hpresume: name the command behind --")


@pytest.mark.parametrize(
    "words", [["nonsense"], ["devcluster", "nonsense"], ["devcluster", "up", "-x"]]
)
def test_unknown_words_of_the_command_line(words, capsys):
    assert main(words) == 2
    assert "No such" in capsys.readouterr().err


def test_help_ends_well(capsys):
    assert main(["devcluster", "--help"]) == 0
    assert "crash" in capsys.readouterr().out


def test_errors_are_one_line(capsys, mocker):
    mocker.patch("hpresume.cli.devcluster.require_root")
    mocker.patch("hpresume.cli.devcluster.require_tools")
    mocker.patch("hpresume.cli.devcluster.slurm_version", return_value=(22, 5))
    assert main(["devcluster", "up", "--nodes", "1"]) == 2
    assert capsys.readouterr().err == "hpresume: --nodes 1: must be from 2 to 64\n"


def test_clusters_that_do_not_exist(capsys, monkeypatch):
    monkeypatch.setenv("HPRESUME_DEVCLUSTER_DIR", "/nonexistent")
    assert main(["devcluster", "status", "--name", "x"]) == 1
    assert "there is no cluster 'x' (existing: none); bring it up first" in capsys.readouterr().err
    assert main(["devcluster", "list"]) == 0


def test_missing_tools_are_named_with_their_packages(mocker):
    found = {"slurmctld", "scontrol", "sinfo", "unshare", "nsenter", "setpriv", "setsid", "mount"}
    mocker.patch.object(requirements.shutil, "which", lambda tool, path: tool in found or None)
    with pytest.raises(MissingDependencyError) as caught:
        requirements.require_tools()
    assert str(caught.value) == (
        "not found: slurmd, munged, ip; install with: apt-get install iproute2 munge slurmd"
    )


def test_root_is_required(mocker):
    mocker.patch.object(requirements.os, "geteuid", return_value=1000)
    with pytest.raises(MissingDependencyError, match="use sudo"):
        DevCluster("x").crash("n1")


def test_command_line_drops_all_rights_before_the_program_starts():
    line = command_line(ProcessId(77, 1), ACCOUNTS["trainer"], ["srun", "-N2"], None)
    assert line[:2] == ["nsenter", "--target=77"]
    options = line[line.index("setpriv") : line.index("env")]
    assert {"--reuid=20001", "--regid=20001", "--clear-groups"} <= set(options)
    assert "--chdir=/s/home/trainer" in line
    assert line[-2:] == ["srun", "-N2"]


def test_environment():
    own = {
        "HPRESUME_X": "1",
        "HPRESUME_DEVCLUSTER_DIR": "/d",
        "TERM": "xterm",
        "SLURM_JOB_ID": "5",
        "SECRET": "s",
        "PATH": "/x",
    }
    env = environment(ACCOUNTS["trainer"], Path("/s/slurm.conf"), {"A": "b"}, own)
    assert env["PATH"].split(":")[0] == os.path.dirname(sys.executable)
    del env["PATH"]
    assert env == {
        "HPRESUME_X": "1",
        "TERM": "xterm",
        "HOME": "/s/home/trainer",
        "USER": "trainer",
        "LOGNAME": "trainer",
        "SHELL": "/bin/bash",
        "SLURM_CONF": "/s/slurm.conf",
        "A": "b",
    }


def test_run_reports_what_the_tool_said():
    with pytest.raises(DevClusterError, match=r"ls /nonexistent ended with 2: .*No such file"):
        run(["ls", "/nonexistent"])
    with pytest.raises(DevClusterError, match="sleep 5 did not end within"):
        run(["sleep", "5"], timeout=0.05)
    with pytest.raises(DevClusterError, match="cannot run nonexistent-tool"):
        run(["nonexistent-tool"])


def test_default_plugin(tmp_path):
    package = tmp_path / "hpresume"
    installed, built = package / "hpresume.so", tmp_path / "spank" / "hpresume.so"
    assert default_plugin((22, 5), package) is None
    for path in (installed, built):
        path.parent.mkdir()
        path.touch()
    assert default_plugin((22, 5), package) == built


def test_plugin_for_another_slurm_is_left_out(tmp_path):
    package = tmp_path / "hpresume"
    package.mkdir()
    (package / "hpresume.so").touch()
    (package / "hpresume.so.slurm-version").write_text("22.05\n")
    assert default_plugin((22, 5), package) == package / "hpresume.so"
    assert default_plugin((24, 11), package) is None
