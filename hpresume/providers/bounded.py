"""Running a program of the site, bounded in time and in what it may say.

It runs in a process group of its own, which is killed as a whole: when its time is
over, when it has said more than anybody wants to read, and when this process ends in
good order.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpresume import process_group

#: Most bytes on one of the two outputs: 10,000 machines of a list take 2 MB.
MOST_OUTPUT = 32 << 20

_running: set[int] = set()


class TooMuchError(Exception):
    """The program said more than ``MOST_OUTPUT``, and was killed."""


@dataclass(frozen=True)
class Ended:
    """How a program ended (a signal's number is negative), and what it said."""

    code: int
    stdout: bytes
    stderr: bytes


def run(argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> Ended:
    """Run a program without input until it has closed its outputs and ended.

    Raises OSError where it cannot be started, subprocess.TimeoutExpired, TooMuchError.
    """
    process = process_group.start(argv, env)
    _running.add(process.pid)
    try:
        with process_group.held(process):
            stdout, stderr = process_group.read(process, timeout_s, MOST_OUTPUT)
            if max(len(stdout), len(stderr)) > MOST_OUTPUT:
                raise TooMuchError
    finally:
        _running.discard(process.pid)
    return Ended(process.returncode, stdout, stderr)


@atexit.register
def _end() -> None:
    for group in list(_running):
        process_group.kill(group)
