"""What HealthCheckProgram does to its node in Slurm.

A fault that justifies a reboot or a replacement sets the node FAIL, with a
reason that leads with ``Action:Reboot`` or ``Action:Replace`` and goes on with
the evidence: that is an order to the recovery controller, and only it or an
administrator takes it back. A warning that holds the node sets it DRAIN, and
that is taken back here when every check it names says that the fault is gone.

Reasons that somebody else has set are not touched. Slurm's own words on a node
that is in service again are nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpresume.health.model import Action, Result, Status, one_line
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import Node

#: Slurm keeps longer ones, but its tools show them in lines.
MAX_REASON = 240

_OWN = re.compile(r"(?:Action:(Reboot|Replace) )?\[hpresume ([a-z0-9,-]+)\]")

#: How the reasons begin that Slurm itself gives and leaves behind.
_SLURMS_OWN = ("Not responding", "Node unexpectedly rebooted", "Reboot ASAP", "reboot complete")


@dataclass(frozen=True)
class SetNode:
    """Give the node a state and a reason."""

    state: str
    reason: str


@dataclass(frozen=True)
class ClearNode:
    """Take back the mark of a warning."""

    why: str


@dataclass(frozen=True)
class LeaveNode:
    """Do nothing."""

    why: str


MarkAction = SetNode | ClearNode | LeaveNode


@dataclass(frozen=True)
class Mark:
    """A mark of ours, read from a node's reason."""

    action: Action
    checks: frozenset[str]


def own_mark(reason: str) -> Mark | None:
    """The mark in a reason; None for a reason of somebody else."""
    match = _OWN.match(reason)
    if match is None:
        return None
    action = Action(match[1].lower()) if match[1] else Action.NONE
    return Mark(action, frozenset(match[2].split(",")))


def decide(node: Node, results: Iterable[Result]) -> MarkAction:
    """What the results justify doing to the node as Slurm has it."""
    found = tuple(results)
    mark = own_mark(node.reason)
    if node.reason and mark is None and not _is_left_over(node):
        return LeaveNode(f"its reason is not ours: {one_line(node.reason, 80)}")
    if node.has("MAINT", "MAINTENANCE"):
        return LeaveNode("it is in maintenance")
    failed = [result for result in found if result.status is Status.FAIL]
    worst = max((r.action for r in failed), key=lambda a: a.weight, default=Action.NONE)
    if worst is not Action.NONE:
        if mark and mark.action.weight >= worst.weight and not node.is_usable:
            return LeaveNode("it is marked already")
        return SetNode("FAIL", _reason([r for r in failed if r.action is worst], worst))
    if mark and mark.action is not Action.NONE:
        return LeaveNode("the recovery controller or an administrator takes this mark back")
    holding = [result for result in failed if result.hold]
    if holding:
        if mark and node.is_draining and mark.checks == {r.check for r in holding}:
            return LeaveNode("it is marked already")
        return _drain(node, mark, holding)
    return _without_faults(node, mark, found)


def _drain(node: Node, mark: Mark | None, holding: list[Result]) -> MarkAction:
    if mark is None and not node.is_usable:
        return LeaveNode("it is out of service already")
    return SetNode("DRAIN", _reason(holding, Action.NONE))


def _without_faults(node: Node, mark: Mark | None, results: tuple[Result, ...]) -> MarkAction:
    if mark is None or not node.is_draining:
        return LeaveNode("nothing is wrong")
    good = {r.check for r in results if r.status in (Status.PASS, Status.SKIPPED)}
    # A warning below its strikes is a Fail without hold: not gone yet.
    if not mark.checks <= good:
        return LeaveNode("not known to be good again: " + ", ".join(sorted(mark.checks - good)))
    return ClearNode("good again: " + ", ".join(sorted(mark.checks)))


def execute(action: MarkAction, name: str, gateway: SlurmGateway) -> None:
    """Do it."""
    if isinstance(action, SetNode):
        gateway.update_node(name, State=action.state, Reason=action.reason)
    elif isinstance(action, ClearNode):
        gateway.update_node(name, State="RESUME")


def _is_left_over(node: Node) -> bool:
    return node.is_usable and node.reason.startswith(_SLURMS_OWN)


def _reason(results: list[Result], action: Action) -> str:
    leader = "" if action is Action.NONE else f"Action:{action.value.capitalize()} "
    names = ",".join(sorted({result.check for result in results}))
    evidence = "; ".join(result.evidence for result in results)
    # A quotation mark would end the reason where scontrol reads it.
    return one_line(f"{leader}[hpresume {names}] {evidence}".replace('"', "'"), MAX_REASON)
