"""Repeating calls after transient answers, on a clock that tests move."""

from collections.abc import Callable

import pytest

from hpresume.errors import SlurmDeniedError, SlurmTimeoutError, SlurmTransientError
from hpresume.slurm import retry


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def repeat(clock: Clock, deadline: float, call: Callable[[float], str]) -> str:
    first = SlurmTransientError("first")
    return retry.until(deadline, call, 10.0, first, sleep=clock.sleep, clock=clock)


def test_pauses_grow_and_end_at_the_deadline() -> None:
    clock = Clock()

    def refuse(timeout_s: float) -> str:
        assert 0.25 <= timeout_s <= 10.0
        raise SlurmTransientError("again")

    with pytest.raises(SlurmTransientError, match="again"):
        repeat(clock, 30.0, refuse)
    assert max(clock.slept) <= 2.0
    assert 25.0 < clock.now <= 30.0


def test_another_error_ends_it() -> None:
    def refuse(timeout_s: float) -> str:
        raise SlurmDeniedError("no")

    with pytest.raises(SlurmDeniedError):
        repeat(Clock(), 30.0, refuse)


def test_it_ends_with_the_first_answer() -> None:
    answers = iter([SlurmTransientError("again"), "here"])

    def answer(timeout_s: float) -> str:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    assert repeat(Clock(), 30.0, answer) == "here"


def test_slurms_words_come_before_a_mere_time_out() -> None:
    def refuse(timeout_s: float) -> str:
        raise SlurmTimeoutError("no answer")

    with pytest.raises(SlurmTransientError, match="first"):
        repeat(Clock(), 5.0, refuse)
