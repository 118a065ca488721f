"""Whether an attempt got anywhere. Times of files are set, not waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpresume.config import ResumeSettings
from hpresume.resume.progress import made_progress

STARTED = 1_000_000.0


def written(path: Path, at: float) -> Path:
    path.touch()
    os.utime(path, (at, at))
    return path


def progress(checkpoint: Path, ended: float = STARTED + 1) -> bool:
    return made_progress(ResumeSettings(checkpoint=str(checkpoint)), STARTED, ended)


@pytest.mark.parametrize(("seconds", "wanted"), [(59.9, False), (60.0, False), (60.1, True)])
def test_without_a_checkpoint_the_time_counts(seconds: float, wanted: bool) -> None:
    assert made_progress(ResumeSettings(min_uptime=60.0), STARTED, STARTED + seconds) is wanted


@pytest.mark.parametrize(("age", "wanted"), [(-5, False), (0, False), (5, True)])
def test_a_checkpoint_file(tmp_path: Path, age: float, wanted: bool) -> None:
    assert progress(written(tmp_path / "last.pt", STARTED + age)) is wanted


def test_with_a_checkpoint_the_time_does_not_count(tmp_path: Path) -> None:
    old = written(tmp_path / "last.pt", STARTED - 5)
    assert not progress(old, STARTED + 1e6)
    assert not progress(tmp_path / "none", STARTED + 1e6)


def folder(path: Path, *times: float) -> Path:
    path.mkdir()
    for number, at in enumerate(times):
        written(path / f"step-{number}.pt", at)
    os.utime(path, (STARTED - 100, STARTED - 100))
    return path


@pytest.mark.parametrize(
    ("times", "wanted"),
    [((), False), ((-5,), False), ((-5, 5), True), ((5, -5), True), ((5, 5), True)],
)
def test_a_folder_is_as_new_as_its_newest_entry(
    tmp_path: Path, times: tuple[float, ...], wanted: bool
) -> None:
    assert progress(folder(tmp_path / "c", *(STARTED + t for t in times))) is wanted


def test_an_entry_that_was_added_or_removed_counts(tmp_path: Path) -> None:
    path = folder(tmp_path / "c", STARTED - 5)
    os.utime(path, (STARTED + 5, STARTED + 5))
    assert progress(path)


def test_a_folder_of_folders(tmp_path: Path) -> None:
    path = folder(tmp_path / "c")
    inner = path / "global_step10"
    inner.mkdir()
    os.utime(inner, (STARTED + 5, STARTED + 5))
    os.utime(path, (STARTED - 5, STARTED - 5))
    assert progress(path)


def test_a_link_that_leads_nowhere_hides_no_checkpoint(tmp_path: Path) -> None:
    """``latest`` points to a checkpoint that was removed meanwhile."""
    path = folder(tmp_path / "c", STARTED + 5)
    (path / "latest").symlink_to("step-9.pt")
    os.utime(path, (STARTED - 100, STARTED - 100))
    assert progress(path)
