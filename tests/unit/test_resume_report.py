"""The lines that a user sees."""

from __future__ import annotations

import os

import pytest

from hpresume.resume.model import (
    Action,
    Await,
    Finish,
    GiveUp,
    Grow,
    Reallocate,
    Requeue,
    Restart,
    Rung,
)
from hpresume.resume.report import describe, listing, say


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("n3 is lost", "[Auto Resume] n3 is lost\n"),
        ("  two\nlines\tand  more ", "[Auto Resume] two lines and more\n"),
        ("né \udcff", "[Auto Resume] né \\udcff\n"),
    ],
)
def test_say(capfd: pytest.CaptureFixture[str], text: str, line: str) -> None:
    say(text)
    out, err = capfd.readouterr()
    assert (out, err) == ("", line)


def test_say_is_one_write() -> None:
    """Lines of several supervisors do not mix."""
    read, write = os.pipe2(os.O_DIRECT)  # every write is a packet of its own
    saved = os.dup(2)
    os.dup2(write, 2)
    try:
        say("n3 is lost")
    finally:
        os.dup2(saved, 2)
    assert os.read(read, 4096) == b"[Auto Resume] n3 is lost\n"
    for fd in (read, write, saved):
        os.close(fd)


def test_a_closed_stderr_is_nobodys_error() -> None:
    read, write = os.pipe()
    os.close(read)
    saved = os.dup(2)
    os.dup2(write, 2)
    try:
        say("nobody hears this")  # EPIPE
        os.close(2)
        say("nor this")  # EBADF
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(write)


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ((), ""),
        (("n1",), "n1"),
        (tuple("abcdefgh"), "a,b,c,d,e,f,g,h"),
        (tuple("abcdefghi"), "a,b,c,d,e,f,g,h… (9 nodes)"),
    ],
)
def test_listing(nodes: tuple[str, ...], text: str) -> None:
    assert listing(nodes) == text


ACTIONS: list[tuple[Action, str]] = [
    (Finish(1, "it was cancelled"), "it was cancelled"),
    (GiveUp(1, "no way"), "not resumed: no way"),
    (Restart(Rung.SAME, ("n1", "n2")), "starting again on the same nodes n1,n2"),
    (Restart(Rung.SPARE, ("n1", "n4")), "starting again on n1,n4"),
    (
        Restart(Rung.SPARE, ("n1", "n4"), ("n3",)),
        "starting again on n1,n4, dropping n3 from the job",
    ),
    (
        Restart(Rung.FEWER, ("n1", "n2"), ("n3",), tasks=4),
        "going on with fewer nodes, 4 tasks on n1,n2, dropping n3 from the job",
    ),
    (
        Restart(Rung.FEWER, ("n1", "n2"), tasks=4, overlap=True, keep=("n3",), keep_until=9.0),
        "going on with fewer nodes, 4 tasks on n1,n2, keeping n3 in the job for its return",
    ),
    (Await(("n3",), ("n1", "n3"), 90.0), "waiting up to 90 s for n3 to come back"),
    (
        Requeue(3, (), ("n3",), True, waits_for_nodes=True),
        "waiting for Slurm to notice the loss and to requeue the job",
    ),
    (Grow(1, ("n3",), (), ()), "dropping n3, merging 1 new node in"),
    (Grow(2, (), (), ()), "dropping no node, merging 2 new nodes in"),
    (Requeue(3, (), ("n3",), True), "requeueing the job without n3, starting it at once"),
    (
        Requeue(3, (), (), False),
        "requeueing the job without any exclusion, with Slurm's own delays",
    ),
    (Reallocate(("n3",)), "starting again in a new allocation without n3"),
    (Reallocate(()), "starting again in a new allocation without exclusions"),
]


@pytest.mark.parametrize(("action", "text"), ACTIONS)
def test_describe(action: Action, text: str) -> None:
    assert describe(action) == text


def test_every_action_is_described() -> None:
    assert {type(action) for action, _ in ACTIONS} == set(Action.__args__)
