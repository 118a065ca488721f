"""Nodes and their recoveries, for people and programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpresume.recovery import reasons
from hpresume.recovery.model import Phase, Recovery
from hpresume.recovery.reasons import Kind, NearMiss, Order
from hpresume.slurm.models import Node

_NEXT = {
    Phase.TERMINATING: "a new machine is launched",
    Phase.LAUNCHING: "the machine boots",
    Phase.REBOOTING: "the machine boots",
    Phase.BOOTING: "health check, once slurmd has registered",
    Phase.CHECKING: "back to service if healthy",
    Phase.RETURNING: "back in service",
    Phase.ABANDONING: "quarantine",
    Phase.QUARANTINING: "quarantine",
}


@dataclass(frozen=True)
class Line:
    """One node. ``since`` is Unix time (s), 0.0 where there is none.

    ``group`` is its instance group as ``cluster/group``, if it is of one.
    """

    node: str
    state: str
    fault: str
    phase: str
    since: float
    next_step: str
    group: str = ""

    def for_people(self, now: float) -> str:
        """How long ago ``since`` was."""
        if not self.since:
            return ""
        seconds = max(0.0, now - self.since)
        if seconds < 120:
            return f"{seconds:.0f} s"
        return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def lines(nodes: Mapping[str, Node], active: Iterable[Recovery], now: float) -> tuple[Line, ...]:
    """A line for every node, in Slurm's order."""
    working = {recovery.node: recovery for recovery in active}
    return tuple(_line(node, working.get(name), now) for name, node in nodes.items())


def _line(node: Node, recovery: Recovery | None, now: float) -> Line:
    state = "+".join(sorted(node.states))
    fault = node.reason if not node.is_usable else ""
    if recovery is None:
        return Line(node.name, state, fault, "", node.reason_time if fault else 0.0, _idle(node))
    following = _NEXT.get(recovery.phase) or (
        {Kind.CHECK: "health check"}.get(recovery.kind) or str(recovery.kind)
    )
    if recovery.tries:
        left_s = max(0.0, recovery.retry_at - now)
        following = f"{recovery.phase} is tried again in {left_s:.0f} s ({recovery.note})"
    elif recovery.note:
        following += f" ({recovery.note})"
    cause = recovery.reason or fault or recovery.origin.value
    return Line(node.name, state, cause, recovery.phase.value, recovery.since, following)


def _idle(node: Node) -> str:
    found = reasons.read(node.reason) if node.reason and not node.is_usable else None
    if isinstance(found, NearMiss):
        return f'nothing: the reason is not "{found.meant}"'
    if isinstance(found, Order) and (node.is_failing or node.is_down):
        return f"{found.kind}, when the controller sees it"
    if reasons.is_quarantine(node.reason):
        return "an administrator looks at it and resumes it"
    return ""
