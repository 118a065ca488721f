"""What would be done, in words, with nothing written or touched. Pure."""

from __future__ import annotations

from hpresume.recovery import wanted
from hpresume.recovery.decide import step
from hpresume.recovery.limits import Budget
from hpresume.recovery.model import Begin, Change, Hold, Phase, Policy, Recovery, Say, Snapshot


def would(snapshot: Snapshot, policy: Policy, now: float) -> tuple[str, ...]:
    """One line for every node that something would be done about or said of."""
    lines = [
        f"{one.node}: {one.kind} is under way, {one.phase}: it would go on"
        for one in sorted(snapshot.active, key=lambda r: (r.began, r.uid))
    ]
    budget = Budget(snapshot, policy, now)
    for action in wanted.begin(snapshot, policy, now):
        if isinstance(action, Say):
            lines.append(action.message)
        elif isinstance(action, Begin):
            lines.append(_line(action, snapshot, policy, now, budget))
    return tuple(lines)


def _line(action: Begin, snapshot: Snapshot, policy: Policy, now: float, budget: Budget) -> str:
    recovery = Recovery(
        uid="dry", node=action.node, kind=action.kind, origin=action.origin,
        reason=action.reason, phase=Phase.WAITING, since=now, began=now,
    )  # fmt: skip
    what = f"{action.node}: {action.kind} ({action.origin}: {action.reason or 'no reason'})"
    for following in step(recovery, snapshot, policy, now, budget):
        if isinstance(following, Hold):
            return f"{what} would begin now"
        if isinstance(following, Change) and following.after.note:
            return f"{what} would wait or end: {following.after.note}"
    return f"{what} would begin now"
