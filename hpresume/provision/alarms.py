"""Alarms that roll a software update back: the site's own program knows how they stand.

CloudWatch, Prometheus or anything else: the program gets an alarm's name and says by its exit
code whether it rings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from hpresume.errors import HpresumeError, ProviderTransientError
from hpresume.provision.model import State
from hpresume.slurm.runner import Runner

_log = logging.getLogger(__name__)

#: Exit codes of the program; with any other one the state is not known.
QUIET, RINGS = 0, 1

_CALL_S = 30.0


class Alarms(Protocol):
    """Where alarms are looked up."""

    def rings(self, name: str) -> bool:
        """Whether an alarm rings. Raises HpresumeError where that cannot be told."""
        ...


class CommandAlarms:
    """A program as an argument list, with ``{alarm}`` where the name is to stand."""

    def __init__(self, command: tuple[str, ...], runner: Runner | None = None) -> None:
        self._command = command
        self._runner = runner or Runner()

    def rings(self, name: str) -> bool:
        """Run the program; never through a shell."""
        argv = [word.replace("{alarm}", name) for word in self._command]
        answer = self._runner.run(argv, _CALL_S)
        if answer.returncode not in (QUIET, RINGS):
            raise ProviderTransientError(
                f"{argv[0]}: alarm {name}: exit code {answer.returncode}: {answer.text[-200:]}"
            )
        return answer.returncode == RINGS


class AlarmWatch:
    """Looks at the alarms of the updates that are under way, every ``every_s``.

    ``submit`` runs a look in a thread.
    """

    def __init__(
        self, alarms: Alarms | None, submit: Callable[[Callable[[], None]], None], every_s: float
    ) -> None:
        self._alarms = alarms
        self._submit = submit
        self._every_s = every_s
        self._looked_at = float("-inf")
        self._looking = False
        self._asked: frozenset[str] = frozenset()
        self._ringing: frozenset[str] | None = frozenset()

    def look(self, states: Iterable[State], done: Callable[[], None]) -> None:
        """Begin a look where it is time for one; ``done`` is called at its end."""
        alarms, names, now = self._alarms, _names(states), time.monotonic()
        if alarms is None or not names or self._looking:
            return
        if names <= self._asked and now - self._looked_at < self._every_s:
            return
        self._looking, self._looked_at = True, now

        def look() -> None:
            ringing: frozenset[str] | None = None
            try:
                ringing = frozenset(name for name in names if alarms.rings(name))
            except HpresumeError as error:
                _log.warning("alarms: %s", error)
            finally:
                self._asked, self._ringing, self._looking = names, ringing, False
                done()

        self._submit(look)

    def of(self, state: State) -> frozenset[str] | None:
        """The alarms that ring; None where those of the cluster's updates are not known."""
        return self._ringing if _names([state]) <= self._asked else None


def _names(states: Iterable[State]) -> frozenset[str]:
    return frozenset(
        name
        for state in states
        for group in state.groups.values()
        if group.update is not None and group.update.is_active
        for name in group.update.alarms
    )
