"""Repeating a single call that its source could not answer at the moment.

For calls without a retry of their own below them; what is not safe to send twice is
not repeated here but by the caller, who knows the token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from hpresume.errors import CapacityError, ProviderTimeoutError, ProviderTransientError

T = TypeVar("T")

_ATTEMPTS = 3
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 4.0


def again(
    call: Callable[[], T],
    *,
    attempts: int = _ATTEMPTS,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """``call()``, at most ``attempts`` times while it is told to try again.

    A shortage lasts longer than this, and a time-out has used up the time: both
    are raised at once.
    """
    retrying = Retrying(
        retry=retry_if_exception(_is_short_lived),
        wait=wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        stop=stop_after_attempt(attempts),
        sleep=sleep,
        reraise=True,
    )
    return retrying(call)


def _is_short_lived(error: BaseException) -> bool:
    return isinstance(error, ProviderTransientError) and not isinstance(
        error, CapacityError | ProviderTimeoutError
    )
