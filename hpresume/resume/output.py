"""Whether the step still writes: its output, where that is in files."""

from __future__ import annotations

import os
import stat


def find(output: str, error: str, job_id: int | None) -> tuple[int | str, ...]:
    """Where the step's output can be seen to grow: descriptors of this process, and paths.

    ``output`` and ``error`` are srun's ``-o`` and ``-e``, empty where they are not given.
    Nothing where standard output goes to a terminal, into a pipe, nowhere, or to a
    file a task; for what goes there nobody could tell.
    """
    out = _target(output, 1, job_id)
    if out is None:
        return ()
    follows = bool(output) and not _is_passed_on(output)  # -o alone takes both
    err = _target(error, 2, job_id) if error or not follows else None
    return (out,) if err is None else (out, err)


def _is_passed_on(option: str) -> bool:
    """Whether srun writes it to its own descriptor: of all tasks, or of one."""
    return option == "all" or option.isdecimal()


def _target(option: str, fd: int, job_id: int | None) -> int | str | None:
    if not option or _is_passed_on(option):
        return fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
    path = option.replace("%j", f"{job_id}") if job_id is not None else option
    return None if option == "none" or "%" in path else path


class OutputFile:
    """The files in which the step's output is seen; time is the caller's (s)."""

    def __init__(self, targets: tuple[int | str, ...], now: float) -> None:
        self._targets = targets
        self.began = now
        self.grew_at = now
        self._seen = self._state()

    def look(self, now: float) -> None:
        """See whether something has changed since the last look."""
        state = self._state()
        if state != self._seen:
            self._seen, self.grew_at = state, now

    def forgive(self, seconds: float) -> None:
        """Nothing could be written for so long: this process, and the step, were stopped."""
        self.began += seconds
        self.grew_at += seconds

    def _state(self) -> list[tuple[int, int]]:
        found = []
        for target in self._targets:
            try:
                status = os.stat(target)
            except OSError:
                continue  # srun has not made it yet
            found.append((status.st_size, status.st_mtime_ns))
        return found
