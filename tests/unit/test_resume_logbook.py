"""Budgets over several attempts and runs of a job, through the journal on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpresume.config import ResumeSettings
from hpresume.resume.attempt import AttemptEnd
from hpresume.resume.command import SrunCall
from hpresume.resume.journal import Journal, past_of, read
from hpresume.resume.launch import Launch
from hpresume.resume.logbook import Logbook, journal_path
from hpresume.resume.model import Cause, NodeFault, Sign, Verdict

LOST = NodeFault("n3", Sign.LOST, "is lost")
APPLICATION = Verdict(Cause.APPLICATION, (), "exit code 1")
NODE_LOST = Verdict(Cause.NODE_FAILURE, (LOST,), "n3 is lost")


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    settings = ResumeSettings(journal_dir=str(tmp_path), min_uptime=60.0)
    call = SrunCall("/r/srun", ("srun", "train"), 1, False)
    return Launch(
        call, call, settings, {"SLURM_CLUSTER_NAME": "c"}, 7, past_of([], "key"), 0, "key"
    )


def end(seconds: float) -> AttemptEnd:
    return AttemptEnd(1, 1000.0, 1000.0 + seconds, 1000.0 + seconds, (), (), "", None)


def rerun(launch: Launch, tmp_path: Path) -> Launch:
    """The launch of the job's next run, as a requeue makes it."""
    past = past_of(read(tmp_path / "c" / "7.jsonl"), "key")
    return replace(launch, past=past, run=launch.run + 1)


def test_attempts_and_streak_are_counted(launch: Launch) -> None:
    book = Logbook(launch)
    assert (book.attempt, book.history.resumes, book.history.without_progress) == (1, 0, 0)
    book.begun(["n1"])
    book.ended(end(5.0), APPLICATION)
    assert book.history.without_progress == 1
    book.attempt += 1
    book.begun(["n1"])
    book.ended(end(5.0), NODE_LOST)
    assert (book.history.resumes, book.history.without_progress) == (1, 1)
    assert book.history.bad_nodes == {"n3"}
    book.ended(end(61.0), APPLICATION)
    assert book.history.without_progress == 0


def test_the_next_run_of_the_job_goes_on_counting(launch: Launch, tmp_path: Path) -> None:
    book = Logbook(launch)
    book.begun(["n1"])
    book.ended(end(5.0), APPLICATION)
    book.attempt += 1
    book.begun(["n1"])
    book.ended(end(5.0), NODE_LOST)
    book.record("requeue")
    after = Logbook(rerun(launch, tmp_path))
    assert after.attempt == 3
    assert after.history == replace(book.history, resumes=2)


def test_what_is_finished_for_good_starts_afresh(launch: Launch, tmp_path: Path) -> None:
    book = Logbook(launch)
    book.begun(["n1"])
    book.ended(end(5.0), APPLICATION)
    book.finished(1, "no way", for_good=False)
    assert Logbook(rerun(launch, tmp_path)).attempt == 2
    book.finished(1, "no way")
    assert Logbook(rerun(launch, tmp_path)).attempt == 1


def test_an_attempt_is_written_down_once(launch: Launch) -> None:
    book = Logbook(launch)
    for _ in range(3):
        book.begun(["n1"])
    book.ended(end(5.0), APPLICATION)
    assert [r["event"] for r in read(book.path)] == ["attempt", "ended"]


def test_a_step_that_ends_at_once_leaves_no_journal(launch: Launch) -> None:
    book = Logbook(launch)
    book.finished(0, "completed")
    assert not book.path.exists()


def test_protected_steps_are_those_of_this_run_of_the_job(launch: Launch) -> None:
    """Slurm numbers the steps from 0 again after a requeue."""
    book = Logbook(launch)
    Journal(book.path, "key", 0).write("watched", 10.0, step_id="0")
    Journal(book.path, "other", 0).write("watched", 20.0, step_id="1")
    assert sorted(book.protected_steps(since=5.0)) == ["0", "1"]
    assert book.protected_steps(since=15.0) == ["1"]


def test_a_journal_that_cannot_be_written_is_said_once(
    launch: Launch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c").write_text("")
    book = Logbook(launch)
    book.begun(["n1"])
    book.ended(end(5.0), APPLICATION)
    assert book.history.without_progress == 1
    said = capfd.readouterr().err
    assert said.count("cannot be written") == 1
    assert "will not survive a requeue" in said


@pytest.mark.parametrize(
    ("environ", "job_id", "name"),
    [
        ({"SLURM_CLUSTER_NAME": "c"}, 7, "c/7.jsonl"),
        ({}, 7, "cluster/7.jsonl"),
        ({"SLURM_CLUSTER_NAME": "a/../b"}, 7, "a_.._b/7.jsonl"),
    ],
)
def test_the_place_of_the_journal(environ: dict[str, str], job_id: int, name: str) -> None:
    settings = ResumeSettings(journal_dir="/j")
    assert journal_path(environ, settings, job_id) == Path("/j") / name


def test_srun_on_its_own_has_a_journal_by_process() -> None:
    first = journal_path({}, ResumeSettings(journal_dir="/j"), None)
    assert str(first) != str(journal_path({}, ResumeSettings(journal_dir="/j"), 7))
    assert first.suffix == ".jsonl"
