"""The environment of an attempt, and Slurm's counts for another number of nodes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpresume.resume.environment import AttemptFacts, attempt_environment, resize_counts
from hpresume.slurm.nodeset import expand


@pytest.mark.parametrize(
    ("text", "nodes", "wanted"),
    [
        ("4", 1, "4"),
        ("4", 3, "4(x3)"),
        ("4(x3)", 3, "4(x3)"),
        ("4(x3)", 2, "4(x2)"),
        ("4(x3)", 1, "4"),
        ("2(x3),4", 4, "2(x3),4"),
        ("2(x3),4", 3, "2(x3)"),
        ("2(x3),4", 6, "2(x3),4,2(x2)"),
        ("8,2(x2)", 5, "8,2(x4)"),
        ("2,4,2", 3, "2,4,2"),
        ("2, 4", 2, "2,4"),
    ],
)
def test_resize_counts(text: str, nodes: int, wanted: str) -> None:
    assert resize_counts(text, nodes) == wanted


@pytest.mark.parametrize(
    "text", ["", "all", "4(x3", "4,,4", "4(3)", "-4", "(x3)", "4(x0)", "4(x" + "9" * 5000 + ")"]
)
def test_counts_in_another_form_stay_as_they_are(text: str) -> None:
    assert resize_counts(text, 3) == text


def test_counts_for_absurdly_many_nodes_end() -> None:
    assert resize_counts("1(x999999999)", 3) == "1(x3)"
    endless = ",".join(["1(x99999)"] * 1000)
    assert resize_counts(endless, 3) == endless


def expanded(text: str) -> list[str]:
    """Slurm's form written out, by a rule of its own."""
    return re.sub(r"(\d+)\(x(\d+)\)", lambda m: ",".join([m[1]] * int(m[2])), text).split(",")


COUNTS = st.lists(st.tuples(st.integers(0, 999), st.integers(1, 9)), min_size=1, max_size=6)


@settings(deadline=None)
@given(COUNTS, st.integers(1, 40))
def test_resized_counts_cover_the_nodes_and_keep_their_places(
    groups: list[tuple[int, int]], nodes: int
) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in groups)
    before, after = expanded(text), expanded(resize_counts(text, nodes))
    assert len(after) == nodes
    shared = min(nodes, len(before))
    assert after[:shared] == before[:shared]
    assert set(after) <= set(before)


@settings(deadline=None)
@given(st.text(max_size=30) | st.text("0123456789(x),", max_size=20), st.integers(1, 5))
def test_no_text_raises(text: str, nodes: int) -> None:
    resize_counts(text, nodes)


# -- attempt_environment -----------------------------------------------------------------

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
    "SLURM_JOB_CPUS_PER_NODE": "8(x3)",
    "SLURM_TASKS_PER_NODE": "2(x3)",
    "HOME": "/home/u",
}


def test_after_a_change_of_nodes_every_variable_says_so() -> None:
    facts = AttemptFacts(2, 20123, ("n1", "n2", "n4", "n5"), ("n1", "n2", "n4"), "10.0.0.1")
    assert attempt_environment(SLURM, facts) == {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n1,n2,n4,n5",
        "SLURM_NODELIST": "n1,n2,n4,n5",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_NNODES": "4",
        "SLURM_JOB_CPUS_PER_NODE": "8(x4)",
        "SLURM_TASKS_PER_NODE": "2(x4)",
        "HOME": "/home/u",
        "HPRESUME_ATTEMPT": "2",
        "NODE_LIST": "n1,n2,n4",
        "MASTER_NODE": "n1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20123",
    }


def test_without_an_allocation_only_attempt_and_port_are_known() -> None:
    changed = attempt_environment({"HOME": "/h"}, AttemptFacts(1, 20001))
    assert changed == {"HOME": "/h", "HPRESUME_ATTEMPT": "1", "MASTER_PORT": "20001"}


def test_counts_that_slurm_did_not_set_are_not_invented() -> None:
    changed = attempt_environment({}, AttemptFacts(2, 20001, ("n1",), ("n1",)))
    assert "SLURM_TASKS_PER_NODE" not in changed
    assert changed["SLURM_NNODES"] == "1"


def test_the_name_stands_in_for_an_address_that_is_not_known() -> None:
    assert attempt_environment({}, AttemptFacts(2, 1, (), ("n2", "n1")))["MASTER_ADDR"] == "n2"


def test_the_users_port_holds_for_the_first_attempt_only() -> None:
    own = {"MASTER_PORT": "29500"}
    assert attempt_environment(own, AttemptFacts(1, 20001))["MASTER_PORT"] == "29500"
    assert attempt_environment(own, AttemptFacts(2, 20002))["MASTER_PORT"] == "20002"


def test_the_given_environment_is_left_alone() -> None:
    before = dict(SLURM)
    attempt_environment(SLURM, AttemptFacts(2, 1, ("n9",), ("n9",)))
    assert before == SLURM


def test_the_nodes_of_a_huge_job_fit_into_a_variable() -> None:
    """The kernel's limit is 128 KiB for one variable (MAX_ARG_STRLEN)."""
    names = tuple(f"gpu-rack-node-{n:06d}" for n in range(20_000))
    made = attempt_environment({}, AttemptFacts(2, 20000, names, names, "n"))
    for name in ("NODE_LIST", "SLURM_JOB_NODELIST"):
        assert len(made[name]) < 100_000
        assert expand(made[name]) == names
    assert made["SLURM_NNODES"] == "20000"
