"""Deep checks by ``hpresume deep-check``, where Slurm's tools run.

A program of its own: it has to tidy up after itself when it is ended, and one that is left over
from a controller that was killed keeps the next one waiting instead of meeting it on the nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hpresume.errors import SlurmTransientError
from hpresume.health.checks.pair import NAME as PAIRS
from hpresume.health.model import one_line
from hpresume.provision.checking import CONNECTIVITY, STRESS, Finding, Run, Verdict
from hpresume.slurm.runner import Runner

#: Exit code of a wrong call, and of a second run beside one that is under way.
_USAGE = 2

_LONGEST = 300


class CommandDeepChecks:
    """``DeepChecks`` by a command, to which options and nodes are added.

    ``wait_s`` is how long running jobs are waited for, ``limit_s`` how long all may take.
    """

    def __init__(
        self, runner: Runner, command: tuple[str, ...], *, wait_s: float, limit_s: float
    ) -> None:
        self._runner = runner
        self._command = command
        self._wait_s = wait_s
        self._limit_s = limit_s

    def run(self, asked: Run) -> Mapping[str, Finding]:
        """Check the nodes; raises SlurmError where it has to be tried again."""
        argv = [*self._command, "--json", "--wait", f"{self._wait_s:g}", *_choice(asked.checks)]
        answer = self._runner.run([*argv, *asked.nodes], self._wait_s + self._limit_s)
        document = _document(answer.stdout)
        if document is not None:
            return {name: finding_of(document, name) for name in asked.nodes}
        said = one_line((answer.stderr.strip().splitlines() or ["no report"])[-1], _LONGEST)
        if answer.returncode in (0, 1):
            # No node could be had: all are busy, or out of service already.
            return dict.fromkeys(asked.nodes, Finding(Verdict.SKIPPED, said))
        kind = "another deep check" if answer.returncode == _USAGE else "deep-check"
        raise SlurmTransientError(f"{kind}: {said}")


def finding_of(document: Mapping[str, Any], node: str) -> Finding:
    """What a report says of one node."""
    if node in document.get("left_out", {}):
        return Finding(Verdict.SKIPPED, one_line(str(document["left_out"][node]), _LONGEST))
    entry = document.get("nodes", {}).get(node)
    if entry is None:
        return Finding(Verdict.SKIPPED, "it was left out")
    results = entry["results"]
    bad = [r for r in results if r["status"] == "fail" and (r["hold"] or r["action"] != "none")]
    if bad:
        return Finding(Verdict.FAILED, _said(bad))
    if not any(r["status"] in ("pass", "fail") for r in results):
        return Finding(Verdict.UNKNOWN, _said(results))
    return Finding(Verdict.PASSED)


def _said(results: Iterable[Mapping[str, Any]]) -> str:
    return one_line("; ".join(f"{r['check']}: {r['evidence']}" for r in results), _LONGEST)


def _choice(checks: tuple[str, ...]) -> tuple[str, ...]:
    if CONNECTIVITY not in checks:
        return ("--skip", PAIRS)
    return () if STRESS in checks else ("--only", PAIRS)


def _document(text: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
