"""What is exported for what was read: plain values, no Slurm."""

import json
import os
import shlex
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpresume.entrypoint import main as env_command
from hpresume.entrypoint.model import Entrypoint, Snapshot, Task, decide, read_task
from hpresume.errors import HpresumeError, SlurmError, UsageError
from hpresume.slurm.ports import FIRST_PORT, PORT_COUNT, master_port

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "3",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "n[1,3-4]",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "n3",
}
NODES = ("n1", "n3", "n4")


# ---------------------------------------------------------------- the port


def test_port_is_free_of_the_kernel_kubernetes_and_slurm():
    assert FIRST_PORT > 10_000
    assert FIRST_PORT + PORT_COUNT <= 30_000


def test_port_differs_between_near_attempts_steps_and_jobs():
    ports = {
        master_port(job, step, attempt)
        for job in range(4000, 4019)
        for step in range(32)
        for attempt in range(1, 17)
    }
    assert len(ports) == 19 * 32 * 16


@given(
    st.integers(1, 2**26),
    st.integers(0, 2**31),
    st.integers(1, 500),
    st.integers(1, PORT_COUNT - 1),
)
def test_port_differs_where_one_number_differs(job, step, attempt, more):
    port = master_port(job, step, attempt)
    assert FIRST_PORT <= port < FIRST_PORT + PORT_COUNT
    assert port != master_port(job + more, step, attempt)
    assert port != master_port(job, step + more, attempt)
    assert port != master_port(job, step, attempt + more)


@given(st.integers(1, 2**26), st.integers(1, 16))
def test_port_after_the_port_is_not_the_next_attempts(job, attempt):
    others = {master_port(job, 0, attempt + more) for more in range(1, 16)}
    assert not {master_port(job, 0, attempt) + more for more in range(8)} & others


def test_port_of_a_step_by_text_and_number():
    assert master_port(5, "3", 1) == master_port(5, 3, 1)
    assert master_port(5, "batch", 1) == master_port(5, 31, 1)


# ---------------------------------------------------------------- the environment


@pytest.mark.parametrize(
    ("changes", "step_id"),
    [
        ({}, "0"),
        ({"SLURM_STEP_NUM_NODES": ""}, "0"),
        ({"SLURM_STEP_ID": "", "SLURM_STEPID": "2"}, "2"),
        ({"SLURM_STEP_ID": ""}, ""),
        ({"SLURM_STEP_ID": "-5"}, ""),
        ({"SLURM_STEP_ID": "4294967290"}, ""),
        ({"SLURM_STEP_ID": "4294967291"}, ""),
        ({"SLURM_STEP_ID": "batch"}, ""),
        ({"SLURM_NNODES": "2"}, ""),
    ],
    ids=[
        "step",
        "count unknown",
        "old name",
        "batch script before 26.05",
        "batch script of 26.05",
        "interactive step",
        "batch step",
        "named step",
        "submitted from another job's step",
    ],
)
def test_step_is_the_tasks_own(changes, step_id):
    task = read_task(STEP | changes)
    assert task.step_id == step_id
    assert bool(task.listed) == bool(step_id)


@pytest.mark.parametrize(
    ("changes", "attempt", "port"),
    [
        ({}, 1, 0),
        ({"MASTER_PORT": "1234"}, 1, 1234),
        ({"HPRESUME_ATTEMPT": "3", "MASTER_PORT": "23456"}, 3, 23456),
        ({"HPRESUME_ATTEMPT": "3"}, 3, 0),
        ({"SLURM_RESTART_COUNT": "2"}, 3, 0),
        ({"SLURM_RESTART_COUNT": "2", "HPRESUME_ATTEMPT": "5"}, 5, 0),
    ],
)
def test_attempt_and_port(changes, attempt, port):
    task = read_task(STEP | changes)
    assert (task.attempt, task.port) == (attempt, port)


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "12_3"}, "'12_3'"),
        (STEP | {"MASTER_PORT": "0"}, "MASTER_PORT='0'"),
        (STEP | {"MASTER_PORT": "65536"}, "MASTER_PORT='65536'"),
        (STEP | {"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
        (STEP | {"HPRESUME_ATTEMPT": "second"}, "HPRESUME_ATTEMPT='second'"),
    ],
)
def test_senseless_environment_is_named(environ, word):
    with pytest.raises(UsageError) as caught:
        read_task(environ)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- the decision

TASK = read_task(STEP)
ANNOUNCED = replace(
    TASK, listed=(), announced=NODES, announced_master="n1", announced_address="10.0.0.9"
)


