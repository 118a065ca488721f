"""One call in a thread, whose end can be waited for with ``poll``."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from hpresume.errors import SlurmTransientError

T = TypeVar("T")


def detached(call: Callable[[], object]) -> None:
    """Run ``call`` in a thread whose end nobody waits for; it has to see to its own errors."""
    try:
        _thread.start_new_thread(call, ())
    except RuntimeError:
        pass  # the user's limit of processes counts threads; who waits for the effect has a limit


class Background(Generic[T]):
    """Runs ``call`` in a thread of its own; ``fd`` becomes readable at its end."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.fd, self._writer = os.pipe2(os.O_CLOEXEC)
        self._value: T | None = None
        self._error: BaseException | None = None
        self._finished = False
        try:
            _thread.start_new_thread(self._run, (call,))
        except RuntimeError as error:  # the user's limit of processes counts threads
            self._fail(SlurmTransientError(f"no thread can be started: {error}"))

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._finished = True
        os.close(self._writer)

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._value = call()
        except BaseException as error:
            self._error = error
        self._finished = True
        os.close(self._writer)

    def done(self) -> bool:
        """Whether ``result`` can be asked for."""
        return self._finished

    def result(self) -> T:
        """The value, or the error raised; ends the use of ``fd``. Call once."""
        os.close(self.fd)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]
