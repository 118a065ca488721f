"""Connections on which no request comes are closed.

uvicorn closes an idle connection between two requests, but waits without end for the first one, and
for the rest of a request's head. A thousand silent clients would leave no room for others.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def patient(seconds: float) -> type[H11Protocol]:
    """A protocol that waits between one and two times ``seconds`` for the head of a request."""

    class Patient(H11Protocol):
        """uvicorn's protocol with that limit."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._timer = self.loop.call_later(seconds, self._look, self)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _look(self, seen: Any) -> None:
            """``seen`` is what was the last request at the last look, if none was coming then."""
            waiting = self.conn.their_state is h11.IDLE
            latest: Any = self.cycle
            if waiting and seen is latest:
                self.transport.close()
                return
            self._timer = self.loop.call_later(seconds, self._look, latest if waiting else self)

    return Patient
