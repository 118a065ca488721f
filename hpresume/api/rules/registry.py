"""The list of rules, and how they are asked.

Four kinds: ``request`` rules see a request alone; ``cluster`` rules see it with the cluster,
inside the service's transaction; ``group`` and ``node`` rules judge one entry of a batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from hpresume.api.errors import ApiError
from hpresume.provision.service import ClusterRecord, Document

_SOURCE = "Source:"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Rule:
    """One rule: what it says, where it is from, and the error of a request that breaks it."""

    name: str
    kind: str
    operations: tuple[str, ...]
    error: str
    summary: str
    source: str
    check: Callable[..., Any]


_RULES: dict[str, Rule] = {}


def rule(kind: str, *operations: str, error: str = "ValidationException") -> Callable[[F], F]:
    """Register a function as a rule; its docstring has a summary and a line ``Source: …``."""

    def register(check: F) -> F:
        name = check.__name__
        text = inspect.cleandoc(check.__doc__ or "")
        summary, marker, source = text.partition(_SOURCE)
        if not marker or name in _RULES:
            raise TypeError(f"rule {name} needs a name of its own and a docstring with its source")
        _RULES[name] = Rule(
            name=name,
            kind=kind,
            operations=operations,
            error=error,
            summary=" ".join(summary.split()),
            source=" ".join(source.split()),
            check=check,
        )
        return check

    return register


def all_rules() -> tuple[Rule, ...]:
    """All rules in the order in which they are asked."""
    return tuple(_RULES.values())


def rules_of(kind: str, operation: str) -> tuple[Rule, ...]:
    """Rules of one kind for an operation."""
    return tuple(r for r in _RULES.values() if r.kind == kind and operation in r.operations)


def check_request(operation: str, request: Document) -> None:
    """Raise one error with everything that the request rules find; nothing if they are kept."""
    _raise_problems(rules_of("request", operation), lambda r: r.check(request))


def check_cluster(operation: str, request: Document, cluster: ClusterRecord) -> None:
    """Raise what the cluster rules find, conflicts and limits before the rest."""
    _raise_problems(rules_of("cluster", operation), lambda r: r.check(request, cluster))


def _raise_problems(rules: tuple[Rule, ...], ask: Callable[[Rule], Iterable[str]]) -> None:
    found: dict[str, list[str]] = {}
    for entry in rules:
        for problem in ask(entry):
            found.setdefault(entry.error, []).append(problem)
    for error in sorted(found, key=lambda code: (code == "ValidationException", code)):
        problems = found[error]
        if len(problems) == 1:
            raise ApiError(error, problems[0])
        raise ApiError(error, f"{len(problems)} validation errors detected: " + "; ".join(problems))
