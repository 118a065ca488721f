"""The report of a deep check: what each node and each pair said, and what was done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from hpresume.health import report
from hpresume.health.deep.matrix import Finding, PairResult, PairStatus
from hpresume.health.model import Action, Fault, Result, Status, failed, passed, skipped, unknown
from hpresume.health.policy import CheckPolicy


@dataclass(frozen=True)
class NodeReport:
    """One node; ``mark`` says what was done to it in Slurm."""

    node: str
    results: tuple[Result, ...]
    mark: str = ""


@dataclass(frozen=True)
class Report:
    """All of it; ``trouble``: what could not be given back."""

    nodes: tuple[NodeReport, ...]
    left_out: tuple[tuple[str, str], ...]
    pairs: tuple[PairResult, ...] = ()
    finding: Finding = field(default_factory=Finding)
    trouble: tuple[str, ...] = ()


def pair_result(
    node: str, pairs: Iterable[PairResult], finding: Finding, policy: CheckPolicy
) -> Result:
    """What the pairs say of one node, as the result of a check."""
    own = tuple(pair for pair in pairs if node in pair.sample.pair)
    named = next((named for named in finding.nodes if named.node == node), None)
    if named is not None:
        bad = [pair for pair in named.pairs if pair.is_bad]
        measured = f"{len(bad)} of {named.tested} pairs bad"
        return failed(policy, [Fault(named.evidence, measured, bad[0].limit)])
    links = [pair for pair in finding.links if node in pair.sample.pair]
    if links:
        # Which of the two it is, or what lies between them, nobody can tell.
        return failed(
            policy, [Fault(link_text(link), action=Action.NONE, limit=link.limit) for link in links]
        )
    if not own:
        return skipped(policy, "no other node to test it with")
    if finding.doubt:
        return unknown(policy, finding.doubt)
    good = [pair for pair in own if pair.status is PairStatus.GOOD]
    if not good:
        return unknown(policy, f"no pair was measured: {own[0].evidence}")
    lowest = min(pair.sample.gbps or 0.0 for pair in good)
    tools = "/".join(sorted({pair.sample.tool for pair in good}))
    text = f"{len(good)} of {len(own)} pairs good ({tools})"
    partners = {name for pair in own for name in pair.sample.pair} - {node}
    names = [each.node for each in finding.nodes if each.node in partners]
    if names:
        text += f"; bad: {', '.join(names)}"
    return passed(policy, text, f"at least {lowest:.3g} Gbit/s")


def link_text(pair: PairResult) -> str:
    """One bad link in words."""
    return f"link between {' and '.join(pair.sample.pair)}: {pair.evidence}"


def exit_code(found: Report, *, strict: bool = False) -> int:
    """As ``hpresume check``: 1 for a fault that keeps jobs off a node.

    With ``strict``, a node that was left out is one of which nothing is known.
    """
    results = [result for node in found.nodes for result in node.results]
    code = report.EXIT_FAULT if found.trouble else report.exit_code(results, strict=strict)
    if code == report.EXIT_GOOD and strict and found.left_out:
        return report.EXIT_UNKNOWN
    return code


def lines(found: Report) -> list[str]:
    """For people: of a node what is not good, and how many of each."""
    said = []
    for node in found.nodes:
        said.append(f"{node.node}: {report.summary(node.results) or 'nothing is known'}")
        shown = (r for r in node.results if r.status in (Status.FAIL, Status.UNKNOWN))
        said += [f"  {report.line(result)}" for result in shown]
        if node.mark:
            said.append(f"  {node.mark}")
    counts = [(status, sum(p.status is status for p in found.pairs)) for status in PairStatus]
    if found.pairs:
        told = ", ".join(f"{count} {status}" for status, count in counts if count)
        said.append(f"pairs: {told}")
    said += [f"bad {link_text(link)}" for link in found.finding.links]
    if found.finding.doubt:
        said.append(f"no node is named: {found.finding.doubt}")
    said += [f"left out: {name}: {why}" for name, why in found.left_out]
    return [*said, *found.trouble]


def document(found: Report, **more: Any) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        **more,
        "nodes": {
            node.node: {"results": [asdict(r) for r in node.results], "mark": node.mark}
            for node in found.nodes
        },
        "pairs": [
            {**asdict(pair.sample), "status": pair.status, "evidence": pair.evidence}
            for pair in found.pairs
        ],
        "bad_nodes": [named.node for named in found.finding.nodes],
        "bad_links": [list(link.sample.pair) for link in found.finding.links],
        "doubt": found.finding.doubt,
        "left_out": dict(found.left_out),
        "trouble": list(found.trouble),
    }
