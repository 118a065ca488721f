"""kill -9 of the process that is recovery, provisioning and API, at any instant of all it does."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionError, HTTPClientError
from cluster import E2eCluster
from combined import EXAMPLES, LEADS, NAME, WORKERS, Site, fake_s3
from provision_service import until
from sqlalchemy import select

from hpresume.providers.devcluster import DevClusterProvider
from hpresume.provision.arn import instance_id
from hpresume.provision.tables import BillRow, EventRow

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 2, "gpus_per_node": 0, "slurmd_timeout": 6}

#: What a kill may wait for, of provisioning or of recovery; "" kills while the process starts.
PHASES = ("", "launching", "booting", "configuring", "lifecycle", "joining", "terminating")

#: The longest wait for that, and the longest time in it before the kill (s).
LONGEST_S = 1.5
WITHIN_S = 0.4

REQUEST = json.loads((EXAMPLES / "create_cluster.json").read_text())
NODES = ["controller-group-1", "login-group-1", *WORKERS]


class Client:
    """Says one thing until it is answered, whatever is killed meanwhile."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._pool = ThreadPoolExecutor(1)

    def begin(self, operation: str, **request: Any) -> Future[Any]:
        """The answer; once one was lost, an error is one too: it may have been done already."""
        return self._pool.submit(self._say, operation, request)

    def _say(self, operation: str, request: dict[str, Any]) -> Any:
        was_lost = False

        def answer() -> Any:
            nonlocal was_lost
            try:
                return getattr(self._site.client, operation)(**request)
            except (ConnectionError, HTTPClientError):
                was_lost = True  # killed, or not up yet
                return None
            except ClientError as error:
                if error.response["Error"]["Code"] == "ThrottlingException":
                    return None
                if not was_lost:
                    raise
                return error.response

        return until(answer, 60)


class Census:
    """Counts machines in the provider's own list all the time.

    A dev cluster never has two machines behind a name: a second launch is refused, which is an
    event of the node.
    """

    def __init__(self, cluster: E2eCluster) -> None:
        self._provider = DevClusterProvider(cluster)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.looks = 0
        #: All machines that ever were, by id, and what they were for.
        self.machines: dict[str, str] = {}

    def __enter__(self) -> Census:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.look()

    def look(self) -> None:
        self.machines |= {m.machine_id: m.node for m in self._provider.list() if m.token}
        self.looks += 1

    def made(self) -> dict[str, int]:
        """How many machines were ever made for each node."""
        return dict(Counter(self.machines.values()))


