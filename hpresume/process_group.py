"""Programs in process groups of their own, bounded in time and in what they may say.

A group is killed as a whole, so that nothing of it holds the pipes or runs on. The
standard library only: the tools of Slurm are run with it where start-up time is felt.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence


def start(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a program with pipes for its outputs, in a session of its own.

    Raises OSError where it cannot be started.
    """
    return subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        start_new_session=True,
    )


@contextlib.contextmanager
def held(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """See to it that the program is gone when the block ends, and its pipes are closed.

    Its group is killed where it still runs, and where the block is left by an exception:
    a program that has ended may have left others that hold its pipes.
    """
    try:
        yield
    except BaseException:
        kill(process.pid)
        raise
    finally:
        if process.poll() is None:
            kill(process.pid)
            process.wait()
        close(process)


def read(process: subprocess.Popen[bytes], limit_s: float, most: int) -> tuple[bytes, bytes]:
    """Read both outputs until they are closed and the program has ended.

    With more than ``most`` bytes of one it stops, and gives what it has; the program runs on.
    Raises subprocess.TimeoutExpired after ``limit_s``.
    """
    deadline = time.monotonic() + limit_s
    parts = (bytearray(), bytearray())
    with selectors.DefaultSelector() as selector:
        for stream, part in zip((process.stdout, process.stderr), parts, strict=True):
            assert stream is not None  # noqa: S101 (for mypy)
            selector.register(stream, selectors.EVENT_READ, part)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if left_s <= 0.0:
                raise subprocess.TimeoutExpired(process.args, limit_s)
            for key, _ in selector.select(left_s):
                said = os.read(key.fd, 1 << 16)
                if not said:
                    selector.unregister(key.fileobj)
                key.data.extend(said)
                if len(key.data) > most:
                    return bytes(parts[0]), bytes(parts[1])
    process.wait(max(0.0, deadline - time.monotonic()))
    return bytes(parts[0]), bytes(parts[1])


def kill(group: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to all of a group, if there is anything left of it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to a program."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
