"""The journal: what is written, what is read after a crash, what is counted from it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpresume.errors import JournalError
from hpresume.resume.journal import (
    Journal,
    Past,
    ended_steps,
    node_names,
    past_of,
    read,
    step_key,
    streak_after,
)
from hpresume.resume.model import Cause

KEY = "a" * 12
OTHER = "b" * 12


def record(event: str, step: str = KEY, **fields: object) -> dict[str, Any]:
    return {"t": 1.0, "event": event, "step": step, "run": 0, **fields}


def attempt(number: object, step: str = KEY) -> dict[str, Any]:
    return record("attempt", step, attempt=number)


def ended(streak: object, step: str = KEY) -> dict[str, Any]:
    return record("ended", step, without_progress=streak)


def counts(past: Past) -> tuple[int, int, frozenset[str], bool, bool]:
    return (
        past.attempts,
        past.without_progress,
        past.bad_nodes,
        past.open_attempt is not None,
        past.requeued,
    )


# -- the file ---------------------------------------------------------------------------


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "cluster" / "7.jsonl"
    Journal(path, KEY, 0).write("attempt", 12.34567, attempt=1, nodes=["n1", "é\udcff"])
    Journal(path, KEY, 1).write("finished", 13.0, exit_code=0, path=Path("/x"))
    assert read(path) == [
        {"t": 12.346, "event": "attempt", "step": KEY, "run": 0, "attempt": 1,
         "nodes": ["n1", "é\udcff"]},
        {"t": 13.0, "event": "finished", "step": KEY, "run": 1, "exit_code": 0, "path": "/x"},
    ]  # fmt: skip


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "7.jsonl"
    Journal(path, KEY, 0).write("attempt", 1.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_text_with_line_breaks_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    text = "a\nb\r\u2028\x85\x0b\x1cc"
    Journal(path, KEY, 0).write("ended", 1.0, why=text)
    assert [r["why"] for r in read(path)] == [text]


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == []


def test_a_journal_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "7.jsonl")
    with pytest.raises(JournalError, match=r"cannot be read \(it is no file\)"):
        read(tmp_path / "7.jsonl")


def test_nodes_of_a_record_that_are_no_names() -> None:
    """They are asked about: neither Slurm's tools nor the kernel take every text."""
    assert node_names(record("attempt", nodes=["n1", "n\0", "n\ud800", "--help", 7])) == ["n1"]
    assert node_names(record("attempt", nodes="n1")) == node_names(record("attempt")) == []


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"7\.jsonl: cannot be written \("):
        Journal(tmp_path / "file" / "7.jsonl", KEY, 0).write("attempt", 1.0)


