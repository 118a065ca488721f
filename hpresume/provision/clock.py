"""A clock for the whole life of a process."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Unix time that no step of the machine's clock moves: it is read once, then counted on.

    ``floor`` is the latest time that was written down before: a clock that was set back
    between two runs does not make time run twice.
    """

    def __init__(
        self,
        floor: float = 0.0,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._offset = max(wall(), floor) - monotonic()

    def __call__(self) -> float:
        """Now, in Unix seconds."""
        return self._monotonic() + self._offset