class Killed:
    """The site, whose process is killed and started again."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.dice = random.Random(seed)
        self.client = Client(site)
        self.kills = 0

    def kill(self, times: int) -> None:
        """Start the process and kill it, again and again."""
        for _ in range(times):
            self._live_until(self.dice.choice(PHASES))
            self.kills += 1

    def _live_until(self, phase: str) -> None:
        begun = self.site.log().count(LEADS)
        process = self.site.launch()
        if phase:
            self._reach(lambda: self.site.log().count(LEADS) > begun)
            self._reach(lambda: phase in self.site.phases())
        time.sleep(self.dice.uniform(0.0, WITHIN_S))  # the instant is what is tried
        assert process.poll() is None, self.site.log()[-2000:]
        process.kill()
        process.wait()

    @staticmethod
    def _reach(condition: Callable[[], bool]) -> None:
        """Wait until it is so, or until it is clear that it will not be."""
        deadline = time.monotonic() + LONGEST_S
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.005)

    def wait_for(self, answer: Future[Any]) -> None:
        """Let the process live until it has heard what is asked for, and no longer."""
        process = self.site.launch()
        try:
            answer.result(60)
        finally:
            process.kill()
            process.wait()
        self.kills += 1

    def settle(self, answer: Future[Any], condition: Callable[[], bool], what: str) -> None:
        """Run until what was asked for is answered and done, and kill it then."""
        process = self.site.launch()
        try:
            answer.result(60)
            self.site.wait(condition, f"not {what}", 60)
            self.site.wait(self.is_at_rest, f"{what}, but not at rest", 20)
        finally:
            process.kill()
            process.wait()

    def is_at_rest(self) -> bool:
        """Every node of the database is up on the machine that the provider has, and no other."""
        rows = self.site.nodes().values()
        machines = DevClusterProvider(self.site.cluster).list()
        there = {machine.machine_id: machine.node for machine in machines if machine.token}
        return all(row["phase"] == "running" for row in rows) and there == {
            row["machine_id"]: row["name"] for row in rows
        }


def is_gone(site: Site) -> bool:
    try:
        site.client.describe_cluster(ClusterName=NAME)
    except ConnectionError:
        return False  # not up yet
    except ClientError as error:
        return bool(error.response["Error"]["Code"] == "ResourceNotFound")
    return False


@pytest.fixture
def killed(module_cluster: E2eCluster, tmp_path: Any) -> Iterator[Killed]:
    seed = int(os.environ.get("HPRESUME_TEST_SEED") or random.randrange(10**6))
    print(f"HPRESUME_TEST_SEED={seed}")
    with fake_s3() as s3:
        site = Site(module_cluster, tmp_path, s3)
        site.store()  # its tables
        yield Killed(site, seed)
        site.close()


def test_it_converges_whenever_it_is_killed(killed: Killed, module_cluster: E2eCluster) -> None:
    site, cluster = killed.site, module_cluster
    with Census(cluster) as census:
        # a cluster that is coming up
        answer = killed.client.begin("create_cluster", **REQUEST)
        killed.kill(4)
        killed.settle(
            answer, lambda: len(site.nodes()) == 5 and site.partition("idle") == WORKERS, "up"
        )
        assert census.made() == dict.fromkeys(NODES, 1)
        first = site.nodes()

        # one node is replaced on request, another one crashes and is replaced by recovery
        asked, crashed, spared = WORKERS
        instance = instance_id(first[asked]["machine_id"])
        answer = killed.client.begin(
            "batch_replace_cluster_nodes", ClusterName=NAME, NodeIds=[instance]
        )
        cluster.crash(crashed)
        site.mark_down(crashed)
        killed.kill(5)
        killed.settle(
            answer,
            lambda: (
                site.partition("idle") == WORKERS
                and len(site.events("node-replaced", crashed)) == 1
                and site.nodes()[asked]["machine_id"] != first[asked]["machine_id"]
            ),
            "replaced",
        )
        second = site.nodes()
        assert {name: row["logical_id"] for name, row in second.items()} == {
            name: row["logical_id"] for name, row in first.items()
        }
        assert census.made() == {node: 2 if node in (asked, crashed) else 1 for node in NODES}
        assert second[spared]["machine_id"] == first[spared]["machine_id"]
        for node in (*WORKERS, "login-group-1"):
            # once for each machine, although nobody waited for its end
            assert cluster.exec(["cat", "/tmp/ran"], node).stdout == f"hello from {node}\n"

        # fewer, and more again, before the first has come to its end
        workers = REQUEST["InstanceGroups"][2]
        made = len(census.machines)
        for count in (1, 3):
            group = {**workers, "InstanceCount": count}
            answer = killed.client.begin("update_cluster", ClusterName=NAME, InstanceGroups=[group])
            killed.kill(2)
            killed.wait_for(answer)
        killed.settle(answer, lambda: len(site.partition("idle")) == 3, "scaled")
        left = {row["logical_id"] for row in second.values()} - {
            row["logical_id"] for row in site.nodes().values()
        }
        assert len(census.machines) == made + len(left)

        # and all of it goes
        answer = killed.client.begin("delete_cluster", ClusterName=NAME)
        killed.kill(2)
        killed.settle(answer, lambda: is_gone(site), "deleted")
    assert census.looks > 100
    assert [machine.node for machine in DevClusterProvider(cluster).list() if machine.token] == []
    with site.store().read() as session:
        bills = session.scalars(select(BillRow)).all()
        errors = session.scalars(select(EventRow).where(EventRow.level == "Error")).all()
    assert [(event.description, event.details) for event in errors] == []
    assert sorted(bill.machine_id for bill in bills) == sorted(census.machines)
    assert all(bill.ended_at is not None for bill in bills)
    cluster.wait_idle(("n1", "n2"))
    assert set(cluster.node_states()) == {"n1", "n2"}
