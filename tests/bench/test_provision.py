"""Provisioning at the largest size of the API's model, on a provider without machines."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path

import measure
import pytest
from provision_service import served
from provision_world import CONTROLLER, LOGIN, spec, workers
from simulated_provider import SimulatedProvider

from hpresume.provision.pace import Pace
from hpresume.provision.policy import Policy
from hpresume.provision.service import EventQuery, NodeQuery
from hpresume.store import open_store

pytestmark = pytest.mark.bench

#: ClusterInstanceCount's maximum in botocore's model, less a controller and a login node.
NODES = 6758

#: The pauses of production would measure the provider's shortage, not the machine's work.
POLICY = Policy(retry_s=0.2, retry_max_s=2.0)


def test_the_largest_cluster_converges(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    provider = SimulatedProvider(boot_s=0.5, latency_s=0.02, failing=0.1, lost_answers=0.02)
    describes: list[float] = []
    lists: list[float] = []
    done = threading.Event()
    cpu, begun = time.process_time(), time.monotonic()
    with served(
        store, provider, policy=POLICY, pace=Pace(look_s=1.0, step_s=0.1, idle_s=0.5), width=64
    ) as running:
        running.service.create_cluster(spec(CONTROLLER, LOGIN, workers(NODES - 2)))

        def read() -> None:
            while not done.wait(0.1):
                at = time.perf_counter()
                running.service.cluster("c1")
                describes.append((time.perf_counter() - at) * 1000)
                at = time.perf_counter()
                running.service.nodes("c1", NodeQuery(limit=100, include_logical=True))
                lists.append((time.perf_counter() - at) * 1000)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while sum(g.current_count for g in running.service.cluster("c1").groups) < NODES:
            assert time.monotonic() - begun < 200, running.service.cluster("c1")
            time.sleep(0.2)
        took, used = time.monotonic() - begun, time.process_time() - cpu
        done.set()
        reader.join(5)
        at = time.perf_counter()
        running.service.events("c1", EventQuery(limit=100))
        events = (time.perf_counter() - at) * 1000
    assert len(provider.alive) == NODES
    assert len({machine.node for machine in provider.alive}) == NODES
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    store.close()
    print(f"  {len(provider.launches)} launches asked for, {os.cpu_count()} cores")
    measure.hold(
        measure.report(f"{NODES} nodes converge", [took], "s", 60.0),
        measure.report(f"{NODES} nodes converge: processor time", [used], "s", 60.0),
        measure.report(f"{NODES} nodes: peak of the process", [peak], "MB", 500.0),
        measure.report("DescribeCluster's read meanwhile", describes, "ms", 50.0),
        measure.report("ListClusterNodes' read meanwhile", lists, "ms"),
        measure.report("ListClusterEvents' read at the end", [events], "ms"),
    )
