"""Which node, or which link, is bad: from what every pair of nodes reached."""

from __future__ import annotations

import itertools

import pytest
from health_node import policy_of
from hypothesis import given
from hypothesis import strategies as st

from hpresume.health.deep.matrix import PairStatus, Sample, again, confirmed, find, judge
from hpresume.health.deep.tournament import Pair, rounds

FOUR = ("n1", "n2", "n3", "n4")
EIGHT = tuple(f"n{i}" for i in range(1, 9))


def policy(**limits: float) -> object:
    return policy_of("pair-network", **limits)


def pairs_of(nodes: tuple[str, ...]) -> list[Pair]:
    return list(itertools.combinations(nodes, 2))


def samples(
    nodes: tuple[str, ...],
    bad: set[str] = frozenset(),
    links: set[Pair] = frozenset(),
    how: str = "error",
) -> list[Sample]:
    """All pairs, of which those with a bad node and the bad links are bad."""
    found = []
    for pair in pairs_of(nodes):
        is_bad = bool(bad & set(pair)) or pair in links
        if is_bad and how == "error":
            found.append(Sample(pair, "tcp", error="no route"))
        elif is_bad and how == "slow":
            found.append(Sample(pair, "tcp", 3.0, 0.1))
        elif is_bad and how == "late":
            found.append(Sample(pair, "tcp", 100.0, 50.0))
        else:
            found.append(Sample(pair, "tcp", 100.0, 0.1))
    return found


def named(all_samples: list[Sample], **limits: float) -> tuple[list[str], list[Pair], bool]:
    """Bad nodes, bad links, and whether it says that it cannot tell."""
    of = policy(**limits)
    finding = find(judge(all_samples, of), of)
    links = [link.sample.pair for link in finding.links]
    return [each.node for each in finding.nodes], links, bool(finding.doubt)


@pytest.mark.parametrize("how", ["error", "slow", "late"])
@pytest.mark.parametrize(
    ("nodes", "bad", "links", "expected"),
    [
        (FOUR, set(), set(), ([], [], False)),
        (FOUR, {"n3"}, set(), (["n3"], [], False)),
        (FOUR, {"n1", "n4"}, set(), (["n1", "n4"], [], False)),
        (EIGHT, {"n2", "n5", "n8"}, set(), (["n2", "n5", "n8"], [], False)),
        (FOUR, set(), {("n1", "n2")}, ([], [("n1", "n2")], False)),
        (EIGHT, {"n3"}, {("n1", "n2")}, (["n3"], [("n1", "n2")], False)),
        (("n1", "n2", "n3"), {"n2"}, set(), (["n2"], [], False)),
    ],
    ids=["good", "one", "two of four", "three of eight", "a link", "node and link", "three nodes"],
)
def test_who_is_named(
    nodes: tuple[str, ...],
    bad: set[str],
    links: set[Pair],
    expected: tuple[list[str], list[Pair], bool],
    how: str,
) -> None:
    assert named(samples(nodes, bad, links, how)) == expected


def test_nobody_is_named_where_no_pair_is_good() -> None:
    assert named(samples(FOUR, set(FOUR))) == ([], [], True)
    # Three of four: who of them is good has nobody to show it with.
    assert named(samples(FOUR, {"n1", "n2", "n3"})) == ([], [], True)


def test_two_nodes_do_not_tell_which_is_bad() -> None:
    assert named(samples(("n1", "n2"), {"n1"})) == ([], [("n1", "n2")], True)


def test_what_is_not_known_counts_for_nobody() -> None:
    found = samples(FOUR, {"n3"})
    unknown = [Sample(s.pair, "tcp", doubt="no Python") if "n4" in s.pair else s for s in found]
    assert named(unknown) == (["n3"], [], False)
    assert named([Sample(s.pair, "tcp", doubt="no Python") for s in found]) == ([], [], False)
    assert named([]) == ([], [], False)


def test_a_node_with_most_of_its_pairs_bad() -> None:
    links = {("n1", "n2"), ("n1", "n3"), ("n1", "n4")}
    found = samples(("n1", "n2", "n3", "n4", "n5"), links=links)
    assert named(found) == ([], sorted(links), False)
    assert named(found, node_percent=70) == (["n1"], [], False)


def test_absolute_limits() -> None:
    assert named(samples(FOUR), min_gbps=200) == ([], [], True)
    nccl = [Sample(s.pair, "nccl", s.gbps) for s in samples(FOUR, {"n2"}, how="slow")]
    assert named(nccl, min_nccl_gbps=2, min_percent=0) == ([], [], False)
    assert named(nccl, min_nccl_gbps=5, min_percent=0) == (["n2"], [], False)
    assert named(nccl, min_gbps=5, min_percent=0) == ([], [], False)


def test_each_tool_is_compared_with_itself() -> None:
    found = samples(FOUR)
    mixed = [Sample(s.pair, "nccl", 1600.0) if "n1" in s.pair else s for s in found]
    assert named(mixed) == ([], [], False)


