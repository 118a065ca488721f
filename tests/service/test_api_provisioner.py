"""The API and provisioning together: real server, real engine and database, simulated machines.

On SQLite and on a PostgreSQL server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import postgres
import pytest
from api_requests import SEED_REQUEST, Served, group, request, serve
from botocore.exceptions import ClientError
from provision_service import Examined, served, until
from provision_service import Served as Provisioned
from simulated_provider import SimulatedProvider

from hpresume.api.model import load_model
from hpresume.api.walker import violations
from hpresume.providers.model import LaunchRequest, Machine
from hpresume.provision.arn import instance_id
from hpresume.store import open_store

NAME = "my-training-cluster"
WORKERS = "worker-gpu-a"
MODEL = load_model()


class OwnIds(SimulatedProvider):
    """Its machines have ids of its own, as those of most sites; the API shows EC2's form."""

    def launch(self, request: LaunchRequest) -> Machine:
        return _ours(super().launch(request))

    def list(self) -> tuple[Machine, ...]:
        return tuple(_ours(machine) for machine in super().list())

    def describe(self, machine_id: str) -> Machine | None:
        machine = super().describe(machine_id.removeprefix("VM/"))
        return None if machine is None else _ours(machine)

    def terminate(self, machine_id: str) -> None:
        super().terminate(machine_id.removeprefix("VM/"))

    def reboot(self, machine_id: str) -> None:
        super().reboot(machine_id.removeprefix("VM/"))


def _ours(machine: Machine) -> Machine:
    return replace(machine, machine_id=f"VM/{machine.machine_id}")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('db')}/controller.db"
    else:
        with postgres.server() as url:
            yield url


@pytest.fixture(scope="module")
def provider(database: str) -> SimulatedProvider:
    return OwnIds()


@pytest.fixture(scope="module")
def examined(database: str) -> Examined:
    return Examined()


@pytest.fixture(scope="module")
def provisioned(
    database: str, provider: SimulatedProvider, examined: Examined
) -> Iterator[Provisioned]:
    store = open_store(database)
    with served(store, provider, deep_checks=examined) as running:
        yield running
    store.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, provisioned: Provisioned) -> Iterator[Any]:
    """boto3 on the whole of it; every answer is validated with the model."""

    def validate(response_dict: dict[str, Any], event_name: str, **_: Any) -> None:
        if response_dict["status_code"] == 200:
            shape = MODEL.operations[event_name.rpartition(".")[2]].output_shape
            document = json.loads(response_dict["body"])
            assert [v.text for v in violations(shape, document)] == []

    with serve(tmp_path_factory.mktemp("api"), provisioned.service) as endpoint:
        client = _client(endpoint)
        client.meta.events.register("before-parse.sagemaker.*", validate)
        yield client


def _client(endpoint: Served) -> Any:
    return endpoint.client(attempts=3)


def counts(client: Any, name: str = NAME) -> dict[str, tuple[int, int]]:
    return {
        g["InstanceGroupName"]: (g["CurrentCount"], g["TargetCount"])
        for g in client.describe_cluster(ClusterName=name)["InstanceGroups"]
    }


