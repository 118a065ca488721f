"""Two instances of the whole controller on one PostgreSQL database: one leads, the other waits.

They stand on one machine; each has a host name of its own, so that neither can see that the
other's process is dead, as on two hosts.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import postgres
import pytest
from botocore.exceptions import ClientError
from cluster import E2eCluster
from combined import EXAMPLES, LEADS, NAME, WORKERS, Site, fake_s3
from sqlalchemy import text

from hpresume.devcluster.store import Store
from hpresume.providers.devcluster import DevClusterProvider
from hpresume.provision.arn import instance_id
from hpresume.store import Lease

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 2, "gpus_per_node": 0, "slurmd_timeout": 6}

LEASE_S = 3.0
FOLLOWS = "another instance leads"


class Instance:
    """One of the two, on a host of its own as far as it can see."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')
        self.process = self.site.start(*program, f"host-{self.site.name}")

    def signal(self, number: int) -> float:
        """Send a signal; the time of it (Unix s)."""
        assert self.process is not None
        self.process.send_signal(number)
        return time.time()

    def answers(self) -> bool:
        """Whether it speaks for the clusters; what does not lead says so."""
        try:
            self.site.client.list_clusters()
        except ClientError as error:
            if error.response["Error"]["Code"] != "ThrottlingException":
                raise
            return False
        return True

    def led_at(self) -> list[float]:
        """When it began to lead, each time (Unix s)."""
        lines = [line for line in self.site.log().splitlines() if line.endswith(LEADS)]
        return [
            datetime.strptime(" ".join(line.split()[:2]), "%Y-%m-%d %H:%M:%S,%f").timestamp()
            for line in lines
        ]

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(timeout=20)


class Pair:
    """Both, and what they have done together."""

    def __init__(self, cluster: E2eCluster, folder: Path, s3: str, database: str) -> None:
        self.cluster = cluster
        self.provider = DevClusterProvider(cluster)
        self.first, self.second = (
            Instance(Site(cluster, folder, s3, name=name, database=database, lease_s=LEASE_S))
            for name in ("one", "two")
        )
        self.site = self.first.site

    def machines(self) -> dict[str, str]:
        """The machine of each node in the provider's list."""
        found = [machine for machine in self.provider.list() if machine.token]
        assert len({machine.node for machine in found}) == len(found)
        return {machine.node: machine.machine_id for machine in found}

    def made(self) -> dict[str, int]:
        """How many machines each node has ever had."""
        return dict(Counter(m.record.node for m in self.cluster.machines() if m.record.token))

    def is_whole(self) -> bool:
        """Every node is up on the machine that it has in the provider's list."""
        rows = self.site.nodes()
        return (
            {row["phase"] for row in rows.values()} == {"running"}
            and {name: row["machine_id"] for name, row in rows.items()} == self.machines()
            and self.site.partition("idle") == WORKERS
        )

    def lease(self) -> tuple[str, int]:
        """The host of the leader, and how often the lead has changed hands."""
        with self.site.store().read() as session:
            holder, epoch = session.execute(text("select holder, epoch from leases")).one()
        return str(holder).partition(":")[0], int(epoch)


@pytest.fixture
def pair(module_cluster: E2eCluster, tmp_path: Path) -> Iterator[Pair]:
    with fake_s3() as s3, postgres.server() as database:
        pair = Pair(module_cluster, tmp_path, s3, database)
        try:
            yield pair
        finally:
            for each in (pair.first, pair.second):
                each.close()
                each.site.close()


def begin_replacements(leader: Instance, by_api: str, by_order: str) -> None:
    """One node is replaced by provisioning, another one by recovery."""
    site = leader.site
    instance = instance_id(site.nodes()[by_api]["machine_id"])
    answer = site.client.batch_replace_cluster_nodes(ClusterName=NAME, NodeIds=[instance])
    assert answer["Successful"] == [instance]
    order = ["scontrol", "update", f"nodename={by_order}", "state=fail", "reason=Action:Replace"]
    site.wait(lambda: site.cluster.exec(order).returncode == 0, "slurmctld takes no order")
    site.wait(lambda: len(site.events("replace-begins", by_order)) == 1, "nothing begins")


def test_the_other_instance_takes_over_and_finishes(pair: Pair) -> None:
    one, two, site = pair.first, pair.second, pair.site
    one.start()
    site.wait(one.answers, "nobody leads")
    two.start()
    request = (EXAMPLES / "create_cluster.json").as_uri()
    one.site.aws("create-cluster", "--cli-input-json", request)
    site.wait(pair.is_whole, "the cluster does not come up")
    assert pair.made() == dict.fromkeys(pair.machines(), 1)
    assert not two.answers()
    assert pair.lease() == ("host-one", 1)
    asked, ordered, spared = WORKERS

    # the leader is killed in the middle of two replacements
    begin_replacements(one, by_api=asked, by_order=ordered)
    died = one.signal(signal.SIGKILL)
    assert not pair.is_whole()
    site.wait(two.answers, "the other one does not take over")
    # nobody can tell that it is dead: the other one begins when it could not act any more
    (led,) = two.led_at()
    assert led - died >= LEASE_S * (1 - Lease.OWN_SHARE)
    two.site.wait(
        lambda: pair.is_whole() and len(site.events("node-replaced", ordered)) == 1,
        "the replacements do not come to their end",
    )
    expected = {node: 2 if node in (asked, ordered) else 1 for node in pair.machines()}
    assert pair.made() == expected
    assert pair.lease() == ("host-two", 2)

    # everything that was said to the first one is answered by the second
    nodes = two.site.client.get_paginator("list_cluster_nodes").paginate(
        ClusterName=NAME, PaginationConfig={"PageSize": 2}
    )
    ids = {node["InstanceId"] for page in nodes for node in page["ClusterNodeSummaries"]}
    assert ids == {instance_id(machine) for machine in pair.machines().values()}
    pages = two.site.client.get_paginator("list_cluster_events").paginate(
        ClusterName=NAME, PaginationConfig={"PageSize": 5}
    )
    events = [event for page in pages for event in page["Events"]]
    assert len({event["EventId"] for event in events}) == len(events) > 20
    times = [event["EventTime"] for event in events]
    assert times == sorted(times, reverse=True)

    # the leader sleeps in the middle of the next, and wakes up when somebody else has led
    one.start()
    begin_replacements(two, by_api=ordered, by_order=spared)
    # Not while it holds the development cluster's own lock, for which the other one would wait.
    with Store(site.cluster.name).locked():
        two.signal(signal.SIGSTOP)
    assert not pair.is_whole()
    with ThreadPoolExecutor(1) as pool:
        asked_asleep = pool.submit(two.answers)
        site.wait(one.answers, "the first one does not take over again")
        site.wait(
            lambda: pair.is_whole() and len(site.events("node-replaced", spared)) == 1,
            "the replacements do not come to their end",
        )
        machines = pair.machines()
        two.signal(signal.SIGCONT)
        assert not asked_asleep.result(20)
    site.wait(lambda: FOLLOWS in two.site.log(), "the sleeper does not see it")
    assert one.answers()
    assert not two.answers()
    assert pair.lease() == ("host-one", 3)
    expected = {**expected, ordered: 3, spared: 2}
    assert pair.made() == expected
    assert pair.machines() == machines

    one.site.client.delete_cluster(ClusterName=NAME)
    site.wait(lambda: not one.site.client.list_clusters()["ClusterSummaries"], "it does not go")
    assert pair.machines() == {}
    assert pair.made() == expected
