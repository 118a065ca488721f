"""Programs in groups of their own: what is read of them, and that nothing of them is left."""

import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpresume import process_group


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def shell(script: str) -> subprocess.Popen[bytes]:
    return process_group.start(["sh", "-c", script], None)


@pytest.fixture
def left_behind(fifo: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program that has ended, and a pidfd of another that it left with its pipes."""
    process = shell(f"sleep 60 & echo $! > '{fifo}'")
    other = os.pidfd_open(int(fifo.read_text()))
    process.wait()
    yield process, other
    process_group.kill(process.pid)
    os.close(other)


def test_both_outputs_are_read_to_their_ends() -> None:
    process = shell("echo out; echo err >&2; exit 3")
    with process_group.held(process):
        said = process_group.read(process, 10, 100)
    assert said == (b"out\n", b"err\n")
    assert process.returncode == 3


@pytest.mark.parametrize("stream", [1, 2])
def test_what_is_longer_is_cut_and_the_program_killed(stream: int) -> None:
    process = shell(f"exec yes >&{stream}")
    with process_group.held(process):
        said = process_group.read(process, 10, 1000)
        assert process.poll() is None
    assert len(said[stream - 1]) > 1000
    assert process.returncode == -9


def test_outputs_of_exactly_the_most_are_not_cut() -> None:
    process = shell("printf 12345")
    with process_group.held(process):
        assert process_group.read(process, 10, 5) == (b"12345", b"")


def test_the_time_is_over_where_another_holds_the_pipes_and_it_is_killed_too(left_behind) -> None:
    process, other = left_behind
    with pytest.raises(subprocess.TimeoutExpired), process_group.held(process):
        process_group.read(process, 0.1, 100)
    assert select.select([other], [], [], 10)[0]


def test_what_a_program_left_runs_on_where_it_ended_in_good_order(left_behind) -> None:
    process, other = left_behind
    with process_group.held(process):
        pass
    assert not select.select([other], [], [], 0)[0]


def test_a_group_that_is_gone_is_passed_over() -> None:
    process = shell("exit 0")
    with process_group.held(process):
        process.wait()
    process_group.kill(process.pid)
