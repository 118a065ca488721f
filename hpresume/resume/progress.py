"""Whether an attempt got anywhere."""

from __future__ import annotations

import os

from hpresume.config import ResumeSettings


def made_progress(settings: ResumeSettings, started: float, ended: float) -> bool:
    """True where the user's checkpoint got newer, or the attempt ran long enough.

    With a ``checkpoint`` set only that counts: a job that runs for an hour
    without writing one repeats that hour at every attempt.
    """
    if settings.checkpoint:
        return newest_checkpoint(settings) > started
    return ended - started > settings.min_uptime


def newest_checkpoint(settings: ResumeSettings) -> float:
    """When the user's checkpoint last got newer, by its file system's clock; 0 if there is none."""
    return _newest(os.path.expanduser(settings.checkpoint))


def _newest(path: str) -> float:
    """Modification time of a file, or the newest of a directory's entries; 0 if none.

    An entry may go while it is looked at, and a link ``latest`` may lead nowhere.
    """
    newest = 0.0
    try:
        newest = os.stat(path).st_mtime
        with os.scandir(path) as entries:
            for entry in entries:
                newest = max(newest, _modified(entry))
    except OSError:
        pass  # no directory, or gone meanwhile: what was seen counts
    return newest


def _modified(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0
