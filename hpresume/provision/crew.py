"""Threads for calls that block; they do not hold up the end of the process.

What a thread was at when the process ended is asked for again after the next start,
so nothing is waited for.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Crew:
    """At most ``width`` jobs at once, in the order in which they came."""

    def __init__(self, width: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._width = width
        self._name = name
        self._lock = threading.Lock()
        self._waiting = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job when a thread is free; what it raises is logged."""
        with self._lock:
            self._waiting += 1
            if self._waiting > len(self._threads) and len(self._threads) < self._width:
                thread = threading.Thread(
                    target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        """Start no more jobs; the running ones are not waited for."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                _log.exception("a job of %s failed", self._name)
            finally:
                with self._lock:
                    self._waiting -= 1
