"""What the first attempt is told about its nodes, with a stand-in for scontrol."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpresume.resume import first
from hpresume.resume.first import (
    covers_job,
    first_host,
    fit_nodes,
    node_address,
    nodes_of_steps,
    nodes_to_ask_for,
    nodes_wanted,
    step_variables,
    takes_turns,
)
from hpresume.slurm.nodeset import expand, fold

JOB = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3", "SLURM_NNODES": "3"}


@pytest.mark.parametrize(
    ("options", "environ", "whole"),
    [
        ("", {}, True),
        ("-l --gres=gpu:4 -J name -o out", {}, True),
        ("-lu -o nodes -J vn", {}, True),
        ("", {"SLURM_NTASKS": "3"}, True),
        ("", {"SLURM_NTASKS": "12"}, True),
        ("", {"SLURM_NTASKS": "2"}, False),
        ("", {"SLURM_NPROCS": "2"}, False),
        ("", {"SLURM_NTASKS": "many"}, False),
        ("", {"SLURM_NNODES": "2"}, False),
        ("", {"SLURM_JOB_NUM_NODES": ""}, False),
        ("-N2", {}, False),
        ("-N 2", {}, False),
        ("--nodes=2", {}, False),
        ("--nod=2", {}, False),
        ("-n 2", {}, False),
        ("--ntasks=2", {}, False),
        ("-w n2", {}, False),
        ("--nodelist=n2", {}, False),
        ("-x n2", {}, False),
        ("--exclude=n2", {}, False),
        ("-r1", {}, False),
        ("--relative=1", {}, False),
        ("--jobid=8", {}, False),
        ("-F hosts", {}, False),
        ("--gpus=2", {}, False),
    ],
)
def test_covers_job(options: str, environ: dict[str, str], whole: bool) -> None:
    assert covers_job({**JOB, **environ}, options.split()) is whole


@pytest.mark.parametrize("options", ["-lN2", "-lun2", "-vvwn2"])
def test_options_in_one_word(options: str) -> None:
    assert not covers_job(JOB, [options])


@pytest.mark.parametrize(
    ("expression", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-3]", "n1"),
        ("n[01-03,7],m1", "n01"),
        ("n[7,1-3]", "n7"),
        ("m,n[1-3]", "m"),
        ("rack[1-2]node[3-4]", "rack1node3"),
        ("n[1-2]-ib,m", "n1-ib"),
        ("", ""),
        ("n[1", "n1"),
    ],
)
def test_first_host(expression: str, host: str) -> None:
    assert first_host(expression) == host


NAMES = st.lists(st.from_regex(r"[a-c]{1,2}[0-9]{0,2}(-ib)?", fullmatch=True), min_size=1)


@settings(deadline=None)
@given(NAMES)
def test_first_host_is_the_first_that_slurm_means(names: list[str]) -> None:
    expression = fold(names)
    assert first_host(expression) == expand(expression)[0]


@pytest.mark.parametrize(
    ("shown", "address"),
    [
        ("NodeName=n1 NodeAddr=10.0.0.1 NodeHostName=n1", "10.0.0.1"),
        ("NodeName=n1 State=IDLE", ""),
        ("", ""),
        ("XNodeAddr=1 NodeAddr=2", "2"),
    ],
)
def test_node_address(shown: str, address: str) -> None:
    assert node_address(shown) == address


# -- with a stand-in for scontrol -----------------------------------------------


@pytest.fixture
def scontrol(tmp_path: Path) -> Path:
    path = tmp_path / "scontrol"
    path.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        '"show hostnames n[1-3]") printf "n1\\nn2\\nn3\\n";;\n'
        '"--oneliner show node n1") echo "NodeName=n1 NodeAddr=10.0.0.1 Port=1";;\n'
        "*) exit 9;;\nesac\n"
    )
    path.chmod(0o755)
    return path


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_step_over_the_whole_job(scontrol: Path) -> None:
    assert step_variables(JOB, ["-l"], str(scontrol)) == {
        "NODE_LIST": "n1,n2,n3",
        "MASTER_NODE": "n1",
        "MASTER_ADDR": "10.0.0.1",
    }


def test_nothing_is_said_where_it_is_not_certain(scontrol: Path) -> None:
    assert step_variables(JOB, ["-N2"], str(scontrol)) == {}
    assert step_variables({}, [], str(scontrol)) == {}
    assert step_variables({**JOB, "SLURM_JOB_NODELIST": "m[1-3]"}, [], str(scontrol)) == {}


def test_without_an_address_the_name_has_to_do(tmp_path: Path) -> None:
    fake = script(tmp_path / "scontrol", '[ "$2" = hostnames ] && echo "n1 n2 n3"')
    assert step_variables(JOB, [], fake)["MASTER_ADDR"] == "n1"


@pytest.mark.parametrize("text", ["exit 1", "echo n1; kill -9 $$", "echo other", "exec true"])
def test_a_scontrol_that_fails_is_nobodys_error(tmp_path: Path, text: str) -> None:
    assert step_variables(JOB, [], script(tmp_path / "scontrol", text)) == {}


def test_a_scontrol_that_is_not_there(tmp_path: Path) -> None:
    assert step_variables(JOB, [], str(tmp_path / "none")) == {}


@pytest.mark.timeout(20)
def test_a_scontrol_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first, "_LIMIT_S", 0.05)
    fake = script(tmp_path / "scontrol", "echo n1; exec sleep 600")
    assert step_variables(JOB, [], fake) == {}


# -- the first node of a step that is smaller than its job ------------------------

# As Slurm 24.11.5 has it, shortened.
SCONTROL_OF_A_JOB = """#!/bin/sh
[ "$*" = --version ] && exec echo "slurm-wlm ${VERSION:-24.11.5}"
[ "$*" = --oneliner ] || exit 9
while read -r question; do
echo "scontrol: $question"
case $question in
"show job "*)
    echo "JobId=8 ArrayJobId=7 ArrayTaskId=1 JobName=j JobState=RUNNING NodeList=m[1-9]"
    echo "JobId=7 JobName=j JobState=${JOB_STATE:-RUNNING} ReqNodeList=(null)" \\
        "NodeList=${LIVE:-n[1-6]} BatchHost=n1 NumNodes=6";;