def test_the_evidence_names_partners_and_limit() -> None:
    of = policy()
    pairs = judge(samples(FOUR, {"n3"}, how="slow"), of)
    finding = find(pairs, of)
    assert finding.nodes[0].evidence == (
        "3 of 3 pairs bad: with n1 3 Gbit/s, the others 100; with n2 3 Gbit/s, the others 100; "
        "with n4 3 Gbit/s, the others 100"
    )
    assert {p.limit.shown for p in pairs if p.limit} == {
        "50 % of what the nodes reach in their best pairs"
    }


@given(
    st.integers(4, 12).flatmap(
        lambda count: st.tuples(
            st.just(tuple(f"n{i}" for i in range(count))),
            st.sets(st.integers(0, count - 1), max_size=(count - 1) // 2),
        )
    ),
    st.sampled_from(["error", "slow", "late"]),
)
def test_bad_nodes_are_named_and_no_others(
    case: tuple[tuple[str, ...], set[int]], how: str
) -> None:
    nodes, numbers = case
    bad = {nodes[i] for i in numbers}
    found, links, doubt = named(samples(nodes, bad, how=how))
    assert (set(found), links, doubt) == (bad, [], False)


@given(st.lists(st.sampled_from(["good", "slow", "failed", "unknown"]), min_size=6, max_size=6))
def test_whatever_pairs_say(statuses: list[str]) -> None:
    made = {
        "good": lambda pair: Sample(pair, "tcp", 100.0, 0.1),
        "slow": lambda pair: Sample(pair, "tcp", 1.0, 0.1),
        "failed": lambda pair: Sample(pair, "tcp", error="x"),
        "unknown": lambda pair: Sample(pair, "tcp", doubt="x"),
    }
    of = policy()
    found = [made[s](pair) for s, pair in zip(statuses, pairs_of(FOUR), strict=True)]
    pairs = judge(found, of)
    finding = find(pairs, of)
    names = {each.node for each in finding.nodes}
    good = {node for p in pairs if p.status is PairStatus.GOOD for node in p.sample.pair}
    assert not names & good
    assert all(not names & set(link.sample.pair) for link in finding.links)
    bad = [p for p in pairs if p.is_bad]
    assert bool(bad) == bool(names or finding.links or finding.doubt)


@given(st.integers(0, 33))
def test_everybody_meets_everybody_once(count: int) -> None:
    nodes = [f"n{i}" for i in range(count)]
    schedule = rounds(nodes)
    met = [frozenset(pair) for pairs in schedule for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(map(list, itertools.combinations(sorted(nodes), 2)))
    for pairs in schedule:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy)) == count - count % 2
    assert len(schedule) == (0 if count < 2 else count - 1 + count % 2)


@given(st.integers(2, 40), st.integers(1, 60))
def test_some_rounds_give_everybody_partners(count: int, at_most: int) -> None:
    schedule = rounds([f"n{i}" for i in range(count)], at_most)
    assert schedule == rounds([f"n{i}" for i in range(count)])[:at_most]
    met = {f"n{i}": 0 for i in range(count)}
    for pairs in schedule:
        for node in itertools.chain(*pairs):
            met[node] += 1
    assert min(met.values()) >= min(at_most, count - 1) - count % 2


def test_slow_pairs_are_measured_again() -> None:
    of = policy()
    schedule = rounds(FOUR)
    slow = samples(FOUR, {"n3"}, how="slow")
    repeated = again(schedule, judge(slow, of))
    assert [len(pairs) for pairs in repeated] == [1, 1, 1]
    assert {frozenset(pair) for pairs in repeated for pair in pairs} == {
        frozenset(("n3", name)) for name in ("n1", "n2", "n4")
    }
    # Neither good pairs nor those that cannot talk.
    assert again(schedule, judge(samples(FOUR), of)) == ()
    assert again(schedule, judge(samples(FOUR, {"n3"}), of)) == ()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Sample(("a", "b"), "tcp", 1.0, 0.1), Sample(("a", "b"), "tcp", 9.0, 0.2), (9.0, 0.1, "")),
        (Sample(("a", "b"), "tcp", 9.0, 0.2), Sample(("a", "b"), "tcp", 1.0, 0.1), (9.0, 0.1, "")),
        (Sample(("a", "b"), "nccl", 1.0), Sample(("a", "b"), "nccl", 9.0), (9.0, None, "")),
        (Sample(("a", "b"), "tcp", 1.0), Sample(("a", "b"), "tcp", error="x"), (None, None, "x")),
        (Sample(("a", "b"), "tcp", 1.0), Sample(("a", "b"), "tcp", doubt="x"), (1.0, None, "")),
        (Sample(("a", "b"), "tcp", 1.0), Sample(("a", "c"), "tcp", 9.0), (1.0, None, "")),
    ],
    ids=["better", "worse", "nccl", "failed", "not known", "another"],
)
def test_the_better_measurement_counts(
    first: Sample, second: Sample, expected: tuple[float | None, float | None, str]
) -> None:
    (found,) = confirmed([first], [second])
    assert (found.gbps, found.rtt_ms, found.error) == expected
