"""Ends by a signal that leave nothing running and nothing taken."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Tidy up also where this is ended by Ctrl-C, SIGTERM or SIGHUP; exit with 128 + its number.

    One that the caller ignores, as nohup does, stays ignored.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
