"""Removing a reservation: jobs that still end, a slurmctld that restarts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpresume.errors import SlurmDeniedError, SlurmError
from hpresume.slurm import reservations
from hpresume.slurm.runner import Answer, Runner

BUSY = Answer("", "delete_reservation reservationname=r: Requested reservation is in use\n", 1)
AWAY = Answer("", "Unable to contact slurm controller (connect failure)\n", 1)
GONE = Answer("", "Reservation r not found\n", 1)
DENIED = Answer("", "delete_reservation: Access/permission denied\n", 1)
DONE = Answer("", "", 0)


class FakeRunner(Runner):
    """Answers in turn, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.calls: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
        self.calls.append(argv)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "_POLL_S", 0)


@pytest.mark.parametrize("answers", [(DONE,), (GONE,), (BUSY, BUSY, DONE), (AWAY, BUSY, GONE)])
def test_released_in_the_end(answers: tuple[Answer, ...]) -> None:
    runner = FakeRunner(*answers)
    reservations.release(runner, "r", 60)
    assert runner.calls == [("scontrol", "delete", "reservationname=r")] * len(answers)


def test_not_released() -> None:
    with pytest.raises(SlurmDeniedError):
        reservations.release(FakeRunner(DENIED), "r", 60)
    for answer in (BUSY, AWAY):
        with pytest.raises(SlurmError):
            reservations.release(FakeRunner(answer), "r", 0)


def test_reserving_and_narrowing() -> None:
    runner = FakeRunner(DONE)
    reservations.reserve(runner, "r", ["n1", "n2"], "root", 7, "IGNORE_JOBS")
    reservations.narrow(runner, "r", ["n1"])
    assert runner.calls[0][3:] == [
        "reservationname=r",
        "users=root",
        "nodes=n1,n2",
        "starttime=now",
        "duration=7",
        "flags=IGNORE_JOBS",
    ]
    assert runner.calls[1] == ("scontrol", "update", "reservationname=r", "nodes=n1")


def test_no_reservations() -> None:
    runner = FakeRunner(Answer("No reservations in the system\n", "", 0))
    assert reservations.reservations(runner) == {}
