"""Looks at the provider's machines, for all clusters at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from hpresume.errors import ProviderError, ProviderTransientError
from hpresume.providers.model import Machine, Provider

_log = logging.getLogger(__name__)


class MachineWatch:
    """Lists the machines every ``every_s``.

    ``submit`` runs a look in a thread. ``machines`` are those of the last look that succeeded, None
    before the first one, ``seen_at`` is when that look began (by ``clock``, Unix s).
    """

    def __init__(
        self,
        provider: Provider,
        submit: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
        every_s: float,
    ) -> None:
        self._provider = provider
        self._submit = submit
        self._clock = clock
        self._every_s = every_s
        self.machines: Mapping[str, Machine] | None = None
        self.seen_at = 0.0
        self._looked_at = float("-inf")
        self._looking = False

    def look(self, done: Callable[[], None]) -> None:
        """Begin a look where it is time for one; ``done`` is called at its end."""
        now = time.monotonic()
        if self._looking or now - self._looked_at < self._every_s:
            return
        self._looking, self._looked_at = True, now

        def look() -> None:
            begun = self._clock()
            try:
                machines = {machine.machine_id: machine for machine in self._provider.list()}
                self.machines, self.seen_at = machines, begun
            except ProviderError as error:
                level = logging.INFO if isinstance(error, ProviderTransientError) else logging.ERROR
                _log.log(level, "%s: %s", self._provider.name, error)
            finally:
                self._looking = False
                done()

        self._submit(look)
