"""Lost nodes that stay in the job; what is back is a real socket of the loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from hpresume.resume import kept
from hpresume.resume.kept import KeptNodes
from hpresume.resume.node_check import NodeHealth
from hpresume.slurm.models import ClusterConfig, Job, JobState, Node

CONFIG = ClusterConfig("c", (24, 11, 5), 300, 30, 6818, "", frozenset(), (), True)
JOB = Job(7, JobState.RUNNING, nodes=("n1", "n2", "n3"), num_nodes=3)
HERE = frozenset({"ALLOCATED"})


@pytest.fixture
def nodes() -> Iterator[dict[str, Node]]:
    """n2 is back; n3 cannot be reached."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        port = server.getsockname()[1]
        yield {
            "n2": Node("n2", HERE, "127.0.0.1", "n2", port),
            "n3": Node("n3", HERE, "n..1", "n3", port),
        }


class Site:
    """What is found of nodes, who was asked, and what left the job."""

    def __init__(self) -> None:
        self.faults: dict[str, tuple[str, ...]] = {}
        self.checked: list[str] = []
        self.dropped: list[str] = []
        self.refuses = False
        self.kept = KeptNodes(self.check, self.drop)

    def check(self, _job: Job, _: ClusterConfig, names: Sequence[str]) -> tuple[NodeHealth, ...]:
        self.checked += names
        return tuple(NodeHealth(n, self.faults.get(n, ())) for n in names)

    def drop(self, _job: Job, names: Sequence[str]) -> bool:
        self.dropped += names
        return not self.refuses


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(kept, "say", lambda _: None)
    made = Site()
    made.kept.keep(("n2", "n3"), 1000.0)
    return made


def test_a_node_that_is_back_is_checked_once(site: Site, nodes: dict[str, Node]) -> None:
    for _ in range(3):
        assert site.kept.away(JOB, nodes, CONFIG) == {"n3"}
    assert site.checked == ["n2"]


def test_until_it_was_looked_at_no_node_is_taken_for_back(
    site: Site, nodes: dict[str, Node]
) -> None:
    assert site.kept.away_now(nodes, CONFIG) == {"n2", "n3"}
    site.kept.away(JOB, nodes, CONFIG)
    assert site.kept.away_now(nodes, CONFIG) == {"n3"}
    assert site.kept.away_now({**nodes, "n2": nodes["n3"]}, CONFIG) == {"n2", "n3"}
    drained = replace(nodes["n2"], states=frozenset({"ALLOCATED", "DRAIN"}))
    assert site.kept.away_now({**nodes, "n2": drained}, CONFIG) == {"n2", "n3"}


def test_an_ill_node_is_checked_again_after_a_while(
    site: Site, nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.faults["n2"] = ("disk-space: full",)
    assert site.kept.away(JOB, nodes, CONFIG) == {"n2", "n3"}
    site.faults.clear()
    assert site.kept.away(JOB, nodes, CONFIG) == {"n2", "n3"}
    assert site.checked == ["n2"]
    monkeypatch.setattr(kept, "CHECK_AGAIN_S", 0.0)
    assert site.kept.away(JOB, nodes, CONFIG) == {"n3"}
    assert site.checked == ["n2", "n2"]


def test_a_node_that_goes_again_is_checked_again_when_it_returns(
    site: Site, nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "CHECK_AGAIN_S", 0.0)
    site.kept.away(JOB, nodes, CONFIG)
    assert site.kept.away(JOB, {**nodes, "n2": nodes["n3"]}, CONFIG) == {"n2", "n3"}
    assert site.kept.away(JOB, nodes, CONFIG) == {"n3"}
    assert site.checked == ["n2", "n2"]


def test_what_is_not_back_in_time_leaves_the_job(site: Site, nodes: dict[str, Node]) -> None:
    site.kept.away(JOB, nodes, CONFIG)
    site.kept.give_up(JOB, 999.0)
    assert site.dropped == []
    site.kept.give_up(JOB, 1000.0)
    assert site.dropped == ["n3"]
    assert site.kept.names == {"n2"}


def test_a_refused_drop_is_tried_again(site: Site) -> None:
    site.refuses = True
    site.kept.give_up(JOB, 1000.0)
    site.kept.give_up(JOB, 1001.0)
    assert site.dropped == ["n2", "n3", "n2", "n3"]


def test_what_has_left_the_job_or_runs_again_is_forgotten(
    site: Site, nodes: dict[str, Node]
) -> None:
    site.kept.forget(("n2",))
    assert site.kept.names == {"n3"}
    site.kept.away(replace(JOB, nodes=("n1", "n2")), nodes, CONFIG)
    assert site.kept.names == frozenset()
