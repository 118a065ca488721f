"""The journal of attempts: JSON lines, one file a job, appended and flushed.

It outlives the supervisor and a requeue, so it has to lie on storage that all
hosts of the cluster share (by default below the user's home). Budgets are
counted from it. Records: ``attempt`` (one starts), ``watched`` (its step is
found and watched), ``fault``, ``ended``, ``action``, ``requeue``, ``finished``, and
``interrupted`` (ended with its job, which may run again).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpresume.errors import JournalError
from hpresume.resume.model import Cause
from hpresume.slurm.nodeset import is_name

#: More attempts than any step has.
_MOST = 1_000_000

#: Longest whole number that a record may hold, its sign included (characters).
_MOST_DIGITS = 20


def step_key(argv: Sequence[str]) -> str:
    """Names a protected srun of a batch script across runs of the script."""
    return hashlib.sha256("\0".join(argv).encode(errors="surrogateescape")).hexdigest()[:12]


@dataclass(frozen=True)
class Past:
    """What the journal says of a step, over all runs of its job.

    ``attempts`` were started; ``without_progress`` of them, the last ones in a
    row, made none; ``moves`` of them left a marked node, which is no failure.
    ``open_attempt`` is the record of an attempt whose end
    nobody wrote down: its supervisor died, or Slurm ended the job under it.
    """

    attempts: int = 0
    without_progress: int = 0
    moves: int = 0
    bad_nodes: frozenset[str] = frozenset()
    open_attempt: Mapping[str, Any] | None = None
    requeued: bool = False


class Journal:
    """One file; every record has ``t`` (Unix s), ``event``, ``step``, ``run``."""

    def __init__(self, path: Path, step: str, run: int) -> None:
        self.path = path
        self._step = step
        self._run = run

    def write(self, event: str, now: float, **fields: Any) -> None:
        """Append one record and flush it to the disk.

        Raises:
            JournalError: it cannot be written.
        """
        record = {"t": round(now, 3), "event": event, "step": self._step, "run": self._run}
        line = json.dumps({**record, **fields}, default=str).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(fd).st_size
                cut_off = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                os.write(fd, b"\n" + line if cut_off else line)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be written ({error.strerror})") from error


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a journal; a line cut off by a crash is left out.

    Raises:
        JournalError: the file is there and cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, encoding="utf-8", errors="replace") as stream:
            if not stat.S_ISREG(os.fstat(fd).st_mode):  # a pipe would be waited for
                raise JournalError(f"{path}: cannot be read (it is no file)")
            text = stream.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalError(f"{path}: cannot be read ({error.strerror})") from error
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line, parse_int=_number)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("event"), str):
            records.append(record)
    return records


def _number(digits: str) -> int:
    """A whole number of a record; Python's own limit (4300 digits) is not in all its releases."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError("too long")
    return int(digits)


def past_of(records: Iterable[Mapping[str, Any]], step: str) -> Past:
    """The budgets of one step, from its records. Pure.

    A step that finished, or that begins with attempt 1, starts afresh.
    """
    past = Past()
    for record in records:
        if record.get("step") != step:
            continue
        event = record["event"]
        if event == "attempt":
            number = _count(record.get("attempt"), past.attempts + 1)
            past = Past() if number == 1 else past
            past = replace(past, attempts=number, open_attempt=record, requeued=False)
        elif event == "ended":
            streak = _count(record.get("without_progress"), past.without_progress)
            moves = past.moves + (record.get("left") is True)
            past = replace(past, without_progress=streak, open_attempt=None, moves=moves)
        elif event == "fault":
            past = replace(past, bad_nodes=past.bad_nodes | set(node_names(record)))
        elif event == "requeue":
            past = replace(past, requeued=True)
        elif event == "finished":
            past = Past()
    return past


def ended_steps(records: Iterable[Mapping[str, Any]], since: float) -> frozenset[str]:
    """Ids of protected steps that began after ``since`` (Unix s) and are over. Pure.

    Where two attempts of steps with the same command line were open at once, it is not
    told which of them ended: such steps are left out.
    """
    opened: dict[str, str] = {}
    over: dict[str, set[str]] = {}
    unclear: set[str] = set()
    for record in records:
        at, key, event = record.get("t"), str(record.get("step")), record["event"]
        if not isinstance(at, int | float) or at < since:
            continue
        if event == "attempt":
            if key in opened:
                unclear.add(key)
            opened[key] = ""
        elif event == "watched":
            opened[key] = str(record.get("step_id"))
        elif event in ("ended", "finished") and opened.get(key):
            over.setdefault(key, set()).add(opened.pop(key))
        elif event in ("ended", "finished"):
            opened.pop(key, None)
    return frozenset(step for key, steps in over.items() if key not in unclear for step in steps)


def node_names(record: Mapping[str, Any]) -> list[str]:
    """The nodes of a record, as far as they are names. Pure."""
    names = record.get("nodes")
    return [n for n in names if is_name(n)] if isinstance(names, list) else []


def _count(value: Any, default: int) -> int:
    """A number that can have been counted; else the default. Pure."""
    counted = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST
    return value if counted else default


def streak_after(before: int, cause: Cause, *, hard: bool, progress: bool) -> int:
    """Attempts in a row without progress, once one more has ended. Pure.

    The certain loss of a machine says nothing about the application and
    leaves the count as it is.
    """
    if progress:
        return 0
    if cause is Cause.COMPLETED or hard:
        return before
    return before + 1
