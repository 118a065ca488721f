"""The API at the largest size of its model: boto3, HTTP, signature and engine together."""

from __future__ import annotations

import time
from pathlib import Path

import measure
import pytest
from api_requests import group, request, serve
from provision_service import served
from simulated_provider import SimulatedProvider

from hpresume.provision.pace import Pace
from hpresume.provision.policy import Policy
from hpresume.store import open_store

pytestmark = pytest.mark.bench

#: ClusterInstanceCount's maximum in botocore's model.
NODES = 6758

NAME = "largest"


def test_a_cluster_of_the_largest_size_is_described_and_listed(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    provider = SimulatedProvider(boot_s=0.5, latency_s=0.02, failing=0.1)
    pace = Pace(look_s=1.0, step_s=0.1, idle_s=0.5)
    policy = Policy(retry_s=0.2, retry_max_s=2.0)
    describes: list[float] = []
    with (
        served(store, provider, policy=policy, pace=pace, width=64) as running,
        serve(tmp_path, running.service) as endpoint,
    ):
        client = endpoint.client(attempts=3)
        groups = [group("c", 1, "Controller"), group("w", NODES - 1, "Compute")]
        client.create_cluster(**request(ClusterName=NAME, InstanceGroups=groups))
        begun = time.monotonic()
        up = 0
        while up < NODES:
            assert time.monotonic() - begun < 200, up
            at = time.perf_counter()
            found = client.describe_cluster(ClusterName=NAME)
            describes.append((time.perf_counter() - at) * 1000)
            up = sum(g["CurrentCount"] for g in found["InstanceGroups"])
            time.sleep(0.1)
        at = time.perf_counter()
        pages = list(
            client.get_paginator("list_cluster_nodes").paginate(
                ClusterName=NAME, PaginationConfig={"PageSize": 100}
            )
        )
        listed = time.perf_counter() - at
    store.close()
    nodes = {n["InstanceId"] for page in pages for n in page["ClusterNodeSummaries"]}
    assert len(nodes) == NODES
    measure.hold(
        measure.report("DescribeCluster with boto3 meanwhile", describes, "ms", 50.0),
        measure.report(f"all {NODES} nodes listed with boto3, {len(pages)} pages", [listed], "s"),
    )