def test_the_life_of_the_seeds_cluster(client: Any, provider: SimulatedProvider) -> None:
    arn = client.create_cluster(**SEED_REQUEST)["ClusterArn"]
    until(lambda: set(counts(client).values()) == {(1, 1), (16, 16)})
    assert client.describe_cluster(ClusterName=arn)["ClusterStatus"] == "InService"
    pages = client.get_paginator("list_cluster_nodes").paginate(
        ClusterName=NAME, PaginationConfig={"PageSize": 7}
    )
    nodes = [node for page in pages for node in page["ClusterNodeSummaries"]]
    assert len({node["InstanceId"] for node in nodes}) == 18
    machines = {instance_id(machine.machine_id) for machine in provider.list()}
    assert {node["InstanceId"] for node in nodes} == machines
    by_id = client.describe_cluster_node(ClusterName=NAME, NodeId=nodes[0]["InstanceId"])
    assert by_id["NodeDetails"]["InstanceId"] == nodes[0]["InstanceId"]

    fewer = group(WORKERS, 3, "Compute")
    client.update_cluster(ClusterName=NAME, InstanceGroups=[fewer])
    until(lambda: counts(client)[WORKERS] == (3, 3) and _settled(client, 5))

    added = client.batch_add_cluster_nodes(
        ClusterName=NAME, NodesToAdd=[{"InstanceGroupName": WORKERS, "IncrementTargetCountBy": 2}]
    )["Successful"]
    until(lambda: counts(client)[WORKERS] == (5, 5))
    node = client.describe_cluster_node(ClusterName=NAME, NodeLogicalId=added[0]["NodeLogicalId"])
    before = node["NodeDetails"]
    assert before["InstanceStatus"]["Status"] == "Running"

    replaced = client.batch_replace_cluster_nodes(
        ClusterName=NAME, NodeLogicalIds=[before["NodeLogicalId"]]
    )
    assert replaced["SuccessfulNodeLogicalIds"] == [before["NodeLogicalId"]]

    def other_machine() -> bool:
        now = client.describe_cluster_node(ClusterName=NAME, NodeLogicalId=before["NodeLogicalId"])[
            "NodeDetails"
        ]
        return (
            now["InstanceStatus"]["Status"] == "Running"
            and now["InstanceId"] != before["InstanceId"]
        )

    until(other_machine)

    deleted = client.batch_delete_cluster_nodes(
        ClusterName=NAME, NodeLogicalIds=[added[1]["NodeLogicalId"], before["NodeLogicalId"]]
    )
    assert len(deleted["SuccessfulNodeLogicalIds"]) == 2
    until(lambda: counts(client)[WORKERS] == (3, 3) and _settled(client, 5))

    events = client.list_cluster_events(ClusterName=NAME, MaxResults=100)
    assert "NextToken" in events
    of_machine = client.list_cluster_events(ClusterName=NAME, NodeId=nodes[0]["InstanceId"])
    assert of_machine["Events"]
    one = events["Events"][0]["EventId"]
    assert client.describe_cluster_event(ClusterName=NAME, EventId=one)["EventDetails"]
    operations = client.list_cluster_operations(ClusterName=NAME)["ClusterOperationSummaries"]
    assert {o["Type"] for o in operations} == {"Scaling"}
    details = client.describe_cluster_operation(
        ClusterName=NAME, OperationId=operations[-1]["OperationId"]
    )
    assert {d["InstanceGroupName"] for d in details["ScalingDetails"]} == set(counts(client))

    client.delete_cluster(ClusterName=NAME)

    def gone() -> bool:
        try:
            client.describe_cluster(ClusterName=NAME)
        except client.exceptions.ResourceNotFound:
            return True
        return False

    until(gone)
    assert client.list_clusters()["ClusterSummaries"] == []


def _settled(client: Any, count: int) -> bool:
    nodes = client.list_cluster_nodes(ClusterName=NAME, IncludeNodeLogicalIds=True)
    states = {n["InstanceStatus"]["Status"] for n in nodes["ClusterNodeSummaries"]}
    return len(nodes["ClusterNodeSummaries"]) == count and states == {"Running"}