@pytest.mark.parametrize(
    ("snapshot", "nodes", "address", "rank", "source"),
    [
        (Snapshot(TASK, NODES, (), "10.0.0.1"), NODES, "10.0.0.1", 1, "step"),
        (Snapshot(TASK, NODES, ("n9",), ""), NODES, "n1", 1, "step"),
        (Snapshot(TASK), NODES, "n1", 1, "environment"),
        (Snapshot(TASK, ("n1", "n3")), NODES, "n1", 1, "environment"),
        (Snapshot(TASK, ("n1", "n2", "n4")), NODES, "n1", 1, "environment"),
        (Snapshot(ANNOUNCED), NODES, "10.0.0.9", 1, "supervisor"),
        (Snapshot(ANNOUNCED, NODES, (), "10.0.0.1"), NODES, "10.0.0.1", 1, "step"),
        (Snapshot(replace(ANNOUNCED, announced_master="n2")), NODES, "n1", 1, "supervisor"),
        (Snapshot(Task(7, node="n2"), (), ("n1", "n2"), "a"), ("n1", "n2"), "a", 1, "job"),
        (Snapshot(Task(7, node="login"), (), ("n1", "n2"), "a"), ("n1", "n2"), "a", -1, "job"),
        (Snapshot(Task(7, node_id=1), (), ("n1", "n2"), "a"), ("n1", "n2"), "a", 1, "job"),
        (Snapshot(Task(7, node_id=2), (), ("n1", "n2"), "a"), ("n1", "n2"), "a", -1, "job"),
        (Snapshot(Task(7), (), ("n1", "n2"), "n1"), ("n1", "n2"), "n1", -1, "job"),
    ],
    ids=[
        "record of the step",
        "address unknown",
        "no answer",
        "record of a part of the step",
        "record without this node",
        "supervisor's list",
        "address of now before the supervisor's",
        "supervisor's address of another node",
        "batch script",
        "shell on a login node",
        "node without a name",
        "node id out of range",
        "address equals the name",
    ],
)
def test_decision(snapshot, nodes, address, rank, source):
    found = decide(snapshot)
    assert found == Entrypoint(nodes, address, found.master_port, rank, source)


def test_tasks_of_one_node_share_its_rank_and_all_share_the_port():
    tasks = [
        read_task(
            STEP | {"SLURMD_NODENAME": node, "SLURM_NODEID": str(index), "SLURM_PROCID": proc}
        )
        for index, node in enumerate(NODES)
        for proc in "01"
    ]
    found = [decide(Snapshot(task, NODES)) for task in tasks]
    assert [one.node_rank for one in found] == [0, 0, 1, 1, 2, 2]
    assert len({one.master_port for one in found}) == 1


def test_unknown_nodes_say_why():
    with pytest.raises(SlurmError, match="not known: slurmctld is away"):
        decide(Snapshot(Task(7), trouble="slurmctld is away"))
    with pytest.raises(SlurmError, match="lists no nodes for job 7"):
        decide(Snapshot(Task(7)))


NAMES = st.lists(st.sampled_from(["n1", "n2", "n3", "gpu-a.site"]), max_size=4, unique=True).map(
    tuple
)


@given(
    st.builds(
        Snapshot,
        st.builds(
            Task,
            job_id=st.integers(1, 2**32),
            step_id=st.sampled_from(["", "0", "12"]),
            node=st.sampled_from(["", "n1", "n3", "login"]),
            node_id=st.integers(-1, 5),
            num_nodes=st.integers(-1, 4),
            listed=NAMES,
            announced=NAMES,
            announced_master=st.sampled_from(["", "n1", "n2"]),
            announced_address=st.sampled_from(["", "10.0.0.2"]),
            attempt=st.integers(1, 99),
            port=st.integers(0, 65535),
        ),
        step_nodes=NAMES,
        job_nodes=NAMES,
        master_address=st.sampled_from(["", "10.0.0.1"]),
    )
)
def test_decision_is_sound_whatever_was_read(snapshot):
    task = snapshot.task
    try:
        found = decide(snapshot)
    except SlurmError:
        assert not snapshot.job_nodes
        return
    assert found.node_list
    assert found.master_addr
    assert 0 < found.master_port < 65536
    assert -1 <= found.node_rank < len(found.node_list)
    if task.node in found.node_list:
        assert found.node_list[found.node_rank] == task.node
    if found.source != "job":
        assert task.fits(found.node_list)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30)


@given(
    st.dictionaries(
        st.sampled_from([*STEP, "HPRESUME_ATTEMPT", "MASTER_PORT", "NODE_LIST", "MASTER_ADDR"]),
        st.one_of(
            TEXT, st.integers(-(2**70), 2**70).map(str), st.sampled_from(["n[1-3]", "n[3-1]"])
        ),
    )
)
def test_any_environment_is_read_or_refused(environ):
    with suppress(HpresumeError):
        read_task(environ)


# ---------------------------------------------------------------- the command


def fake_scontrol(folder: Path, body: str) -> Path:
    """A folder for PATH with a scontrol that runs ``body``."""
    folder.mkdir(exist_ok=True)
    tool = folder / "scontrol"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return folder


