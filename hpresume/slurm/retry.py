"""Repeating calls that Slurm could not answer at the moment.

Imported after a first transient answer only: the ordinary path of the
supervisor does without tenacity.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from hpresume.errors import SlurmTimeoutError, SlurmTransientError

T = TypeVar("T")

#: Pauses grow from a tenth of a second to two seconds, with jitter: all the
#: supervisors of a cluster ask again after the same restart of slurmctld.
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0

#: With less time than this no further attempt is made: cut short, it would only
#: replace Slurm's own words by a time-out.
_SHORTEST_ATTEMPT_S = 0.25


def until(
    deadline: float,
    call: Callable[[float], T],
    attempt_timeout_s: float,
    first: SlurmTransientError,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """``call(time limit)`` again and again until ``deadline`` on ``clock``.

    Starts with a pause, since there has been an attempt, which failed with
    ``first``. In the end the last transient error is raised, Slurm's own words
    before a mere time-out.
    """
    said = None if isinstance(first, SlurmTimeoutError) else first

    def left() -> float:
        return deadline - clock() - _SHORTEST_ATTEMPT_S

    def paused(seconds: float) -> None:
        sleep(max(0.0, min(seconds, left())))

    def over(_state: RetryCallState | None = None) -> bool:
        return left() <= 0

    def attempt() -> T:
        nonlocal said
        try:
            return call(min(attempt_timeout_s, max(left(), 0.0) + _SHORTEST_ATTEMPT_S))
        except SlurmTimeoutError:
            if said is not None and over():
                raise said from None
            raise
        except SlurmTransientError as error:
            said = error
            raise

    paused(_FIRST_PAUSE_S / 2)
    retrying = Retrying(
        retry=retry_if_exception_type(SlurmTransientError),
        wait=wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        stop=over,
        sleep=paused,
        reraise=True,
    )
    return retrying(attempt)
