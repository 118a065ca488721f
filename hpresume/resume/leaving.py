"""Leaving nodes while the training on them is well.

One that somebody marked, only if ``grace`` is set: then the step gets the signal, may
write a checkpoint and end, and is started again elsewhere; what has not ended
when the time is over is ended. Or all, to grow back to the full number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hpresume.errors import SlurmError
from hpresume.resume.background import Background
from hpresume.resume.model import NodeFault, Sign
from hpresume.resume.observe import mark_faults
from hpresume.slurm.models import Node

#: How often Slurm is asked for marks on the step's nodes (s).
_LOOK_S = 5.0


@dataclass(frozen=True)
class Leave:
    """A departure under way: why, and when it is over (s on the loop's clock).

    Without ``faults`` the step is left for one on more nodes.
    """

    faults: tuple[NodeFault, ...]
    deadline: float


class MarkWatch:
    """Looks for new FAIL and DRAIN marks now and then, in a thread."""

    def __init__(self, ask: Callable[[Iterable[str]], Mapping[str, Node]]) -> None:
        self._ask = ask
        self._task: Background[Mapping[str, Node]] | None = None
        self._next = 0.0

    def step(
        self, names: tuple[str, ...], before: Mapping[str, Node], now: float
    ) -> tuple[NodeFault, ...]:
        """New marks on ``names``, which were ``before``; asks again when it is time."""
        found: tuple[NodeFault, ...] = ()
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            try:
                found = mark_faults(task.result(), names, before)
            except SlurmError:
                pass  # asked again in a moment
        if self._task is None and now >= self._next:
            self._next = now + _LOOK_S
            self._task = Background(lambda: self._ask(names))
        return tuple(f for f in found if f.sign in (Sign.FAIL, Sign.DRAIN))

    def timeout(self, now: float) -> float:
        """Seconds until ``step`` should be called again."""
        return 0.1 if self._task is not None else max(0.1, self._next - now)
