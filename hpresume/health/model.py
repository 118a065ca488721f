"""What a health check says, and what it is made of.

A check gathers raw facts (I/O, bounded in time) and judges them (pure). What
it could not find out is never a Pass: hardware that is not there is Skipped,
a tool that fails is Unknown, and both say why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from hpresume.health.env import Env
    from hpresume.health.policy import CheckPolicy, Limit

Raw = TypeVar("Raw")

#: Evidence travels in Slurm's reason and on one line of a terminal.
MAX_EVIDENCE = 300


class Status(StrEnum):
    """Outcome of one check."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What the evidence justifies doing to the node."""

    NONE = "none"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def weight(self) -> int:
        """Greater for the more drastic action."""
        return list(Action).index(self)


@dataclass(frozen=True)
class Absent:
    """Nothing to judge: no such hardware, tool or right. Becomes Skipped."""

    reason: str
    needs_root: bool = False


@dataclass(frozen=True)
class Broken:
    """The facts could not be gathered. Becomes Unknown."""

    reason: str


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    ``action`` None means the action that the policy has for the check;
    ``since`` is Unix seconds, None where the node does not tell.
    """

    evidence: str
    measured: str = ""
    limit: Limit | None = None
    action: Action | None = None
    since: float | None = None


@dataclass(frozen=True)
class Result:
    """What one check found.

    ``threshold`` is what ``measured`` was compared with and ``source`` who says
    so. A Fail with ``action`` none is a warning; ``hold`` says that such a
    warning keeps new jobs off the node. ``left_out`` says what this user could
    not look at.
    """

    check: str
    status: Status
    evidence: str
    measured: str = ""
    threshold: str = ""
    source: str = ""
    action: Action = Action.NONE
    since: float | None = None
    hold: bool = False
    left_out: str = ""


@dataclass(frozen=True)
class Check(Generic[Raw]):
    """A check: its texts, limits and switches are in the policy under ``name``.

    ``load``: it puts the node under load, so it runs after the others, alone.
    ``own_action``: what it finds may justify more than the policy's action for it.
    """

    name: str
    family: str
    gather: Callable[[Env], Raw | Absent | Broken]
    judge: Callable[[Raw, CheckPolicy, float], Result]
    load: bool = False
    own_action: bool = False


AnyCheck = Check[Any]


def passed(policy: CheckPolicy, evidence: str, measured: str = "", left_out: str = "") -> Result:
    """The result of a check that found nothing wrong."""
    return Result(
        policy.name, Status.PASS, one_line(evidence), measured, left_out=one_line(left_out)
    )


def unknown(policy: CheckPolicy, reason: str) -> Result:
    """The result of a check that could not find out."""
    return Result(policy.name, Status.UNKNOWN, one_line(reason))


def skipped(policy: CheckPolicy, reason: str, *, needs_root: bool = False) -> Result:
    """The result of a check that has nothing to look at."""
    said = one_line(reason)
    return Result(policy.name, Status.SKIPPED, said, left_out=said if needs_root else "")


def failed(policy: CheckPolicy, faults: Iterable[Fault]) -> Result:
    """One result for all ``faults`` (at least one); the most drastic one leads."""
    ranked = sorted(faults, key=lambda fault: -_action(fault, policy).weight)
    first = ranked[0]
    times = [fault.since for fault in ranked if fault.since is not None]
    texts = list(dict.fromkeys(fault.evidence for fault in ranked))
    return Result(
        policy.name,
        Status.FAIL,
        one_line("; ".join(texts)),
        first.measured,
        first.limit.shown if first.limit else "",
        first.limit.source if first.limit else policy.source,
        _action(first, policy),
        min(times, default=None),
        policy.hold,
    )


def verdict(
    policy: CheckPolicy,
    faults: Iterable[Fault],
    evidence: str,
    measured: str = "",
    doubts: Iterable[str] = (),
) -> Result:
    """Fail where there are faults; else Unknown where there are doubts; else Pass."""
    found = tuple(faults)
    if found:
        return failed(policy, found)
    for doubt in doubts:
        return unknown(policy, doubt)
    return passed(policy, evidence, measured)


def one_line(text: str, length: int = MAX_EVIDENCE) -> str:
    """``text`` without control characters and line ends, at most ``length`` long."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * length]).split())
    return words if len(words) <= length else words[: length - 1] + "…"


def _action(fault: Fault, policy: CheckPolicy) -> Action:
    return policy.action if fault.action is None else fault.action
