"""Growing back: a step that goes on with fewer nodes takes all again. Pure, but for the watch.

To leave a step that is well costs what it did since its last checkpoint. So it
is left right after one, and only once a start on all nodes is possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hpresume.config import ResumeSettings
from hpresume.errors import SlurmError
from hpresume.resume.background import Background
from hpresume.resume.decide import decide
from hpresume.resume.model import Cause, GiveUp, Restart, Snapshot, Verdict

#: A checkpoint in which nothing has changed for this long is complete (s). Ranks
#: write their parts at about the same time; a part that takes longer has to be
#: written under another name and renamed, as any that a crash must not tear.
QUIET_S = 2.0

#: Where something changes all the time, a log beside the checkpoints say, it is
#: not waited for any longer than this (s).
MOST_S = 60.0

#: How often the nodes are looked for, and how often the checkpoint once they are there (s).
LOOK_S = 5.0
_CLOSE_LOOK_S = 0.5


@dataclass(frozen=True)
class Sight:
    """One look: the nodes of a full start (empty: not possible), the checkpoint's time."""

    nodes: tuple[str, ...]
    saved: float


@dataclass(frozen=True)
class Outlook:
    """What the looks amount to; times of the looks are on the loop's clock (s).

    ``saved_before`` is the checkpoint's time at the first look at which all nodes
    were there; it is compared with later ones only, since file systems have
    clocks of their own. ``newer_at`` and ``changed_at`` are when a newer one was
    first seen, and when it was last seen to change.
    """

    possible: bool = False
    saved_before: float = 0.0
    saved: float = 0.0
    newer_at: float = 0.0
    changed_at: float = 0.0


def after_look(before: Outlook, sight: Sight, now: float) -> Outlook:
    """The outlook after one more look. Pure."""
    if not sight.nodes:
        return Outlook()
    if not before.possible:
        return Outlook(possible=True, saved_before=sight.saved, saved=sight.saved)
    if sight.saved == before.saved:
        return before
    first = before.saved == before.saved_before
    newer_at = now if first else before.newer_at
    return replace(before, saved=sight.saved, newer_at=newer_at, changed_at=now)


def is_time(outlook: Outlook, now: float) -> bool:
    """Whether to leave the step now: all nodes are there, and a checkpoint since. Pure."""
    if not outlook.possible or outlook.saved <= outlook.saved_before:
        return False
    return now - outlook.changed_at >= QUIET_S or now - outlook.newer_at >= MOST_S


def full_start(snapshot: Snapshot, policy: ResumeSettings, now: float) -> Restart | str:
    """How a step that is well would start on all nodes, or why it could not. Pure.

    No budget is used by it, but the time that is left of the job counts.
    """
    if len(snapshot.step.nodes) >= snapshot.step.num_nodes:
        return "it has all its nodes"
    supposed = replace(snapshot, verdict=Verdict(Cause.REGROW), exit_code=1)
    free = replace(policy, max_resumes=10**9, max_no_progress=10**9)
    action = decide(supposed, free, now)
    if isinstance(action, GiveUp):
        return action.reason
    if not isinstance(action, Restart) or len(action.nodes) < snapshot.step.num_nodes:
        return "not enough good nodes in the job"
    return action


class RegrowWatch:
    """Looks now and then, in a thread, whether the step can take all its nodes again."""

    def __init__(self, look: Callable[[], Sight]) -> None:
        self._look = look
        self._task: Background[Sight] | None = None
        self._next = 0.0
        self._outlook = Outlook()
        self._nodes: tuple[str, ...] = ()

    def step(self, now: float) -> tuple[str, ...]:
        """The nodes to start on, once it is time to leave the step; else none."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            try:
                sight = task.result()
            except SlurmError:
                pass  # asked again in a moment
            else:
                self._nodes = sight.nodes
                self._outlook = after_look(self._outlook, sight, now)
            self._next = now + (_CLOSE_LOOK_S if self._outlook.possible else LOOK_S)
        if self._task is None and now >= self._next:
            self._task = Background(self._look)
        return self._nodes if is_time(self._outlook, now) else ()

    def timeout(self, now: float) -> float:
        """Seconds until ``step`` should be called again."""
        return 0.1 if self._task is not None else max(0.1, self._next - now)
