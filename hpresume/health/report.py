"""Results for people, for programs and for prologs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from hpresume.health.model import Action, AnyCheck, Result, Status
from hpresume.health.policy import Policy

#: Exit codes of ``hpresume check``.
EXIT_GOOD, EXIT_FAULT, EXIT_UNKNOWN = 0, 1, 3

#: How a fault is shown that justifies nothing but a look.
_WARNING = "warning"


def exit_code(results: Iterable[Result], *, strict: bool = False) -> int:
    """1: a fault that keeps jobs off the node; 0 otherwise.

    Slurm drains a node whose prolog fails, so neither a mere warning nor a
    tool that did not answer is worth it. ``strict``: a warning is 1 too, and 3
    says that something is not known.
    """
    found = tuple(results)
    failed = [result for result in found if result.status is Status.FAIL]
    if any(strict or r.hold or r.action is not Action.NONE for r in failed):
        return EXIT_FAULT
    if strict and any(result.status is Status.UNKNOWN for result in found):
        return EXIT_UNKNOWN
    return EXIT_GOOD


def line(result: Result) -> str:
    """One line for people."""
    text = f"{_word(result):<8} {result.check:<20} {result.evidence}"
    notes = []
    if result.status is Status.FAIL:
        if result.action is not Action.NONE:
            notes.append(f"action: {result.action}")
        if result.threshold:
            notes.append(f"limit: {result.threshold[:60]}")
        if result.source:
            notes.append(f"source: {result.source}")
        if result.since is not None:
            notes.append(f"since {_moment(result.since)}")
    elif result.status is Status.PASS and result.left_out:
        notes.append(f"left out: {result.left_out}")
    return text + (f" ({'; '.join(notes)})" if notes else "")


def _word(result: Result) -> str:
    if result.status is Status.FAIL and result.action is Action.NONE and not result.hold:
        return _WARNING
    return result.status.value


def left_out(results: Iterable[Result]) -> str:
    """What this user could not look at; empty where nothing was left out."""
    names = [result.check for result in results if result.left_out]
    return f"left out without root: {', '.join(names)}" if names else ""


def summary(results: Iterable[Result]) -> str:
    """How many of each, in the words of their lines."""
    counts = Counter(_word(result) for result in results)
    words = [status.value for status in Status]
    words.insert(words.index(Status.FAIL.value) + 1, _WARNING)
    return ", ".join(f"{counts[word]} {word}" for word in words if counts[word])


def listing(checks: Iterable[AnyCheck], policy: Policy) -> str:
    """Every check with what it is about, its profiles and its source."""
    lines = []
    for check in checks:
        of = policy.check(check.name)
        state = ", ".join(of.profiles) if of.enabled else "switched off"
        action = "" if of.action is Action.NONE else f"; {of.action}"
        lines.append(f"{check.name:<20} {of.about} [{state}{action}]\n{'':<21}source: {of.source}")
        lines += [
            f"{'':<21}{name} = {_short(limit.shown)} (source: {limit.source})"
            for name, limit in of.limits.items()
        ]
    return "\n".join(lines)


def document(results: Iterable[Result], **more: Any) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {**more, "results": [asdict(result) for result in results]}


def listed(checks: Iterable[AnyCheck], policy: Policy) -> list[dict[str, Any]]:
    """The checks with their policy, ready for JSON."""
    return [{"family": check.family, **asdict(policy.check(check.name))} for check in checks]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _moment(since: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(since, 0), 4e9)))
