"""Which ranks of a step have ended, by what its nodes told of them."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from hpresume.resume import rank_stacks
from hpresume.resume.hang import Touch
from hpresume.resume.stacks import ended_ranks

NODES = ("n1", "n2")
ONE = "rank 0 on n1\n  pid 7 python train.py\n    state S (sleeping), waits in do_wait\n"
ON_1 = {1: Touch(5.0, "n1")}
ON_2 = {1: Touch(5.0, "n2")}


@pytest.mark.parametrize(
    ("text", "touches", "ended"),
    [
        (ONE + "rank 1 on n2\n", {}, set()),
        (ONE + f"{rank_stacks.NO_RANK} n2\n", {}, {1}),
        (ONE + f"{rank_stacks.NO_RANK} n2\n", ON_2, {1}),
        (ONE, {}, set()),  # n2 did not answer
        (ONE, ON_2, set()),
        (ONE, ON_1, {1}),
        (ONE + "the ranks on n2 are not known: slurmd does not answer\n", ON_2, set()),
        (f"{rank_stacks.NO_RANK} n1\n{rank_stacks.NO_RANK} n2\n", {}, {0, 1}),
        ("no stacks: srun: no such file\n", {}, set()),
        ("", {}, set()),
        (ONE.replace("train.py", "rank 1 on n2"), {}, set()),
    ],
)
def test_what_surely_has_ended(text: str, touches: dict[int, Touch], ended: set[int]) -> None:
    assert ended_ranks(text, 2, touches, NODES) == ended


def test_a_tool_that_hangs_leaves_nothing_behind(tmp_path: Path) -> None:
    """As py-spy may, or a script around it; the FAKE one starts another process."""
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 100 & sleep 100\n")
    spy.chmod(0o755)
    began = time.monotonic()
    assert rank_stacks.run([str(spy), "dump"], 0.5) == ""
    assert time.monotonic() - began < 10
    group = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while _members(group):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)


def _members(group: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = stat.read_text().rpartition(")")[2].split()
            found += [stat.parent.name] if words[0] != "Z" and int(words[2]) == group else []
    return found
