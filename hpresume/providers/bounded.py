"""Running a program of the site, bounded in time and in what it may say.

It runs in a process group of its own, which is killed as a whole: when its time is
over, when it has said more than anybody wants to read, and when this process ends in
good order.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    with subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + timeout_s
        _running.add(process.pid)
        try:
            stdout, stderr = _read(process, argv, deadline, timeout_s)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except BaseException:
            _kill(process.pid)
            raise
        finally:
            _running.discard(process.pid)
    return Ended(code, stdout, stderr)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


@atexit.register
def _end() -> None:
    for group in list(_running):
        _kill(group)


def _read(
    process: subprocess.Popen[bytes], argv: Sequence[str], deadline: float, timeout_s: float
) -> tuple[bytes, bytes]:
    said: dict[int, bytearray] = {}
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            assert stream is not None  # noqa: S101 (for mypy)
            said[stream.fileno()] = bytearray()
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if left_s <= 0.0:
                raise subprocess.TimeoutExpired(list(argv), timeout_s)
            for key, _ in selector.select(left_s):
                part = os.read(key.fd, 65536)
                if not part:
                    selector.unregister(key.fileobj)
                    continue
                said[key.fd] += part
                if len(said[key.fd]) > MOST_OUTPUT:
                    raise TooMuchError
    stdout, stderr = (bytes(text) for text in said.values())
    return stdout, stderr