def test_min_count_is_awaited_and_blocks(client: Any, provider: SimulatedProvider) -> None:
    name = "short"
    used = len(provider.list())
    provider.capacity = used + 3
    groups = [group("c", 1, "Controller"), group("w", 6, "Compute", MinInstanceCount=4)]
    client.create_cluster(**request(ClusterName=name, InstanceGroups=groups))
    until(lambda: counts(client, name)["w"] == (2, 6))
    found = client.describe_cluster(ClusterName=name)
    assert found["ClusterStatus"] == "InService"
    assert {g["InstanceGroupName"]: g["Status"] for g in found["InstanceGroups"]} == {
        "c": "InService",
        "w": "Creating",
    }
    entry = {"InstanceGroupName": "w", "IncrementTargetCountBy": 1}
    failed = client.batch_add_cluster_nodes(ClusterName=name, NodesToAdd=[entry])["Failed"]
    assert [f["ErrorCode"] for f in failed] == ["InvalidInstanceGroupStatus"]
    with pytest.raises(client.exceptions.ConflictException):
        client.update_cluster_software(ClusterName=name)
    waiting = client.list_cluster_nodes(ClusterName=name, IncludeNodeLogicalIds=True)
    assert len(waiting["ClusterNodeSummaries"]) == 7
    lower = group("w", 6, "Compute", MinInstanceCount=2)
    client.update_cluster(ClusterName=name, InstanceGroups=[lower])
    until(
        lambda: (
            {g["Status"] for g in client.describe_cluster(ClusterName=name)["InstanceGroups"]}
            == {"InService"}
        )
    )
    provider.capacity = None
    until(lambda: counts(client, name)["w"] == (6, 6))


def test_the_software_of_a_cluster_is_updated(client: Any, provider: SimulatedProvider) -> None:
    name, image = "software", "ami-0123456789abcdef0"
    groups = [group("c", 1, "Controller"), group("w", 4, "Compute")]
    client.create_cluster(**request(ClusterName=name, InstanceGroups=groups))
    until(lambda: counts(client, name) == {"c": (1, 1), "w": (4, 4)})

    def described() -> dict[str, Any]:
        found = client.describe_cluster(ClusterName=name)["InstanceGroups"]
        return next(g for g in found if g["InstanceGroupName"] == "w")

    def nodes() -> dict[str, str]:
        found = client.list_cluster_nodes(ClusterName=name, IncludeNodeLogicalIds=True)
        return {n["NodeLogicalId"]: n["InstanceId"] for n in found["ClusterNodeSummaries"]}

    before = nodes()
    config = {
        "RollingUpdatePolicy": {
            "MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 50},
            "RollbackMaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 2},
        },
        "WaitIntervalInSeconds": 1,
    }
    client.update_cluster_software(
        ClusterName=name, ImageId=image, DeploymentConfig=config,
        InstanceGroups=[{"InstanceGroupName": "w"}],
    )  # fmt: skip
    assert described()["Status"] == "SystemUpdating"
    assert described()["ActiveSoftwareUpdateConfig"] == config
    with pytest.raises(client.exceptions.ConflictException, match="is SystemUpdating"):
        client.update_cluster_software(ClusterName=name)
    with pytest.raises(ClientError, match="it has to be InService"):
        client.batch_replace_cluster_nodes(ClusterName=name, NodeIds=[next(iter(before.values()))])
    # half of them are back and the pause is on: the rest has been in service all the time
    until(lambda: described().get("TargetStateCount") == 2)
    assert described()["CurrentCount"] == 4
    until(lambda: described()["SoftwareUpdateStatus"] == "Succeeded")
    assert described()["CurrentImageId"] == described()["DesiredImageId"] == image
    assert client.describe_cluster(ClusterName=name)["ClusterStatus"] == "InService"
    after = nodes()
    kept = {key for key in before if before[key] == after[key]}
    assert (set(after), len(kept)) == (set(before), 1)  # the controller's group was not named
    changed = next(key for key in after if key not in kept)
    node = client.describe_cluster_node(ClusterName=name, NodeLogicalId=changed)["NodeDetails"]
    assert node["CurrentImageId"] == image
    assert node["LastSoftwareUpdateTime"] > node["LaunchTime"]
    with pytest.raises(ClientError, match="name an ImageId"):
        client.update_cluster_software(ClusterName=name)
    provider.refused_images = {"ami-0badbadbad"}
    client.update_cluster_software(ClusterName=name, ImageId="ami-0badbadbad")
    until(lambda: described()["SoftwareUpdateStatus"] == "RollbackComplete")
    until(lambda: counts(client, name) == {"c": (1, 1), "w": (4, 4)})
    found = client.list_cluster_events(ClusterName=name, MaxResults=100)["Events"]
    told = [event["Description"] for event in found]
    assert (
        f"UpdateClusterSoftware initiated for IG w in Cluster {name} using rolling strategy."
        in told
    )
    assert sum("updated successfully" in text for text in told) == 4
    assert any("was rolled back for IG w" in text for text in told)
    client.delete_cluster(ClusterName=name)
    until(
        lambda: name not in {c["ClusterName"] for c in client.list_clusters()["ClusterSummaries"]}
    )


