"""A protected step that ends well, over FAKES of srun and scontrol: what it loads and says.

Start-up time is felt at every srun, so this path has to do with the standard
library; everything third-party can be imported here and must not be.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

import hpresume

ROOT = Path(hpresume.__file__).resolve().parents[1]

#: The user's step: ends with CODE, or, with WATCHED, once its watch step beats.
FAKE_SRUN = """#!/bin/sh
here=${0%/*}
case " $* " in
*" --help "*) printf 'Usage: srun\\n  -N, --nodes=N   nodes\\n  -l, --label   label\\n'; exit 0;;
*" --= "*) exit 1;;
*" --job-name=hpresume-watch "*)
    printf 'hpresume-beat n1 1\\nhpresume-beat n2 1\\n'
    : > "$here/watched"
    cat
    exit 0;;
esac
echo $$ > "$here/pid"
printf '%s\\n' "$*" > "$here/argv"
env > "$here/env"
[ -z "$WATCHED" ] || while ! [ -e "$here/watched" ]; do sleep 0.02; done
exit "${CODE:-0}"
"""

FAKE_SCONTROL = """#!/bin/sh
here=${0%/*}
case "$*" in
"show config")
    echo 'ClusterName = c'; echo 'SLURM_VERSION = 24.11.5'; echo 'SlurmdPort = 6818'
    echo 'SlurmdTimeout = 300 sec'; echo 'KillWait = 30 sec'; echo 'JobRequeue = 1';;
"show hostnames "*)
    printf 'n1\\nn2\\n';;
*" show node "*)
    for n in 1 2; do
        echo "NodeName=n$n NodeAddr=127.0.0.1 NodeHostName=n$n Port=9 State=ALLOCATED"
    done;;
*" show step 7")
    [ -e "$here/pid" ] || exit 0
    echo "StepId=7.0 UserId=0 StartTime=1795972359 TimeLimit=UNLIMITED State=RUNNING" \\
        "Partition=p NodeList=n[1-2] Nodes=2 CPUs=2 Tasks=2 Name=true Network=(null)" \\
        "TRES=(null) SrunHost:Pid=$(uname -n):$(cat "$here/pid")";;
*" show job 7")
    echo "JobId=7 JobName=j UserId=root(0) Account=(null) QOS=(null) JobState=RUNNING" \\
        "Reason=None Requeue=1 Restarts=0 BatchFlag=1 RunTime=00:00:01" \\
        "StartTime=1795972359 EndTime=4095972359 Partition=p AllocNode:Sid=n1:1" \\
        "ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2" \\
        "NumCPUs=2 NumTasks=2 TRES=cpu=2,node=2 OverSubscribe=NO";;
*)
    echo "scontrol: $*" >> "$here/unexpected"; exit 1;;
esac
"""

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_TASK_PID": "1",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NUM_NODES": "2",
}


@dataclass
class Done:
    """What came of one supervised step."""

    code: int
    modules: set[str]
    said: list[str]
    folder: Path

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def variables(self) -> dict[str, str]:
        pairs = (line.partition("=") for line in self.text("env").splitlines())
        return {name: value for name, _, value in pairs}


def supervise(folder: Path, *options: str, **environ: str) -> Done:
    for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    site = sysconfig.get_path("purelib")
    command = [sys.executable, "-S", "-X", "importtime", "-m", "hpresume", "supervise"]
    done = subprocess.run(
        [*command, "--wrapper", f"--srun={folder / 'srun'}", *options],
        env={
            "PATH": f"{folder}:/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT}:{site}",  # without the hooks of site, which load more
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
            **JOB,
            **environ,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    timing = re.compile(r"import time: +\d+ \| +\d+ \| +(\S+)$")
    lines = done.stderr.splitlines()
    modules = {m[1] for line in lines if (m := timing.match(line))}
    said = [line for line in lines if not line.startswith("import time:")]
    assert done.stdout == ""
    return Done(done.returncode, modules, said, folder)


def third_party(modules: set[str]) -> set[str]:
    """Those that come from an installed package."""
    installed = set(importlib.metadata.packages_distributions()) - {"hpresume"}
    wanted = {"typer", "rich", "tenacity", "ClusterShell"}
    assert wanted <= installed, "cannot be noticed where they are not installed"
    return {m for m in modules if m.partition(".")[0] in installed}


STEP = ("--command-index=1", "--", "srun", "true")


@pytest.mark.parametrize("environ", [{}, {"HPRESUME_MAX_RESUMES": "5"}], ids=["plain", "set"])
def test_a_short_step_loads_next_to_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    done = supervise(tmp_path, *STEP, **environ)
    assert (done.code, done.said) == (0, [])
    assert "hpresume.resume.process" in done.modules
    assert not third_party(done.modules)
    heavy = {"subprocess", "dataclasses", "typing", "re", "json", "logging", "inspect", "random"}
    assert not heavy & done.modules
    assert not {m for m in done.modules if m.startswith("hpresume.") and "supervisor" in m}


def test_a_short_step_gets_its_arguments_and_its_environment(tmp_path: Path) -> None:
    done = supervise(tmp_path, "--command-index=2", "--", "srun", "-l", "true", "a b")
    assert done.code == 0
    assert done.text("argv") == "-l true a b\n"
    told = done.variables()
    assert told["HPRESUME_ATTEMPT"] == "1"
    assert 20000 <= int(told["MASTER_PORT"]) < 30000
    assert (told["NODE_LIST"], told["MASTER_NODE"]) == ("n1,n2", "n1")
    assert told["MASTER_ADDR"] == "127.0.0.1"
    assert told["SLURM_JOB_NODELIST"] == "n[1-2]"
    assert not done.text("unexpected")


def test_a_watched_step_loads_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """With the default delay, one second: the whole way to a watch step that beats."""
    done = supervise(tmp_path, *STEP, WATCHED="1")
    assert done.code == 0
    assert {"hpresume.resume.supervisor", "hpresume.resume.watch"} <= done.modules
    assert "hpresume.resume.protection" in done.modules
    assert not third_party(done.modules)
    allowed = sys.stdlib_module_names | {"hpresume", "org"}  # copy looks for Jython
    assert {m.partition(".")[0] for m in done.modules} <= allowed
    assert not done.text("unexpected")
    assert done.said[0] == ("[Auto Resume] protecting the step on n1,n2: heartbeat every 1 s")
    (journal,) = (tmp_path / "state").rglob("*.jsonl")
    assert '"event": "finished"' in journal.read_text().splitlines()[-1]


def test_settings_from_the_environment_load_no_more(tmp_path: Path) -> None:
    done = supervise(tmp_path, *STEP, WATCHED="1", HPRESUME_WATCH_DELAY="0")
    assert done.code == 0
    assert "hpresume.resume.watch" in done.modules
    assert not third_party(done.modules)


def test_a_step_that_fails_by_itself_ends_with_its_own_code(tmp_path: Path) -> None:
    done = supervise(tmp_path, *STEP, CODE="3")
    assert done.code == 3
    assert not third_party(done.modules)
    assert not [line for line in done.said if "starting again" in line]


@pytest.mark.parametrize("variable", ["HPRESUME_SRUN", "HPRESUME_ATTEMPT"])
def test_our_own_variables_are_no_unknown_settings(tmp_path: Path, variable: str) -> None:
    assert supervise(tmp_path, *STEP, **{variable: "1"}).said == []


def test_an_unknown_setting_is_a_warning(tmp_path: Path) -> None:
    done = supervise(tmp_path, *STEP, HPRESUME_MAX_RESUME="1")
    assert done.code == 0
    assert done.said[0].startswith("[Auto Resume] warning: HPRESUME_MAX_RESUME is no setting")


def test_without_a_command_the_real_srun_has_the_word(tmp_path: Path) -> None:
    done = supervise(tmp_path, "--command-index=2", "--", "srun", "-l", CODE="7")
    assert done.code == 7
    assert done.text("argv") == "-l\n"


def test_no_process_is_left(tmp_path: Path) -> None:
    done = supervise(tmp_path, *STEP, WATCHED="1", HPRESUME_WATCH_DELAY="0")
    assert done.code == 0
    left = []
    for entry in os.listdir("/proc"):
        try:
            command = Path(f"/proc/{entry}/cmdline").read_bytes() if entry.isdigit() else b""
        except OSError:
            continue
        if os.fsencode(tmp_path) in command:
            left.append(command)
    assert left == []
