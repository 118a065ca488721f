"""What health checks found on the nodes of a failed step, and which of it counts. Pure.

A failure with evidence against a node is a node failure, whatever Slurm says of the
node. Evidence is a check that failed and whose fault justifies a reboot or a
replacement; what a check could not find out is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpresume.config import ResumeSettings
from hpresume.health.after_failure import CLOCK_SLACK_S, PREFIX
from hpresume.resume.model import Cause, NodeFault, Sign, Verdict
from hpresume.slurm.models import Job, JobState, Node

_ACTIONS = ("replace", "reboot")

#: Checks that are named of one node; one broken part fails several of them.
_MOST_NAMED = 2


@dataclass(frozen=True)
class HealthFinding:
    """One result of one check on one node.

    ``result`` and ``action`` are the words of hpresume's health checks (``fail``,
    ``unknown``; ``none``, ``reboot``, ``replace``). ``since`` is when the fault came,
    in Unix seconds of this host; the time of the check where nobody knows it.
    """

    node: str
    check: str
    result: str
    evidence: str
    action: str
    since: float


@dataclass(frozen=True)
class HealthReport:
    """The findings, and the nodes that did not answer to the end.

    ``interrupted`` names the signal by which somebody asked to end meanwhile.
    """

    findings: tuple[HealthFinding, ...] = ()
    silent: tuple[str, ...] = ()
    interrupted: str = ""


def may_be_a_nodes_fault(verdict: Verdict, job: Job) -> bool:
    """Whether a failure that looks like the application's may come from a node of a live job."""
    return verdict.cause in (Cause.APPLICATION, Cause.HANG) and job.state is JobState.RUNNING


def is_due(verdict: Verdict, settings: ResumeSettings, job: Job, allocates: bool) -> bool:
    """Whether the nodes of a step that ended so should be checked.

    Not once srun's own allocation is gone: nothing can be run on its nodes any more.
    """
    return settings.health_check > 0 and may_be_a_nodes_fault(verdict, job) and not allocates


def parse_report(text: str, nodes: Sequence[str], now: float) -> HealthReport:
    """The lines of ``hpresume.health.after_failure`` from ``nodes``; others are left out.

    ``now`` is when they were printed (Unix s).
    """
    findings, done = [], set()
    for line in text.splitlines():
        words = line.split(None, 6)
        if len(words) < 3 or words[0] != PREFIX or words[1] not in nodes:
            continue
        if words[2] == "done":
            done.add(words[1])
        elif len(words) == 7 and (age := _seconds(words[5])) is not None:
            _, node, result, check, action, _, evidence = words
            findings.append(HealthFinding(node, check, result, evidence, action, now - age))
    return HealthReport(tuple(findings), tuple(n for n in nodes if n not in done))


def _seconds(text: str) -> float | None:
    plain = text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 20
    return float(text) if plain else None


def faults_in(findings: Iterable[HealthFinding], started: float) -> tuple[NodeFault, ...]:
    """The nodes that are to blame, with the evidence, for an attempt ``started`` (Unix s)."""
    by_node: dict[str, list[HealthFinding]] = {}
    for finding in findings:
        fresh = finding.since >= started - CLOCK_SLACK_S
        if finding.result == "fail" and finding.action in _ACTIONS and fresh:
            by_node.setdefault(finding.node, []).append(finding)
    return tuple(NodeFault(node, Sign.UNHEALTHY, _words(found)) for node, found in by_node.items())


def _words(found: Sequence[HealthFinding]) -> str:
    ranked = sorted(found, key=lambda f: _ACTIONS.index(f.action))
    named = [f"{f.check} ({f.evidence}; action: {f.action})" for f in ranked[:_MOST_NAMED]]
    more = len(ranked) - len(named)
    return f"fails health check {', '.join(named)}" + (f" and {more} more" if more else "")


def doubts(report: HealthReport, limit_s: float, blamed: Iterable[str] = ()) -> str:
    """Why something is not known of the nodes that are not ``blamed``; empty where all of it is."""
    said = [f"{node}: no answer within {limit_s:g} s" for node in report.silent]
    told = dict.fromkeys(blamed, "")
    for finding in report.findings:
        if finding.result == "unknown":
            told.setdefault(finding.node, f"{finding.node}: {finding.check}: {finding.evidence}")
    said += filter(None, told.values())
    return "; ".join(said[:3]) + (f"; and {len(said) - 3} more" if len(said) > 3 else "")


def still_unhealthy(blamed: Mapping[str, float], nodes: Mapping[str, Node]) -> frozenset[str]:
    """Nodes that were found unhealthy (when, Unix s) and not booted since.

    Such a node may still be in the job, and Slurm takes it as good.
    """
    return frozenset(
        name for name, at in blamed.items() if name not in nodes or nodes[name].boot_time < at
    )
