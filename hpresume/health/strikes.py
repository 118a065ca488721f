"""Faults that count only after several runs in a row, and since when there is a fault.

Kept in a file below /run, which a boot empties: what was before the boot does
not count. Only root writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from hpresume.health.model import Action, Result, Status, one_line
from hpresume.health.policy import Policy

STATE_FILE = "/run/hpresume/health.json"


@dataclass(frozen=True)
class Strike:
    """Runs in a row in which a check failed, and when the first of them was."""

    count: int
    since: float


def counted(
    results: Iterable[Result], before: Mapping[str, Strike], policy: Policy, now: float
) -> tuple[tuple[Result, ...], dict[str, Strike]]:
    """The results with their strikes, and the strikes from now on.

    A fault that has not enough strikes yet is still a Fail, as a warning that
    holds nothing. An Unknown neither adds a strike nor clears one.
    """
    after = dict(before)
    found = []
    for result in results:
        if result.status is Status.FAIL:
            last = before.get(result.check)
            # The clock may have been set back since.
            strike = Strike(last.count + 1, min(last.since, now)) if last else Strike(1, now)
            after[result.check] = strike
            result = _struck(result, strike, policy.check(result.check).strikes)
        elif result.status is not Status.UNKNOWN:
            after.pop(result.check, None)
        found.append(result)
    return tuple(found), after


def _struck(result: Result, strike: Strike, needed: int) -> Result:
    since = strike.since if result.since is None else result.since
    if strike.count >= needed:
        return replace(result, since=since)
    evidence = one_line(f"strike {strike.count} of {needed}: {result.evidence}")
    return replace(result, since=since, evidence=evidence, action=Action.NONE, hold=False)


def read(path: str) -> dict[str, Strike]:
    """The strikes in a file; none where it cannot be read."""
    with suppress(OSError), open(path, "rb") as stream:
        return parse(stream.read(1 << 20))
    return {}


def parse(content: bytes) -> dict[str, Strike]:
    """The strikes in a file's content; what is no strike is left out."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    found = {}
    for name, value in document.items() if isinstance(document, dict) else ():
        if not isinstance(value, dict):
            continue
        count, since = value.get("count"), value.get("since")
        if type(count) is not int or not 0 < count < 1_000_000:
            continue
        if isinstance(since, int | float) and 0 <= since < 1e11:
            found[name] = Strike(count, float(since))
    return found


def write(path: str, strikes: Mapping[str, Strike]) -> None:
    """Replace the file as a whole. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    text = json.dumps({n: {"count": s.count, "since": s.since} for n, s in strikes.items()})
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
