"""How often one user may send. Pure: a token bucket for each."""

from __future__ import annotations


class Rate:
    """``burst`` messages at once and ``per_s`` a second thereafter, for every user."""

    def __init__(self, burst: float = 30.0, per_s: float = 0.5) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, uid: int, now: float) -> bool:
        """Whether one more is allowed at ``now`` (s, any clock)."""
        left, at = self._left.get(uid, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - at) * self._per_s)
        allowed = left >= 1.0
        self._left[uid] = (left - 1.0 if allowed else left, now)
        return allowed
