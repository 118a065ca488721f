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


HEADER = "PID      JOBID    STEPID   LOCALID GLOBALID"
GONE = "echo 'StepId=7.0 does not exist on node (null).' >&2; exit 1"
REFUSED = "echo 'Unable to connect to slurmstepd: Connection refused' >&2; exit 1"


@pytest.mark.parametrize(
    ("said", "own", "ranks"),
    [
        (f"echo '{HEADER}'; echo '62 7 0 0 3'; echo '64 7 0 - -'", "exit 1", {62: "3"}),
        (f"echo '{HEADER}'; echo '62 7 0 0 3'; echo warned >&2", "exit 1", {62: "3"}),
        (f"echo '{HEADER}'; {GONE}", f"echo '{HEADER}'", {}),  # recorded from 22.05
        (GONE, f"echo '{HEADER}'", {}),  # recorded from 24.11
        (GONE, GONE, None),  # Slurm's folder is not seen from here
        (f"echo '{HEADER}'; {REFUSED}", f"echo '{HEADER}'", None),
        (f"echo '{HEADER}'; exit 1", f"echo '{HEADER}'", None),
        ("true", f"echo '{HEADER}'", None),
    ],
)
def test_ranks_of_a_step_on_this_node(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    own: str,
    ranks: dict[int, str] | None,
) -> None:
    """The FAKE scontrol knows step 0 of job 7, and step 4, which asks."""
    fake = tmp_path / "scontrol"
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in "listpids 7.4") {own};; "listpids 7.0") {said};; esac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_STEP_ID", "4")
    assert rank_stacks.ranks_here("7.0") == ranks


def test_no_scontrol_no_knowledge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert rank_stacks.ranks_here("7.0") is None


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
