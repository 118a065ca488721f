"""One slurm.conf has the nodes of one cluster: the next one's come when the last one's are gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from provision_service import allow, complete, served, until
from provision_world import CONTROLLER, spec, workers
from simulated_provider import SimulatedProvider

from hpresume.errors import ResourceLimitError, SlurmError
from hpresume.provision.observed import SlurmNode
from hpresume.provision.ports import SlurmEntries
from hpresume.provision.service import EventQuery, NodeQuery, NodeRecord
from hpresume.store import Store, open_store


class OneSlurm:
    """A SlurmSide that has what it was told last; clearing it can be held up, and can fail."""

    def __init__(self) -> None:
        self.told: list[frozenset[str]] = []
        self.may_clear = threading.Event()
        self.may_clear.set()
        self.failures = 0
        self.refuses = ""
        #: What somebody else takes out of slurm.conf, until it is put there again, or for good.
        self.taken: frozenset[str] = frozenset()
        self.never: frozenset[str] = frozenset()
        self.looks = 0

    def configure(self, entries: SlurmEntries) -> None:
        if self.refuses:
            raise SlurmError(self.refuses)
        if not entries.names:
            self.may_clear.wait(10)
            if self.failures:
                self.failures -= 1
                raise SlurmError("no answer")
        self.told.append(entries.names)
        self.taken = frozenset()

    def look(self) -> dict[str, SlurmNode]:
        self.looks += 1
        names = self.told[-1] if self.told else frozenset()
        return {name: SlurmNode(is_ready=True) for name in names - self.taken - self.never}

    def looked(self, times: int) -> None:
        """Wait until it was looked at so many times more."""
        at = self.looks + times
        until(lambda: self.looks >= at)

    def drain(self, node: str, reason: str) -> None:
        """Nothing runs here."""

    def down(self, node: str, reason: str) -> None:
        """Nothing runs here."""

    def resume(self, node: str) -> None:
        """Nothing is held here."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    yield store
    store.close()


def test_a_second_cluster_is_refused_while_there_is_one(store: Store) -> None:
    slurm = OneSlurm()
    with served(store, SimulatedProvider(), slurm=lambda _: slurm) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))
        until(lambda: complete(running))
        with pytest.raises(ResourceLimitError, match=r"Cluster c2: .* of cluster c1: delete that"):
            running.service.create_cluster(replace(spec(CONTROLLER, workers(2)), name="c2"))
        assert slurm.told[-1] == {"workers-1", "workers-2"}
        assert len(running.book.states) == 1


def test_the_next_clusters_nodes_come_after_the_last_ones_have_left(store: Store) -> None:
    slurm = OneSlurm()
    with served(store, SimulatedProvider(), slurm=lambda _: slurm) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))
        until(lambda: complete(running))
        slurm.may_clear.clear()
        slurm.failures = 2
        running.service.delete_cluster("c1", allow)
        until(lambda: not running.book.find("c1").nodes)
        with pytest.raises(ResourceLimitError, match="of cluster c1"):
            running.service.create_cluster(replace(spec(CONTROLLER, workers(1)), name="c2"))
        assert slurm.told[-1] == {"workers-1", "workers-2"}
        slurm.may_clear.set()
        until(lambda: not running.book.states)
        assert (slurm.told[-1], slurm.failures) == (frozenset(), 0)
        running.service.create_cluster(replace(spec(CONTROLLER, workers(1)), name="c2"))
        until(lambda: complete(running, "c2"))
        assert slurm.told[-1] == {"workers-1"}


def test_a_slurm_conf_that_cannot_be_changed_is_told(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = OneSlurm()
    slurm.refuses = "slurm.conf: cannot be written: Operation not permitted"
    with served(store, SimulatedProvider(), slurm=lambda _: slurm) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))

        def node() -> NodeRecord:
            page = running.service.nodes("c1", NodeQuery(10, include_logical=True))
            return next(node for node in page.items if node.group == "workers")

        until(lambda: len(running.book.find("c1").nodes) == 3)
        until(lambda: node().message == slurm.refuses)
        assert node().status == "Pending"
        slurm.refuses = ""
        until(lambda: complete(running))
        told = [event.description for event in running.service.events("c1", EventQuery(100)).items]
        assert told.count("Slurm could not be reconfigured") == 1
        assert told.count("Slurm was reconfigured successfully") == 1
        assert "cannot be written: Operation not permitted" in caplog.text


def test_nodes_that_somebody_took_out_of_slurm_are_put_there_again_once(store: Store) -> None:
    """An administrator brings back an older slurm.conf; another controller edits the same file."""
    slurm = OneSlurm()
    with served(store, SimulatedProvider(), slurm=lambda _: slurm) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))
        until(lambda: complete(running))
        slurm.looked(3)
        before = len(slurm.told)
        slurm.taken = frozenset({"workers-1"})
        until(lambda: len(slurm.told) > before)
        assert slurm.told[-1] == {"workers-1", "workers-2"}
        slurm.looked(3)
        slurm.taken = frozenset({"workers-1"})  # and again: slurmctld is not restarted all the time
        slurm.looked(5)
        assert len(slurm.told) == before + 1
        told = [event.description for event in running.service.events("c1", EventQuery(100)).items]
        assert told.count("Nodes were missing in Slurm") == 1


def test_a_node_that_slurm_never_had_is_not_put_there_again_and_again(store: Store) -> None:
    """Slurm reads another file, say: each try would restart slurmctld for nothing."""
    slurm = OneSlurm()
    slurm.never = frozenset({"workers-2"})
    with served(store, SimulatedProvider(), slurm=lambda _: slurm) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))
        until(lambda: running.book.find("c1").nodes and slurm.told
              and slurm.told[-1] == {"workers-1", "workers-2"})  # fmt: skip
        slurm.looked(5)
        before = len(slurm.told)
        slurm.looked(5)
        assert len(slurm.told) == before