"show step 7")
    echo "StepId=7.batch UserId=0 State=RUNNING NodeList=n1 Name=batch"
    echo "StepId=7.TDB UserId=0 State=PENDING NodeList=n[1-6] Name=later"
    echo "StepId=7.0 UserId=0 State=RUNNING NodeList=n[1-6] Name=hpresume-watch"
    echo "StepId=7.1 UserId=0 State=RUNNING NodeList=${TAKEN:-n[5-6]} Name=train";;
"show node n["*)
    [ -n "$LIVE" ] || echo "NodeName=n1 State=${STATE:-ALLOCATED} CPUAlloc=4"
    for n in 2 3 4 5 6; do echo "NodeName=n$n State=MIXED CPUAlloc=4"; done;;
"show hostnames n[5-6]") printf "n5\\nn6\\n";;
"show hostnames n[1-2]") printf "n1\\nn2\\n";;
"show hostnames n[2-3]") printf "n2\\nn3\\n";;
*) echo "invalid: $question" >&2; code=1;;
esac
done
exit $code
"""

SIX = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-6]",
    "SLURM_JOB_NUM_NODES": "6",
    "SLURM_NNODES": "6",
}


@pytest.fixture
def scontrol_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(first, "_claims", [])
    monkeypatch.setattr(first, "_CLAIM", f"\0test-{os.getpid()}-")
    path = tmp_path / "scontrol"
    path.write_text(SCONTROL_OF_A_JOB)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("options", "environ", "nodes"),
    [
        ("-N3", {}, "n1,n2,n3"),
        ("-lN3", {}, "n1,n2,n3"),
        ("--exclusive -n3", {}, "n1,n2,n3"),
        ("-m cyclic -N2 --overlap", {}, "n1,n2"),
        ("-N3", {"VERSION": "25.11.1"}, "n1,n2,n3"),
        ("-N3", {"LIVE": "n[2-6]"}, "n2,n3,n4"),
        ("-N3", {"TAKEN": "n[2-3]"}, "n1,n4,n5"),
        # More than are idle, or a number that is not plain: the first node alone.
        ("-N5", {}, "n1"),
        ("-N2-4", {}, "n1"),
        ("-N3 --ntasks-per-node=2", {}, "n1"),
        ("--jobid=7", {"SLURM_JOB_ID": "8"}, "n1"),
        ("--jobid 7 -N2", {"SLURM_JOB_ID": "", "SLURM_JOB_NODELIST": ""}, "n1,n2"),
        # Until 24.05 the first nodes are taken anyway.
        ("-N3", {"VERSION": "24.05.4"}, ""),
        ("-N3", {"VERSION": "22.05.8"}, ""),
        ("-N3", {"VERSION": "?"}, ""),
        # All nodes, or those that the user has chosen.
        ("", {}, ""),
        ("-N3 -w n4", {}, ""),
        ("-N3 -lxn1", {}, ""),
        ("-N3 --exclude=n1", {}, ""),
        ("-N3 --relative 1", {}, ""),
        ("-N3", {"SLURM_HOSTFILE": "hosts"}, ""),
        ("-N3 -M other", {}, ""),
        ("--jobid=5_2 -N3", {}, ""),
        # The node is none to start on, or not now.
        ("-N3", {"TAKEN": "n[1-2]"}, ""),
        ("-N3", {"STATE": "ALLOCATED*"}, ""),
        ("-N3", {"STATE": "DOWN+NOT_RESPONDING"}, ""),
        ("-N3", {"STATE": "ALLOCATED+DRAIN"}, ""),
        ("-N3", {"LIVE": "n1"}, ""),
        ("-N3", {"JOB_STATE": "COMPLETING"}, ""),
    ],
)
def test_the_first_node_is_kept(
    scontrol_of_a_job: str, options: str, environ: dict[str, str], nodes: str
) -> None:
    assert nodes_to_ask_for({**SIX, **environ}, options.split(), scontrol_of_a_job) == nodes


def test_of_several_at_once_one_asks_for_the_first_node(scontrol_of_a_job: str) -> None:
    assert nodes_to_ask_for(SIX, ["-N3"], scontrol_of_a_job) == "n1,n2,n3"
    assert nodes_to_ask_for(SIX, ["-N3"], scontrol_of_a_job) == ""


@pytest.mark.parametrize("text", ["exit 1", "exec true", "echo 24.11; kill -9 $$"])
def test_without_an_answer_no_node_is_asked_for(tmp_path: Path, text: str) -> None:
    assert nodes_to_ask_for(SIX, ["-N3"], script(tmp_path / "scontrol", text)) == ""


@pytest.mark.parametrize(
    ("options", "environ", "count"),
    [
        ("-N3", {}, 3),
        ("-N 3", {}, 3),
        ("-lN3", {}, 3),
        ("--nodes=3", {}, 3),
        ("--nodes 3 -n8", {}, 3),
        ("-N4 --nodes=2", {}, 2),
        ("--nodes=2 -N4 -n3", {}, 3),
        ("-n3", {}, 3),
        ("--ntasks 3", {}, 3),
        ("-n9", {}, 6),
        ("", {"SLURM_NTASKS": "2"}, 2),
        ("-n3", {"SLURM_NNODES": ""}, 1),
        ("-N2-3", {}, 1),
        ("-N1k", {}, 1),
        ("-N2 -n2k", {}, 1),
        ("-n4 --ntasks-per-node=2", {}, 1),
        ("-N", {}, 6),
        ("--no-kill -N2", {}, 2),
        ("--nice -N2", {}, 2),
    ],
)
def test_nodes_wanted(options: str, environ: dict[str, str], count: int) -> None:
    assert nodes_wanted({**SIX, **environ}, options.split()) == count


@pytest.mark.parametrize(
    ("version", "turns"),
    [
        ("slurm 24.11.5", True),
        ("slurm-wlm 24.11.5\n", True),
        ("slurm 26.05.0-0rc1", True),
        ("slurm 24.05.8", False),
        ("slurm-wlm 22.05.8", False),
        ("slurm", False),
        ("", False),
    ],
)
def test_takes_turns(version: str, turns: bool) -> None:
    assert takes_turns(version) is turns


def test_lines_that_say_nothing() -> None:
    assert nodes_of_steps("\n\nNo steps\n") == []
    assert fit_nodes("Node n1 not found\n\n") == []
