"""Service, engine and database together, on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import postgres
import pytest
from provision_service import Examined, Served, allow, complete, counts, served, until
from provision_world import CONTROLLER, LOGIN, spec, workers
from simulated_provider import SimulatedProvider
from sqlalchemy import text

from hpresume.errors import (
    RequestRefusedError,
    ResourceInUseError,
    ResourceNotFoundError,
    SlurmTransientError,
    StoreError,
)
from hpresume.provision import repository, slurm_view
from hpresume.provision.book import Book
from hpresume.provision.observed import SlurmNode
from hpresume.provision.ports import SlurmEntries
from hpresume.provision.service import (
    Addition,
    AdditionVerdict,
    ClientToken,
    ClusterQuery,
    ClusterUpdate,
    EventQuery,
    NodeAction,
    NodeQuery,
    OperationQuery,
)
from hpresume.store import Store, open_store
from hpresume.store.holds import Holds
from hpresume.store.migrations import SECOND


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/controller.db"
    else:
        url = request.getfixturevalue("postgres_url")
    store = open_store(url)
    yield store
    if request.param == "postgresql":
        with store.engine.begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
    store.close()


@pytest.fixture
def provider() -> SimulatedProvider:
    return SimulatedProvider()


@pytest.fixture
def running(store: Store, provider: SimulatedProvider) -> Iterator[Served]:
    """A cluster of a controller, a login node and three workers."""
    with served(store, provider) as running:
        running.service.create_cluster(spec(CONTROLLER, LOGIN, workers(3)))
        until(lambda: complete(running))
        yield running


def add(running: Served, count: int, token: str, digest: str = "d") -> Any:
    return running.service.add_nodes(
        "c1",
        (Addition("workers", count, {}),),
        ClientToken(token, digest),
        lambda record: AdditionVerdict((Addition("workers", count, {}),)),
    )


def test_what_is_asked_for_comes_up_and_is_found_after_a_restart(
    store: Store, provider: SimulatedProvider, running: Served
) -> None:
    arn = running.service.cluster("c1").arn
    assert arn.startswith("arn:aws:sagemaker:us-east-1:000000000000:cluster/")
    until(lambda: running.service.cluster(arn).status == "InService")
    before = running.book.find(arn)
    again = Book(store).find("c1")
    assert again == before
    assert len(provider.alive) == 5


def test_a_name_is_taken_until_its_cluster_is_gone(
    provider: SimulatedProvider, running: Served
) -> None:
    with pytest.raises(ResourceInUseError, match="c1"):
        running.service.create_cluster(spec(CONTROLLER))
    running.service.delete_cluster("c1", allow)
    until(lambda: not running.book.states)
    with pytest.raises(ResourceNotFoundError):
        running.service.cluster("c1")
    assert provider.alive == []
    running.service.create_cluster(spec(CONTROLLER))
    until(lambda: complete(running))


def test_a_write_of_which_nobody_knows_is_looked_up(
    store: Store, running: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.write

    @contextmanager
    def cut_off(fence: Any = None) -> Iterator[Any]:
        with write(fence) as session:
            yield session
        monkeypatch.undo()
        raise StoreError("the database: the connection ended after the commit")

    with running.book.locked():  # the engine writes as well
        monkeypatch.setattr(store, "write", cut_off)
        with pytest.raises(StoreError):
            running.service.create_cluster(replace(spec(CONTROLLER), name="c2"))
    with pytest.raises(ResourceInUseError, match="c2 exists already"):
        running.service.create_cluster(replace(spec(CONTROLLER), name="c2"))
    until(lambda: complete(running, "c2"))
    assert complete(running)


def test_a_guard_that_refuses_leaves_everything_as_it_was(store: Store, running: Served) -> None:
    def refuse(_record: Any) -> None:
        raise RequestRefusedError("no")

    before = running.book.find("c1")
    with pytest.raises(RequestRefusedError, match="no"):
        running.service.update_cluster("c1", ClusterUpdate({}, (workers(9),)), refuse)
    with pytest.raises(RequestRefusedError, match="MinInstanceCount"):
        running.service.update_cluster(
            "c1", ClusterUpdate({}, (workers(5), workers(1, minimum=2))), allow
        )
    assert running.book.find("c1").groups == before.groups
    assert Book(store).find("c1").groups == before.groups


def test_a_client_token_adds_once(running: Served) -> None:
    first = add(running, 2, "t1")
    again = add(running, 2, "t1")
    assert [n.logical_id for n in first.nodes] == [n.logical_id for n in again.nodes]
    with pytest.raises(RequestRefusedError, match="ClientToken"):
        add(running, 2, "t1", digest="another")
    until(lambda: counts(running)["workers"] == (5, 5))
    assert [n.status for n in add(running, 2, "t1").nodes] == ["Running", "Running"]
    assert counts(running)["workers"] == (5, 5)


def test_chosen_nodes_are_replaced_by_id(running: Served) -> None:
    query = NodeQuery(limit=100, group_contains="workers", sort_by="NAME")
    first, second, _ = running.service.nodes("c1", query).items
    running.service.act_on_nodes(
        "c1",
        NodeAction.REPLACE,
        instance_ids=(first.instance_id, second.instance_id),
        logical_ids=(second.logical_id, "nobody"),
        judge=lambda record, nodes: tuple(nodes),
    )
    until(
        lambda: (
            running.service.node("c1", logical_id=first.logical_id).instance_id
            not in ("", first.instance_id)
            and complete(running)
        )
    )
    with pytest.raises(ResourceNotFoundError):
        running.service.node("c1", instance_id=first.instance_id)
    assert running.service.node("c1", logical_id=second.logical_id).name == second.name


def test_pages_of_everything_fit_together(running: Served) -> None:
    service = running.service
    whole = service.events("c1", EventQuery(limit=1000))
    assert whole.next is None
    assert len(whole.items) > 20
    pages: list[Any] = []
    after = None
    while True:
        page = service.events("c1", EventQuery(limit=7, after=after))
        pages += page.items
        after = page.next
        if after is None:
            break
    assert pages == list(whole.items)
    assert service.event("c1", pages[3].event_id) == pages[3]
    instance = service.events("c1", EventQuery(limit=5, resource_type="Instance"))
    assert {event.resource_type for event in instance.items} == {"Instance"}
    one = instance.items[0].instance_id
    assert {
        e.instance_id for e in service.events("c1", EventQuery(limit=99, instance_id=one)).items
    } == {one}
    with pytest.raises(ResourceNotFoundError):
        service.event("c1", str(uuid.uuid4()))
    nodes = service.nodes("c1", NodeQuery(limit=2))
    rest = service.nodes("c1", NodeQuery(limit=9, after=nodes.next))
    assert len({n.logical_id for n in nodes.items + rest.items}) == 5
    assert [c.name for c in service.clusters(ClusterQuery(limit=9)).items] == ["c1"]


def test_operations_are_kept_when_they_have_ended(running: Served) -> None:
    running.service.update_cluster("c1", ClusterUpdate({}, (workers(4),)), allow)
    until(lambda: complete(running))
    newest, first = running.service.operations("c1", OperationQuery(limit=9)).items
    assert [newest.status, first.status] == ["Done", "Done"]
    assert newest.details["ScalingDetails"] == [
        {
            "InstanceGroupName": "workers",
            "Status": "Done",
            "Original": {"CurrentCount": 3, "TargetCount": 3, "MinCount": 0},
            "Desired": {"TargetCount": 4, "MinCount": 0},
        }
    ]
    assert running.service.operation("c1", newest.operation_id) == newest
    with pytest.raises(ResourceNotFoundError):
        running.service.operation("c1", str(uuid.uuid4()))


def test_tags_are_changed_in_one_go(store: Store, running: Served) -> None:
    arn = running.service.cluster("c1").arn
    assert running.service.change_tags(arn, lambda tags: {**tags, "team": "a"}) == {"team": "a"}
    assert Book(store).find("c1").cluster.tags == {"team": "a"}


def test_what_a_call_brought_survives_a_database_that_does_not_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = SimulatedProvider()
    failures = iter(range(40))
    save = repository.save

    def sometimes(*arguments: Any) -> None:
        if next(failures, None) is not None and len(provider.alive) > 1:
            raise StoreError("the database does not answer")
        save(*arguments)

    with served(store, provider) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(5)))
        monkeypatch.setattr(repository, "save", sometimes)
        until(lambda: complete(running))
    assert len(provider.alive) == 6
    assert len({request.token for request in provider.launches}) == 6


def test_old_events_are_forgotten_when_the_engine_starts(store: Store) -> None:
    provider = SimulatedProvider()
    with served(store, provider) as running:
        running.service.create_cluster(spec(CONTROLLER))
        until(lambda: complete(running))
        old = running.service.events("c1", EventQuery(limit=99)).items
    with store.write() as session:
        session.execute(text("UPDATE provision_events SET time = time - 91 * 86400"))
    with served(store, provider) as running:
        running.service.update_cluster("c1", ClusterUpdate({}), allow)
        until(lambda: len(running.service.events("c1", EventQuery(limit=99)).items) == 1)
    assert len(old) > 3


class LostSlurm:
    """A Slurm that does what it is asked until it is lost."""

    def __init__(self) -> None:
        self.is_lost = False

    def configure(self, entries: SlurmEntries) -> None:
        if self.is_lost:
            raise SlurmTransientError("slurmctld does not answer")
        self.entries = entries

    def look(self) -> dict[str, SlurmNode]:
        return {entry.name: SlurmNode(is_ready=True) for entry in self.entries.nodes}

    def drain(self, node: str, reason: str) -> None:
        """Nothing runs here."""

    def down(self, node: str, reason: str) -> None:
        """Nothing runs here."""


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_cluster_goes_when_its_slurm_is_cleared_or_lost(
    tmp_path: Path, provider: SimulatedProvider, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    monkeypatch.setattr(slurm_view, "CLEAR_S", 0.5)
    slurm = LostSlurm()
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    with served(store, provider, slurm=lambda _: slurm) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))
        until(lambda: complete(running))
        slurm.is_lost = is_lost
        running.service.delete_cluster("c1", allow)
        if is_lost:
            until(lambda: not running.book.find("c1").nodes)
            assert running.service.cluster("c1").status == "Deleting"
        until(lambda: not running.book.states)
    assert provider.alive == []
    assert len(slurm.entries.nodes) == (2 if is_lost else 0)
    store.close()


def test_nothing_is_done_to_a_node_that_recovery_has(
    store: Store, provider: SimulatedProvider
) -> None:
    holds = Holds()
    with served(store, provider, holds=holds) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))
        until(lambda: complete(running))
        until(lambda: holds.of("provisioning") == frozenset())
        assert holds.take("recovery", "workers-1")
        running.service.update_cluster("c1", ClusterUpdate({}, (workers(0),)), allow)
        until(lambda: len(provider.alive) == 2)
        assert {m.node for m in provider.alive} == {"controller-1", "workers-1"}
        assert holds.of("recovery") == {"workers-1"}
        holds.release("recovery", "workers-1")
        until(lambda: complete(running))
    assert len(provider.alive) == 1


def test_recovery_cannot_take_a_node_in_motion(store: Store) -> None:
    holds = Holds()
    provider = SimulatedProvider(boot_s=1e9)
    with served(store, provider, holds=holds) as running:
        running.service.create_cluster(spec(CONTROLLER))
        until(lambda: provider.alive)
        assert not holds.take("recovery", "controller-1")


def test_a_database_of_the_first_layout_is_brought_up_to_date(store: Store) -> None:
    with served(store, SimulatedProvider()) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))
        until(lambda: complete(running))
        before = running.book.find("c1")
    with store.engine.begin() as connection:
        for table, columns in SECOND.items():
            for column in columns:
                name = column.split()[0]
                connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {name}"))
        connection.execute(text("UPDATE schema_version SET version = 1"))
    again = open_store(store.engine.url.render_as_string(hide_password=False))
    assert Book(again).find("c1") == before
    with served(again, SimulatedProvider()) as running:
        running.service.update_software("c1", {"ImageId": "default"}, allow)
    again.close()


def test_a_health_check_goes_on_after_a_restart(store: Store) -> None:
    examined, provider = Examined(), SimulatedProvider()
    examined.is_closed = True
    asked = {"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"]}
    query = OperationQuery(limit=9, type="DeepHealthCheck")
    with served(store, provider, deep_checks=examined) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))
        until(lambda: complete(running))
        running.service.start_health_check("c1", (asked,), allow)
        until(lambda: any(op.failures for op in running.book.find("c1").operations.values()))
        (record,) = running.service.operations("c1", query).items
        assert (record.status, record.details) == (
            "InProgress", {"DeepHealthCheckDetails": [asked]},
        )  # fmt: skip
        before = running.book.find("c1")
        assert Book(store).find("c1") == before
    examined.is_closed = False
    with served(store, provider, deep_checks=examined) as running:
        until(lambda: not running.service.cluster("c1").health_check_active)
        nodes = running.book.find("c1").nodes.values()
        assert not any(node.checking for node in nodes)
        (record,) = running.service.operations("c1", query).items
        assert record.status == "Done"
        assert running.service.operations("c1", OperationQuery(limit=9, type="Scaling")).items
    assert [run.nodes for run in examined.runs] == [("workers-1", "workers-2")]
