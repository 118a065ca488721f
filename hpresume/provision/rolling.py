"""What comes next in the software update of one group: pure, from its nodes and the clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpresume.provision.software import Stage, Update


@dataclass(frozen=True)
class Member:
    """One node of the group that stays.

    ``has_machine`` is true also for one that was asked for; ``in_batch``: it was taken out of
    service by the update and is not back; ``is_free``: nobody else has it in hand.
    """

    logical_id: str
    revision: int
    has_machine: bool = True
    is_up: bool = True
    in_batch: bool = False
    is_free: bool = True


@dataclass(frozen=True)
class Wait:
    """Nothing to do now."""


@dataclass(frozen=True)
class Replace:
    """The next batch."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class EndBatch:
    """All nodes of the batch are back; the next one may begin at ``next_at`` (Unix s)."""

    next_at: float


@dataclass(frozen=True)
class RollBack:
    """Back to the software before, and why."""

    why: str


@dataclass(frozen=True)
class Finish:
    """The update is at its end."""

    stage: Stage
    why: str = ""


Step = Wait | Replace | EndBatch | RollBack | Finish


def decide(
    update: Update, members: Iterable[Member], now: float, alarms: frozenset[str] | None
) -> Step:
    """The next step of an update that has begun.

    ``alarms`` are the names that are in alarm, None where that is not known: then no further
    batch of an update with alarms begins. Nodes without a machine need no place in a batch: the
    next machine they get has the right software.
    """
    present = tuple(members)
    is_back = update.stage is Stage.ROLLBACK_IN_PROGRESS
    if is_back:
        if update.broken:
            return Finish(Stage.FAILED, update.broken)
    elif update.stage is Stage.IN_PROGRESS:
        rung = sorted(update.alarms & (alarms or frozenset()))
        if rung:
            return RollBack(f"in alarm: {', '.join(rung)}")
        if update.broken:
            return RollBack(update.broken)
    else:
        return Wait()
    if any(member.in_batch for member in present):
        return Wait()
    if update.batching:
        return EndBatch(now if is_back else now + update.wait_s)
    behind = [
        member
        for member in present
        if member.has_machine and (member.revision == update.goal.revision) is is_back
    ]
    if not behind:
        return Finish(Stage.ROLLBACK_COMPLETE if is_back else Stage.SUCCEEDED)
    if now < update.not_before or (not is_back and update.alarms and alarms is None):
        return Wait()
    ready = [member.logical_id for member in behind if member.is_up and member.is_free]
    return Replace(tuple(ready[: update.batch(len(present))])) if ready else Wait()
