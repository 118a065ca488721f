"""From what every pair of nodes reached to the node, or the link, that is bad.

A node is bad where its pairs are bad while its partners do well with each
other. Where no pair is good nobody can tell: the network as a whole, or the
test, is at fault then, and no node is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median_high

from hpresume.health.deep.tournament import Pair
from hpresume.health.model import one_line
from hpresume.health.policy import CheckPolicy, Limit


@dataclass(frozen=True)
class Sample:
    """What one pair reached.

    ``gbps`` is the slower direction (TCP) or the bus bandwidth (NCCL), in
    Gbit/s; ``rtt_ms`` the shortest round trip, None where the tool has none.
    ``error``: the two cannot talk. ``doubt``: it could not be found out.
    """

    pair: Pair
    tool: str = ""
    gbps: float | None = None
    rtt_ms: float | None = None
    error: str = ""
    doubt: str = ""


class PairStatus(StrEnum):
    """Outcome of one pair."""

    GOOD = "good"
    SLOW = "slow"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class PairResult:
    """A pair, judged; ``evidence`` says why it is not good."""

    sample: Sample
    status: PairStatus
    evidence: str
    limit: Limit | None = None

    @property
    def is_bad(self) -> bool:
        """Whether it counts against its two nodes."""
        return self.status in (PairStatus.SLOW, PairStatus.FAILED)


@dataclass(frozen=True)
class Named:
    """A node that is bad, and the pairs that say so."""

    node: str
    pairs: tuple[PairResult, ...]
    tested: int

    @property
    def evidence(self) -> str:
        """For the node's reason."""
        bad = [pair for pair in self.pairs if pair.is_bad]
        said = "; ".join(
            f"with {other(pair.sample.pair, self.node)} {pair.evidence}" for pair in bad[:3]
        )
        return one_line(f"{len(bad)} of {self.tested} pairs bad: {said}")


@dataclass(frozen=True)
class Finding:
    """The bad nodes, the bad links between other nodes, and why nobody is named."""

    nodes: tuple[Named, ...] = ()
    links: tuple[PairResult, ...] = ()
    doubt: str = ""


def other(pair: Pair, node: str) -> str:
    """The partner."""
    return pair[1] if pair[0] == node else pair[0]


def judge(samples: Iterable[Sample], policy: CheckPolicy) -> tuple[PairResult, ...]:
    """Each pair by the policy's limits, and by what the nodes reach at their best."""
    found = tuple(samples)
    tools = {sample.tool for sample in found}
    usual = {tool: _usual([s for s in found if s.tool == tool]) for tool in tools}
    return tuple(_judged(sample, usual[sample.tool], policy) for sample in found)


def again(
    schedule: Iterable[tuple[Pair, ...]], pairs: Iterable[PairResult]
) -> tuple[tuple[Pair, ...], ...]:
    """The rounds in which slow pairs are measured once more.

    Something else on the nodes may have slowed them down. One that fails has
    been tried for as long as the policy says.
    """
    slow = {pair.sample.pair for pair in pairs if pair.status is PairStatus.SLOW}
    left = (tuple(pair for pair in each if pair in slow) for each in schedule)
    return tuple(each for each in left if each)


def confirmed(first: Iterable[Sample], second: Iterable[Sample]) -> list[Sample]:
    """The better of both measurements; a failure where the second one failed."""
    later = {sample.pair: sample for sample in second if not sample.doubt}
    return [_better(sample, later.get(sample.pair, sample)) for sample in first]


def _better(first: Sample, second: Sample) -> Sample:
    if second.error or first.gbps is None or second.gbps is None:
        return second
    trips = [trip for trip in (first.rtt_ms, second.rtt_ms) if trip is not None]
    return replace(second, gbps=max(first.gbps, second.gbps), rtt_ms=min(trips, default=None))


def _usual(samples: list[Sample]) -> float | None:
    """The median of what each node reached in its best pair.

    Not the median of the pairs: one bad node of four spoils half of them.
    """
    best: dict[str, float] = {}
    for sample in samples:
        if sample.gbps is not None and not sample.error and not sample.doubt:
            for node in sample.pair:
                best[node] = max(best.get(node, 0.0), sample.gbps)
    return median_high(best.values()) if best else None


def _judged(sample: Sample, usual: float | None, policy: CheckPolicy) -> PairResult:
    if sample.doubt:
        return PairResult(sample, PairStatus.UNKNOWN, one_line(sample.doubt, 160))
    if sample.error:
        return PairResult(sample, PairStatus.FAILED, one_line(sample.error, 160))
    if sample.gbps is None:
        return PairResult(sample, PairStatus.UNKNOWN, "no bandwidth was measured")
    shown = f"{sample.gbps:.3g} Gbit/s"
    limits = policy.limits
    least = limits["min_nccl_gbps" if sample.tool == "nccl" else "min_gbps"]
    share = limits["min_percent"]
    if sample.gbps < least.value:
        return PairResult(sample, PairStatus.SLOW, shown, least)
    if usual is not None and sample.gbps < usual * share.value / 100:
        text = f"{shown}, the others {usual:.3g}"
        return PairResult(sample, PairStatus.SLOW, text, share)
    longest = limits["max_rtt_ms"]
    if sample.rtt_ms is not None and sample.rtt_ms > longest.value:
        return PairResult(sample, PairStatus.SLOW, f"round trip {sample.rtt_ms:.3g} ms", longest)
    return PairResult(sample, PairStatus.GOOD, shown)


def find(pairs: Iterable[PairResult], policy: CheckPolicy) -> Finding:
    """The worst node first; its pairs then say nothing more about its partners."""
    left = [pair for pair in pairs if pair.status is not PairStatus.UNKNOWN]
    of_node: dict[str, list[PairResult]] = {}
    for pair in left:
        for node in pair.sample.pair:
            of_node.setdefault(node, []).append(pair)
    if left and all(pair.is_bad for pair in left):
        if len(left) == 1:
            return Finding(links=tuple(left), doubt="one pair does not tell which of the two")
        return Finding(doubt=f"all {len(left)} pairs are bad: the network, or the test itself")
    named: list[Named] = []
    while (worst := _worst(left, of_node, policy)) is not None:
        named.append(Named(worst, tuple(of_node[worst]), len(of_node[worst])))
        left = [pair for pair in left if worst not in pair.sample.pair]
    return Finding(tuple(named), tuple(pair for pair in left if pair.is_bad))


def _worst(
    left: list[PairResult], of_node: dict[str, list[PairResult]], policy: CheckPolicy
) -> str | None:
    """The node with the greatest share of bad pairs, if it is bad."""
    bad: dict[str, list[PairResult]] = {}
    known: dict[str, int] = {}
    for pair in left:
        for node in pair.sample.pair:
            known[node] = known.get(node, 0) + 1
            if pair.is_bad:
                bad.setdefault(node, []).append(pair)
    ranked = sorted(bad, key=lambda node: (-len(bad[node]) / known[node], -len(bad[node]), node))
    for node in ranked:
        if 100 * len(bad[node]) < policy.number("node_percent") * known[node]:
            return None
        # Partners that do well without it: else the fault may be theirs.
        witnesses = {
            partner
            for pair in bad[node]
            for partner in [other(pair.sample.pair, node)]
            if any(not of.is_bad for of in of_node[partner] if node not in of.sample.pair)
        }
        if len(witnesses) >= policy.number("min_pairs"):
            return node
    return None
