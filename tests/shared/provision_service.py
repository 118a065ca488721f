"""A provisioner on a real database with a simulated provider, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hpresume.errors import SlurmTransientError
from hpresume.provision.book import Book
from hpresume.provision.checking import Finding, Run, Verdict
from hpresume.provision.clock import SteadyClock
from hpresume.provision.control import Provisioner
from hpresume.provision.engine import Engine
from hpresume.provision.pace import Pace
from hpresume.provision.policy import Policy
from hpresume.store import Store

#: Retries without the pauses of production.
QUICK = Policy(retry_s=0.02, retry_max_s=0.1, script_retry_max_s=0.1)
PACE = Pace(look_s=0.02, configure_s=0.02, step_s=0.005, idle_s=0.02)


class NoScripts:
    """Lifecycle scripts that succeed at once: machines that do not exist cannot run any."""

    def inspect(self, state: Any, node: Any) -> str:
        return ""

    def run(self, state: Any, node: Any) -> str:
        return ""


class Examined:
    """Deep checks of machines that do not exist: each node is well but those in ``bad``.

    While ``is_closed`` they have to be tried again.
    """

    def __init__(self) -> None:
        self.bad: set[str] = set()
        self.is_closed = False
        self.runs: list[Run] = []

    def run(self, asked: Run) -> dict[str, Finding]:
        if self.is_closed:
            raise SlurmTransientError("another deep check")
        self.runs.append(asked)
        bad, good = Finding(Verdict.FAILED, "cpu-stress: too slow"), Finding(Verdict.PASSED)
        return {name: bad if name in self.bad else good for name in asked.nodes}


class Served:
    """A service and the engine behind it, in a thread of its own."""

    def __init__(self, store: Store, provider: Any, **engine: Any) -> None:
        self.book = Book(store)
        self.clock = SteadyClock(self.book.latest())
        options = {"policy": QUICK, "pace": PACE, "scripts": NoScripts(), **engine}
        self.engine = Engine(self.book, provider, self.clock, **options)
        self.service = Provisioner(
            self.book,
            self.clock,
            has_slurm="slurm" in engine,
            changed=self.engine.wake,
            has_checks="deep_checks" in engine,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.engine.run, args=(self._stop,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self.engine.wake()
        self._thread.join(10)
        assert not self._thread.is_alive()
        # A look that is under way still writes where the test is about to clean up.
        for thread in self.engine._looks._threads:
            thread.join(30)


@contextmanager
def served(store: Store, provider: Any, **engine: Any) -> Iterator[Served]:
    running = Served(store, provider, **engine)
    try:
        yield running
    finally:
        running.stop()


def until(condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """What ``condition`` gives as soon as it is true; an assertion error after the time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {timeout_s:g} s")


def allow(_record: Any) -> None:
    """A guard without rules."""


def counts(running: Served, ref: str = "c1") -> dict[str, tuple[int, int]]:
    """Current and target count of each group."""
    record = running.service.cluster(ref)
    return {g.spec.name: (g.current_count, g.target_count) for g in record.groups}


def complete(running: Served, ref: str = "c1") -> bool:
    """Whether every group has what it is to have, and nothing else is there."""
    state = running.book.find(ref)
    wanted = sum(group.target for group in state.groups.values())
    return all(a == b for a, b in counts(running, ref).values()) and len(state.nodes) == wanted