def run_env(environ: dict[str, str], *args: str, path: str = "/usr/bin:/bin"):
    return subprocess.run(
        [sys.executable, "-m", "hpresume", "env", *args],
        env={"PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


@given(TEXT.filter(bool), TEXT.filter(bool))
def test_shell_output_is_quoted(name, address):
    text = env_command.as_shell(Entrypoint((name, "n2"), address, 23456, 1, "step"))
    words = dict(word.split("=", 1) for word in shlex.split(text)[1:])
    assert words == {
        "NODE_LIST": f"{name},n2",
        "MASTER_NODE": name,
        "MASTER_ADDR": address,
        "MASTER_PORT": "23456",
        "NNODES": "2",
        "NODE_RANK": "1",
    }


def test_shell_output_clears_a_rank_that_does_not_apply():
    text = env_command.as_shell(Entrypoint(("n1",), "n1", 23456, -1, "job"))
    assert text.startswith("unset NODE_RANK; export NODE_LIST=n1 ")
    assert "NODE_RANK=" not in text


def test_json_output(tmp_path):
    path = fake_scontrol(tmp_path / "bin", 'echo "Job step 7.0 not found"; exit 1')
    done = run_env(STEP, "--format=json", path=f"{path}:/usr/bin:/bin")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "NODE_LIST": list(NODES),
        "MASTER_NODE": "n1",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": master_port(7, 0, 1),
        "NNODES": 3,
        "NODE_RANK": 1,
        "source": "environment",
    }


@pytest.mark.parametrize(
    ("environ", "args", "code"),
    [
        ({}, [], 2),
        (STEP, ["--format=csh"], 2),
        (STEP, ["--timeout=soon"], 2),
        (STEP, ["--timeout=0"], 2),
        (STEP | {"HPRESUME_ENV_TIMEOUT": "nan"}, [], 2),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]"}, [], 1),
    ],
    ids=["no job", "format", "time-out", "no time", "not a time", "nodes not known"],
)
def test_failure_is_one_line_and_stops_a_script(tmp_path, environ, args, code):
    path = fake_scontrol(tmp_path / "bin", "exit 1")
    done = run_env(environ, *args, path=f"{path}:/usr/bin:/bin")
    assert done.returncode == code
    assert done.stderr.startswith("hpresume env: ")
    assert done.stderr.count("\n") == 1
    script = 'MASTER_ADDR=stale; eval "$1" || echo stopped; echo "${MASTER_ADDR-}"'
    shell = subprocess.run(
        ["sh", "-c", script, "sh", done.stdout], capture_output=True, text=True, check=True
    )
    assert shell.stdout == "stopped\n\n"


def test_failure_prints_no_object(tmp_path):
    done = run_env({}, "--format=json")
    assert (done.returncode, done.stdout) == (2, "")


def test_help_goes_to_stdout():
    done = run_env({}, "--help")
    assert done.returncode == 0
    assert 'eval "$(hpresume env || echo false)"' in done.stdout


def test_silent_slurmctld_is_waited_for_within_the_bound(tmp_path):
    path = fake_scontrol(tmp_path / "bin", "exec sleep 60")
    done = run_env(STEP, "--timeout=1", path=f"{path}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert "MASTER_ADDR=n1 " in done.stdout
    assert "no answer within" in done.stderr
    assert done.stderr.count("\n") == 1


def test_restarting_slurmctld_is_asked_again(tmp_path):
    refusal = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    path = fake_scontrol(
        tmp_path / "bin",
        f"""echo "$*" >> {tmp_path}/asked
[ "$(wc -l < {tmp_path}/asked)" -gt 2 ] || {{ echo "{refusal}" >&2; exit 1; }}
case $* in
(*step*) echo "StepId=7.0 UserId=0 State=RUNNING Partition=p NodeList=n[1,3-4] Nodes=3 Tasks=3" ;;
(*node*) echo "NodeName=n1 NodeAddr=10.0.0.1 NodeHostName=n1 State=IDLE" ;;
esac""",
    )
    done = run_env(STEP, path=f"{path}:/usr/bin:/bin")
    assert (done.returncode, done.stderr) == (0, "")
    assert "MASTER_ADDR=10.0.0.1 " in done.stdout


def test_without_scontrol_the_environment_answers(tmp_path):
    done = run_env(STEP, path=str(tmp_path))
    assert done.returncode == 0
    assert f"NODE_LIST={','.join(NODES)} " in done.stdout
    assert "scontrol is not on PATH" in done.stderr


def test_start_imports_nothing_heavy():
    code = "import sys, hpresume.entrypoint.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    heavy = {"ClusterShell", "tenacity", "typer", "rich", "argparse", "json", "hpresume.slurm.cli"}
    assert not heavy & set(done.stdout.split())
