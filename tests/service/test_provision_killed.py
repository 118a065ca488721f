"""The process is killed at any moment, again and again: no machine twice, none forgotten."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import provision_process
import pytest
from durable_provider import DurableProvider
from provision_service import allow, complete, served, until
from provision_world import CONTROLLER, LOGIN, spec, workers
from sqlalchemy import select

import hpresume
from hpresume.provision.book import Book
from hpresume.provision.clock import SteadyClock
from hpresume.provision.control import Provisioner
from hpresume.provision.service import ClusterUpdate, NodeAction, NodeQuery
from hpresume.provision.tables import BillRow
from hpresume.store import Store, open_store

WORKERS = 12
KILLS = 12


class Killed:
    """Requests are written by this process while the other one, which acts, does not run."""

    def __init__(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path}/controller.db"
        self.machines = tmp_path / "machines.db"
        self.store: Store = open_store(self.url)
        self.provider = DurableProvider(self.machines)
        self.kills = 0

    @property
    def service(self) -> Provisioner:
        book = Book(self.store)
        return Provisioner(book, SteadyClock(book.latest()))

    def run_and_kill(self, calls: int, is_over: Callable[[], bool] | None = None) -> None:
        """Start the process and kill it after so many more calls of the provider."""
        before = self.provider.calls()
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                (
                    str(Path(hpresume.__file__).parent.parent),
                    str(Path(provision_process.__file__).parent),
                )
            ),
        }
        process = subprocess.Popen(
            [sys.executable, provision_process.__file__, self.url, str(self.machines)], env=environ
        )
        try:
            deadline = time.monotonic() + 30
            while self.provider.calls() < before + calls and time.monotonic() < deadline:
                if is_over() if is_over else complete_in(self.store):
                    break
                time.sleep(0.002)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.kills += 1


def complete_in(store: Store) -> bool:
    states = Book(store).states
    return not states or all(
        len(state.nodes) == sum(g.target for g in state.groups.values())
        and all(node.is_up for node in state.nodes.values())
        for state in states.values()
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_it_converges_whenever_it_is_killed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    killed = Killed(tmp_path)
    killed.service.create_cluster(spec(CONTROLLER, LOGIN, workers(WORKERS)))
    for turn in range(KILLS):
        killed.run_and_kill(chance.randint(0, 6))
        if turn == KILLS // 3:
            killed.service.update_cluster("c1", ClusterUpdate({}, (workers(4),)), allow)
        if turn == 2 * KILLS // 3:
            killed.service.update_cluster("c1", ClusterUpdate({}, (workers(WORKERS),)), allow)
            nodes = killed.service.nodes("c1", NodeQuery(limit=3, group_contains="workers")).items
            killed.service.act_on_nodes(
                "c1",
                NodeAction.REPLACE,
                instance_ids=(),
                logical_ids=tuple(node.logical_id for node in nodes),
                judge=lambda record, found: tuple(found),
            )
    assert killed.kills == KILLS
    provider = killed.provider
    with served(killed.store, provider) as running:
        until(lambda: complete(running))
        until(lambda: len(provider.list()) == WORKERS + 2)
        until(lambda: running.engine.is_idle)
        state = running.book.find("c1")
        assert {m.machine_id for m in provider.list()} == {
            node.machine_id for node in state.nodes.values()
        }
        # the machine of every token that was ever used is known, and there was one a name
        assert provider.most_behind_one_name() == 1
        assert provider.calls("launch") >= WORKERS + 2
        bills(killed.store, {m.machine_id for m in provider.list()})
        running.service.delete_cluster("c1", allow)
        until(lambda: not running.book.states)
    assert provider.list() == ()
    bills(killed.store, set())


def test_a_software_update_goes_on_whenever_it_is_killed(tmp_path: Path) -> None:
    chance = random.Random(3)
    killed = Killed(tmp_path)
    killed.service.create_cluster(spec(CONTROLLER, workers(4)))
    with served(killed.store, killed.provider) as running:
        until(lambda: complete(running))
    policy = {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 2}}
    document = {"ImageId": "ami-0123456789abcdef0", "DeploymentConfig": {}}
    document["DeploymentConfig"] = {"RollingUpdatePolicy": policy}
    killed.service.update_software("c1", document, allow)
    launches = killed.provider.calls("launch")

    def is_over() -> bool:
        return killed.service.cluster("c1").status == "InService"

    while not is_over():
        killed.run_and_kill(chance.randint(1, 3), is_over)
    assert killed.kills > 2
    provider = killed.provider
    with served(killed.store, provider) as running:
        until(lambda: complete(running))
        until(lambda: len(provider.list()) == 5)
        nodes = running.book.find("c1").nodes.values()
        assert {node.image for node in nodes} == {"ami-0123456789abcdef0"}
        assert {m.machine_id for m in provider.list()} == {node.machine_id for node in nodes}
        assert provider.most_behind_one_name() == 1
        # one new machine for each node; a launch that was asked for twice made no second one
        assert provider.made() == 2 * 5
        assert provider.calls("launch") >= launches + 5
        bills(killed.store, {m.machine_id for m in provider.list()})


def bills(store: Store, alive: set[str]) -> None:
    """One interval a machine; open ones are those of the machines that are there."""
    with store.read() as session:
        rows = list(session.scalars(select(BillRow)))
    ids = [row.machine_id for row in rows]
    assert len(ids) == len(set(ids))
    assert {row.machine_id for row in rows if row.ended_at is None} == alive
    assert all(row.ended_at is None or row.ended_at >= row.began_at for row in rows)