@pytest.mark.parametrize(
    "line",
    [
        b'{"t": 1, "event": "at',
        b"",
        b"   ",
        b"\xff\xfe\x00",
        b"null",
        b"1",
        b'"event"',
        b"[]",
        b"{}",
        b'{"event": 1}',
        b'{"event": null}',
        b"[" * 200 + b"]" * 199,
        b'{"event": "attempt", "attempt": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda line: line[:20].decode(errors="replace"),
)
def test_garbage_lines_are_left_out(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "7.jsonl"
    good = json.dumps(record("attempt", attempt=1)).encode()
    path.write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
    assert len(read(path)) == 2


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    Journal(path, KEY, 0).write("attempt", 1.0, attempt=1)
    Journal(path, KEY, 0).write("ended", 2.0, attempt=1)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        events = [r["event"] for r in read(path)]
        assert events == ["attempt", "ended"][: len(events)]
        assert len(events) >= whole[:length].count(b"\n")


def test_the_record_behind_a_cut_off_line_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    Journal(path, KEY, 0).write("attempt", 1.0, attempt=1)
    Journal(path, KEY, 0).write("ended", 2.0, attempt=1, without_progress=1)
    path.write_bytes(path.read_bytes()[:-20])
    Journal(path, KEY, 1).write("attempt", 3.0, attempt=2)
    assert past_of(read(path), KEY).attempts == 2


def test_deep_nesting_is_garbage_too(tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    path.write_text("[" * 200_000 + "\n" + json.dumps(record("attempt", attempt=1)) + "\n")
    assert len(read(path)) == 1


# -- what is counted ---------------------------------------------------------------------

CASES: list[tuple[str, list[dict[str, Any]], tuple[int, int, set[str], bool, bool]]] = [
    ("nothing", [], (0, 0, set(), False, False)),
    ("one attempt that runs", [attempt(1)], (1, 0, set(), True, False)),
    ("one that ended", [attempt(1), ended(1)], (1, 1, set(), False, False)),
    (
        "a node failed, the next one runs",
        [attempt(1), record("fault", nodes=["n3"]), ended(0), attempt(2)],
        (2, 0, {"n3"}, True, False),
    ),
    (
        "failed nodes add up",
        [
            attempt(1), record("fault", nodes=["n3"]), ended(0),
            attempt(2), record("fault", nodes=["n2"]), ended(0),
        ],
        (2, 0, {"n2", "n3"}, False, False),
    ),
    (
        "the last count of attempts without progress holds",
        [attempt(1), ended(1), attempt(2), ended(2), attempt(3), ended(0)],
        (3, 0, set(), False, False),
    ),
    (
        "requeued by the supervisor",
        [attempt(1), record("fault", nodes=["n3"]), ended(0), record("requeue")],
        (1, 0, {"n3"}, False, True),
    ),
    (
        "the run after a requeue",
        [attempt(1), ended(0), record("requeue"), attempt(2)],
        (2, 0, set(), True, False),
    ),
    (
        "the supervisor died, Slurm ran the script again, which died too",
        [attempt(1), attempt(2)],
        (2, 0, set(), True, False),
    ),
    ("finished", [attempt(1), ended(0), record("finished")], (0, 0, set(), False, False)),
    (
        "the same command once more in the script",
        [attempt(1), record("fault", nodes=["n3"]), ended(2), record("finished"), attempt(1)],
        (1, 0, set(), True, False),
    ),
    (
        "begun afresh although nobody wrote down the end",
        [attempt(1), record("fault", nodes=["n3"]), ended(2), attempt(2), attempt(1)],
        (1, 0, set(), True, False),
    ),
    (
        "another step of the job",
        [
            attempt(1, OTHER), ended(3, OTHER), record("fault", OTHER, nodes=["n9"]),
            attempt(1), ended(1), record("finished", OTHER), record("requeue", OTHER),
        ],
        (1, 1, set(), False, False),
    ),
    (
        "events of other versions",
        [attempt(1), record("watched"), record("x")],
        (1, 0, set(), True, False),
    ),
    # -- values that nobody wrote
    ("an attempt without a number", [attempt(1), attempt(None)], (2, 0, set(), True, False)),
    (
        "a number that is none",
        [attempt(1), attempt(True), attempt("x")],
        (3, 0, set(), True, False),
    ),
    (
        "a count that is none",
        [attempt(1), ended(2), ended("x"), ended(True)],
        (1, 2, set(), False, False),
    ),
    (
        "numbers that nobody counts to",
        [attempt(1), ended(10**30), attempt(-3), ended(-1), attempt(10**30)],
        (3, 0, set(), True, False),
    ),
    (
        "names that are none",
        [attempt(1), record("fault", nodes=["n\0", "n\ud800", "-x", "a b", "", 3, None, "n3"])],
        (1, 0, {"n3"}, True, False),
    ),
    ("nodes that are none", [attempt(1), record("fault", nodes="n3")], (1, 0, set(), True, False)),
    ("a fault without nodes", [attempt(1), record("fault")], (1, 0, set(), True, False)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("records", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_past(records: list[dict[str, Any]], wanted: tuple[int, int, set[str], bool, bool]) -> None:
    assert counts(past_of(records, KEY)) == wanted


def test_two_steps_in_one_journal_are_counted_apart(tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    one, two = Journal(path, KEY, 0), Journal(path, OTHER, 0)
    one.write("attempt", 1.0, attempt=1)
    two.write("attempt", 2.0, attempt=1)
    one.write("fault", 3.0, nodes=["n3"])
    one.write("ended", 3.0, without_progress=0)
    one.write("attempt", 4.0, attempt=2)
    two.write("ended", 5.0, without_progress=1)
    records = read(path)
    assert counts(past_of(records, KEY)) == (2, 0, frozenset({"n3"}), True, False)
    assert counts(past_of(records, OTHER)) == (1, 1, frozenset(), False, False)


def test_the_attempt_whose_supervisor_died_is_told() -> None:
    last = attempt(2)
    assert past_of([attempt(1), ended(0), last], KEY).open_attempt == last


def test_step_key() -> None:
    argv = ["srun", "-N2", "train.sh"]
    assert step_key(argv) == step_key(tuple(argv))
    assert len(step_key(argv)) == 12
    others = [["srun", "-N2 train.sh"], ["srun", "-N2"], ["srun", "-N2", "train.sh", ""], []]
    assert len({step_key(argv), *map(step_key, others)}) == 5
    assert step_key(["\udcff"]) != step_key(["ÿ"])  # words that are no UTF-8


@pytest.mark.parametrize(
    ("before", "cause", "hard", "progress", "after"),
    [
        (0, Cause.APPLICATION, False, False, 1),
        (2, Cause.APPLICATION, False, False, 3),
        (2, Cause.APPLICATION, False, True, 0),
        (2, Cause.NODE_FAILURE, True, False, 2),
        (2, Cause.NODE_FAILURE, True, True, 0),
        (2, Cause.NODE_FAILURE, False, False, 3),
        (2, Cause.COMPLETED, False, False, 2),
        (2, Cause.UNKNOWN, False, False, 3),
    ],
)
def test_streak(before: int, cause: Cause, hard: bool, progress: bool, after: int) -> None:
    assert streak_after(before, cause, hard=hard, progress=progress) == after


# -- properties -------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)  # fmt: skip
EVENTS = st.sampled_from(["attempt", "ended", "fault", "requeue", "finished", "watched", "x"])
RECORDS = st.fixed_dictionaries(
    {"event": EVENTS, "step": st.sampled_from([KEY, OTHER]) | JSON},
    optional={"attempt": JSON, "without_progress": JSON, "nodes": JSON},
)
LINES = st.one_of(st.binary(max_size=40), st.builds(lambda r: json.dumps(r).encode(), RECORDS))


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(LINES, max_size=6), st.integers(0, 30))
def test_no_content_raises(tmp_path: Path, lines: list[bytes], cut: int) -> None:
    path = tmp_path / "7.jsonl"
    content = b"\n".join(lines)
    path.write_bytes(content[: len(content) - cut])
    past = past_of(read(path), KEY)
    assert isinstance(past.attempts, int)
    assert isinstance(past.without_progress, int)
    assert all(isinstance(node, str) for node in past.bad_nodes)


@settings(deadline=None)
@given(st.lists(RECORDS, max_size=8), st.lists(RECORDS, max_size=8))
def test_the_records_of_another_step_change_nothing(
    own: list[Mapping[str, Any]], others: list[Mapping[str, Any]]
) -> None:
    mine = [{**r, "step": KEY} for r in own]
    strange = [{**r, "step": OTHER} for r in others]
    mixed = [r for pair in zip(mine, strange, strict=False) for r in pair]
    mixed += mine[len(strange) :] + strange[len(mine) :]
    assert counts(past_of(mixed, KEY)) == counts(past_of(mine, KEY))


def _records(*events: tuple[str, str, str]) -> list[dict[str, object]]:
    """Records a second apart, from 100 on: event, step, and the step's id if it is watched."""
    return [
        {"t": 100.0 + i, "event": event, "step": key, "step_id": number}
        for i, (event, key, number) in enumerate(events)
    ]


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        pytest.param([("attempt", "a", ""), ("watched", "a", "0")], set(), id="it runs"),
        pytest.param(
            [("attempt", "a", ""), ("watched", "a", "0"), ("ended", "a", ""), ("attempt", "a", "")],
            {"0"},
            id="the next attempt runs",
        ),
        pytest.param(
            [
                *[("attempt", "a", ""), ("watched", "a", "0"), ("ended", "a", "")],
                *[("attempt", "a", ""), ("watched", "a", "3"), ("finished", "a", "")],
                *[("attempt", "b", ""), ("watched", "b", "5")],
            ],
            {"0", "3"},
            id="another step runs",
        ),
        pytest.param(
            [("attempt", "a", ""), ("attempt", "a", ""), ("watched", "a", "0"),
             ("watched", "a", "1"), ("finished", "a", "")],
            set(),
            id="two alike: which of them ended?",
        ),
        pytest.param([("attempt", "a", ""), ("finished", "a", "")], set(), id="never watched"),
    ],
)  # fmt: skip
def test_steps_that_are_over(events: list[tuple[str, str, str]], wanted: set[str]) -> None:
    assert ended_steps(_records(*events), 100.0) == wanted
    assert ended_steps(_records(*events), 1000.0) == set()