def test_the_health_of_nodes_is_checked(client: Any, examined: Examined) -> None:
    name = "checked"
    groups = [group("c", 1, "Controller"), group("w", 3, "Compute")]
    client.create_cluster(**request(ClusterName=name, InstanceGroups=groups))
    until(lambda: counts(client, name) == {"c": (1, 1), "w": (3, 3)})
    examined.bad, examined.is_closed = {"w-2"}, True

    def statuses() -> list[str]:
        found = client.list_cluster_nodes(ClusterName=name, InstanceGroupNameContains="w")
        return sorted(n["InstanceStatus"]["Status"] for n in found["ClusterNodeSummaries"])

    asked = [{"InstanceGroupName": "w", "DeepHealthChecks": ["InstanceConnectivity"]}]
    start = client.start_cluster_health_check
    assert start(ClusterName=name, DeepHealthCheckConfigurations=asked)["ClusterArn"]
    assert statuses() == ["DeepHealthCheckInProgress"] * 3
    with pytest.raises(ClientError, match="has an active health check"):
        start(ClusterName=name, DeepHealthCheckConfigurations=asked)
    nodes = client.list_cluster_nodes(ClusterName=name, InstanceGroupNameContains="w")
    ids = [node["InstanceId"] for node in nodes["ClusterNodeSummaries"]]
    failed = client.batch_reboot_cluster_nodes(ClusterName=name, NodeIds=ids)["Failed"]
    assert {f["ErrorCode"] for f in failed} == {"InvalidInstanceStatus"}
    examined.is_closed = False
    until(lambda: statuses() == ["Running"] * 3)
    operations = client.list_cluster_operations(ClusterName=name, Type="DeepHealthCheck")
    (operation,) = operations["ClusterOperationSummaries"]
    assert operation["Status"] == "Done"
    described = client.describe_cluster_operation(
        ClusterName=name, OperationId=operation["OperationId"]
    )
    assert described["DeepHealthCheckDetails"] == asked
    found = client.list_cluster_events(ClusterName=name, OperationId=operation["OperationId"])
    levels = sorted(e["EventLevel"] for e in found["Events"] if e["ResourceType"] == "Instance")
    assert levels == ["Error", "Info", "Info"]
    bad = next(e["EventId"] for e in found["Events"] if e["EventLevel"] == "Error")
    event = client.describe_cluster_event(ClusterName=name, EventId=bad)["EventDetails"]
    metadata = event["EventDetails"]["EventMetadata"]["Instance"]
    assert metadata["FailureMessage"] == "cpu-stress: too slow"
    client.delete_cluster(ClusterName=name)
    until(lambda: not client.list_clusters(NameContains=name)["ClusterSummaries"])


def test_what_the_service_refuses_is_a_client_error(client: Any) -> None:
    groups = [group("c", 1, "Controller")]
    client.create_cluster(**request(ClusterName="small", InstanceGroups=groups))
    until(lambda: client.describe_cluster(ClusterName="small")["ClusterStatus"] == "InService")
    alarms = {"AutoRollbackConfiguration": [{"AlarmName": "errors"}]}
    with pytest.raises(ClientError, match="alarm_command") as caught:
        client.update_cluster_software(ClusterName="small", DeploymentConfig=alarms)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    with pytest.raises(client.exceptions.ResourceInUse):
        client.create_cluster(**request(ClusterName="small", InstanceGroups=groups))


@pytest.mark.parametrize("machine", ["", "i-0123abcd", "i-0123456789abcdef0"])
def test_ids_in_ec2s_form_stay(machine: str) -> None:
    assert instance_id(machine) == machine
