"""Each operation with boto3 against a real server; every answer is validated with the model."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from api_requests import SEED_NAME as NAME
from api_requests import SEED_REQUEST, Served, group, request
from api_requests import error_code as code

from hpresume.api.model import SERVED
from hpresume.provision.service import EventRecord, OperationRecord

WORKERS = "worker-gpu-a"


# clusters


def test_create_answers_at_once_and_describe_tells_it_all(client: Any, served: Served) -> None:
    arn = client.create_cluster(**request(Tags=[{"Key": "team", "Value": "a"}]))["ClusterArn"]
    found = client.describe_cluster(ClusterName=arn)
    assert found["ClusterStatus"] == "Creating"
    assert found["ClusterName"] == NAME
    assert found["NodeProvisioningMode"] == "Continuous"
    assert found["NodeRecovery"] == "Automatic"
    assert found["Orchestrator"] == {"Slurm": {}}
    assert found["VpcConfig"] == SEED_REQUEST["VpcConfig"]
    assert isinstance(found["CreationTime"], datetime)
    groups = {g["InstanceGroupName"]: g for g in found["InstanceGroups"]}
    assert [(g["CurrentCount"], g["TargetCount"], g["MinCount"]) for g in groups.values()] == [
        (0, 1, 1),
        (0, 1, 1),
        (0, 16, 0),
    ]
    assert groups[WORKERS]["SlurmConfig"] == {
        "NodeType": "Compute",
        "PartitionNames": ["gpu-training"],
    }
    assert groups[WORKERS]["ActiveOperations"] == {"Scaling": 1}
    assert client.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "a"}]
    served.service.settle(arn)
    assert client.describe_cluster(ClusterName=NAME)["ClusterStatus"] == "InService"


def test_modelled_exceptions_are_boto3s(client: Any, cluster: str) -> None:
    with pytest.raises(client.exceptions.ResourceInUse) as caught:
        client.create_cluster(**SEED_REQUEST)
    assert caught.value.response["Message"] == caught.value.response["Error"]["Message"]
    with pytest.raises(client.exceptions.ResourceNotFound):
        client.describe_cluster(ClusterName="nope")
    with pytest.raises(client.exceptions.ResourceNotFound):
        client.describe_cluster(ClusterName=cluster[:-4] + "0000")
    client.delete_cluster(ClusterName=NAME)
    with pytest.raises(client.exceptions.ConflictException):
        client.update_cluster(ClusterName=NAME, NodeRecovery="None")


def test_the_largest_count_is_a_limit(client: Any, cluster: str, served: Served) -> None:
    served.service.change_group(NAME, WORKERS, target_count=6758)
    with pytest.raises(client.exceptions.ResourceLimitExceeded, match="at most 6758"):
        client.batch_add_cluster_nodes(
            ClusterName=NAME,
            NodesToAdd=[{"InstanceGroupName": WORKERS, "IncrementTargetCountBy": 1}],
        )


def test_a_code_that_the_operation_does_not_declare_is_a_validation_error(
    client: Any, cluster: str
) -> None:
    client.delete_cluster(ClusterName=NAME)
    reboot = client.batch_reboot_cluster_nodes
    assert code(reboot, ClusterName=NAME, NodeIds=["i-12345678"]) == "ValidationException"
    assert code(client.list_tags, ResourceArn=cluster[:-4] + "0000") == "ValidationException"


def test_update_changes_the_named_groups_and_leaves_the_others(client: Any, cluster: str) -> None:
    answer = client.update_cluster(
        ClusterName=cluster,
        InstanceGroups=[
            group(WORKERS, 4, "Compute", MinInstanceCount=2),
            group("new", 2, "Compute"),
        ],
    )
    assert answer["ClusterArn"] == cluster
    groups = {
        g["InstanceGroupName"]: (g["TargetCount"], g["MinCount"])
        for g in client.describe_cluster(ClusterName=NAME)["InstanceGroups"]
    }
    assert groups == {
        "controller-group": (1, 1),
        "login-group": (1, 1),
        WORKERS: (4, 2),
        "new": (2, 0),
    }
    client.update_cluster(ClusterName=NAME, InstanceGroupsToDelete=["new"])
    names = {
        g["InstanceGroupName"] for g in client.describe_cluster(ClusterName=NAME)["InstanceGroups"]
    }
    assert "new" not in names


def test_update_obeys_the_rules_of_the_state(client: Any, cluster: str, served: Served) -> None:
    before = len(served.service.changes)
    wrong = group(WORKERS, 4, "Compute", ThreadsPerCore=2)
    assert code(client.update_cluster, ClusterName=NAME, InstanceGroups=[wrong]) == (
        "ValidationException"
    )
    assert len(served.service.changes) == before


def test_delete_may_be_asked_twice(client: Any, cluster: str) -> None:
    assert client.delete_cluster(ClusterName=NAME)["ClusterArn"] == cluster
    assert client.delete_cluster(ClusterName=cluster)["ClusterArn"] == cluster
    assert client.describe_cluster(ClusterName=NAME)["ClusterStatus"] == "Deleting"


def _summaries(client: Any, **members: Any) -> list[str]:
    return [c["ClusterName"] for c in client.list_clusters(**members)["ClusterSummaries"]]


def test_clusters_are_filtered_sorted_and_paged(client: Any, served: Served) -> None:
    for name in ("beta", "alpha", "gamma-1", "gamma-2"):
        plan = "arn:aws:sagemaker:us-west-2:111122223333:training-plan/" + name
        worker = group("w", 1, "Compute", TrainingPlanArn=plan)
        groups = [group("c", 1, "Controller"), worker]
        client.create_cluster(**request(ClusterName=name, InstanceGroups=groups))
    assert _summaries(client) == ["beta", "alpha", "gamma-1", "gamma-2"]
    assert _summaries(client, SortOrder="Descending")[0] == "gamma-2"
    assert _summaries(client, SortBy="NAME") == ["alpha", "beta", "gamma-1", "gamma-2"]
    assert _summaries(client, NameContains="gamma") == ["gamma-1", "gamma-2"]
    assert _summaries(client, TrainingPlanArn=plan) == ["gamma-2"]
    second = served.service.cluster("alpha").created_at
    at = datetime.fromtimestamp(second, UTC)
    assert _summaries(client, CreationTimeAfter=at) == ["gamma-1", "gamma-2"]
    assert _summaries(client, CreationTimeBefore=at) == ["beta"]
    pages = client.get_paginator("list_clusters").paginate(
        SortBy="NAME", PaginationConfig={"PageSize": 3}
    )
    names = [[c["ClusterName"] for c in page["ClusterSummaries"]] for page in pages]
    assert names == [["alpha", "beta", "gamma-1"], ["gamma-2"]]


# nodes


def test_nodes_are_listed_by_page_with_and_without_machines(client: Any, served: Served) -> None:
    client.create_cluster(**SEED_REQUEST)
    assert client.list_cluster_nodes(ClusterName=NAME)["ClusterNodeSummaries"] == []
    waiting = client.list_cluster_nodes(ClusterName=NAME, IncludeNodeLogicalIds=True)
    assert len(waiting["ClusterNodeSummaries"]) == 18
    assert {n["InstanceStatus"]["Status"] for n in waiting["ClusterNodeSummaries"]} == {"Pending"}
    assert {n["InstanceId"] for n in waiting["ClusterNodeSummaries"]} == {""}
    served.service.settle(NAME)
    pages = list(
        client.get_paginator("list_cluster_nodes").paginate(
            ClusterName=NAME, PaginationConfig={"PageSize": 7}
        )
    )
    assert [len(page["ClusterNodeSummaries"]) for page in pages] == [7, 7, 4]
    nodes = [node for page in pages for node in page["ClusterNodeSummaries"]]
    assert len({n["InstanceId"] for n in nodes}) == 18
    assert not any("NodeLogicalId" in n for n in nodes)
    times = [n["LaunchTime"] for n in nodes]
    assert times == sorted(times)
    logins = client.list_cluster_nodes(
        ClusterName=NAME, InstanceGroupNameContains="login", SortBy="NAME", SortOrder="Descending"
    )
    assert [n["InstanceGroupName"] for n in logins["ClusterNodeSummaries"]] == ["login-group"]


def test_a_token_is_for_its_list_only(client: Any, cluster: str) -> None:
    token = client.list_cluster_nodes(ClusterName=NAME, MaxResults=1)["NextToken"]
    nodes = client.list_cluster_nodes
    assert len(nodes(ClusterName=cluster, NextToken=token)["ClusterNodeSummaries"]) == 17
    assert code(nodes, ClusterName=NAME, NextToken=token, SortBy="NAME") == "ValidationException"
    assert code(nodes, ClusterName=NAME, NextToken=token[:-2] + "xx") == "ValidationException"
    assert code(client.list_clusters, NextToken=token) == "ValidationException"


def test_a_node_is_described_by_either_id(client: Any, cluster: str, served: Served) -> None:
    kept = served.service.find(NAME)
    node = kept.nodes[-1]
    by_id = client.describe_cluster_node(ClusterName=NAME, NodeId=node.instance_id)["NodeDetails"]
    by_name = client.describe_cluster_node(ClusterName=cluster, NodeLogicalId=node.logical_id)
    assert by_id == by_name["NodeDetails"]
    assert by_id["PrivatePrimaryIp"] == node.address
    assert by_id["PrivateDnsHostname"] == node.hostname
    assert by_id["LifeCycleConfig"]["OnCreate"] == "on_create.sh"
    served.service.change_node(
        kept,
        node.logical_id,
        status="Failure",
        message="no capacity",
        instance_id="",
        launched_at=0.0,
        address="fd00::1",
        hostname="n7",
    )
    failed = client.describe_cluster_node(ClusterName=NAME, NodeLogicalId=node.logical_id)
    assert failed["NodeDetails"]["InstanceStatus"] == {
        "Status": "Failure",
        "Message": "no capacity",
    }
    assert failed["NodeDetails"]["PrivatePrimaryIpv6"] == "fd00::1"
    assert {"InstanceId", "LaunchTime", "PrivateDnsHostname"}.isdisjoint(failed["NodeDetails"])
    with pytest.raises(client.exceptions.ResourceNotFound):
        client.describe_cluster_node(ClusterName=NAME, NodeId="i-ffffffff")


def test_adding_nodes_is_idempotent_by_token(client: Any, cluster: str, served: Served) -> None:
    wanted = [
        {"InstanceGroupName": WORKERS, "IncrementTargetCountBy": 2},
        {"InstanceGroupName": "nope", "IncrementTargetCountBy": 3},
    ]
    add = client.batch_add_cluster_nodes
    first = add(ClusterName=NAME, NodesToAdd=wanted, ClientToken="t1")
    assert [n["InstanceGroupName"] for n in first["Successful"]] == [WORKERS] * 2
    assert [(f["ErrorCode"], f["FailedCount"]) for f in first["Failed"]] == [
        ("InstanceGroupNotFound", 3)
    ]
    assert served.service.cluster(NAME).group(WORKERS).target_count == 18
    served.service.settle(NAME)
    again = add(ClusterName=cluster, NodesToAdd=wanted, ClientToken="t1")
    ids = [n["NodeLogicalId"] for n in first["Successful"]]
    assert [n["NodeLogicalId"] for n in again["Successful"]] == ids
    assert {n["Status"] for n in again["Successful"]} == {"Running"}
    assert again["Failed"] == first["Failed"]
    assert served.service.cluster(NAME).group(WORKERS).target_count == 18
    assert code(add, ClusterName=NAME, NodesToAdd=wanted[:1], ClientToken="t1") == (
        "ValidationException"
    )
    other = add(ClusterName=NAME, NodesToAdd=wanted[:1])
    assert not {n["NodeLogicalId"] for n in other["Successful"]} & set(ids)


def test_nothing_is_added_while_min_count_is_awaited(
    client: Any, cluster: str, served: Served
) -> None:
    served.service.change_group(NAME, WORKERS, awaits_min_count=True, status="Updating")
    answer = client.batch_add_cluster_nodes(
        ClusterName=NAME, NodesToAdd=[{"InstanceGroupName": WORKERS, "IncrementTargetCountBy": 1}]
    )
    assert answer["Successful"] == []
    assert answer["Failed"][0]["ErrorCode"] == "InvalidInstanceGroupStatus"


def _node_ids(served: Served, group_name: str) -> list[tuple[str, str]]:
    nodes = served.service.find(NAME).nodes
    return [(n.instance_id, n.logical_id) for n in nodes if n.group == group_name]


def test_deletion_answers_for_each_node(client: Any, cluster: str, served: Served) -> None:
    workers = _node_ids(served, WORKERS)
    controller = _node_ids(served, "controller-group")[0]
    answer = client.batch_delete_cluster_nodes(
        ClusterName=NAME,
        NodeIds=[workers[0][0], controller[0], "i-ffffffff"],
        NodeLogicalIds=[workers[0][1], workers[1][1], "no-such-node"],
    )
    assert answer["Successful"] == [workers[0][0]]
    assert answer["SuccessfulNodeLogicalIds"] == [workers[0][1], workers[1][1]]
    assert [(f["NodeId"], f["Code"]) for f in answer["Failed"]] == [
        (controller[0], "NodeIdInUse"),
        ("i-ffffffff", "NodeIdNotFound"),
    ]
    assert [(f["NodeLogicalId"], f["Code"]) for f in answer["FailedNodeLogicalIds"]] == [
        ("no-such-node", "NodeIdNotFound")
    ]
    assert served.service.cluster(NAME).group(WORKERS).target_count == 14


def test_reboot_and_replace_answer_for_each_node(client: Any, cluster: str, served: Served) -> None:
    worker = _node_ids(served, WORKERS)[0]
    controller = _node_ids(served, "controller-group")[0]
    rebooted = client.batch_reboot_cluster_nodes(
        ClusterName=NAME, NodeIds=[worker[0], controller[0]]
    )
    assert rebooted["Successful"] == [worker[0], controller[0]]
    assert not rebooted.get("Failed")
    replaced = client.batch_replace_cluster_nodes(
        ClusterName=NAME, NodeIds=[controller[0]], NodeLogicalIds=[worker[1]]
    )
    assert replaced["SuccessfulNodeLogicalIds"] == [worker[1]]
    assert [f["ErrorCode"] for f in replaced["Failed"]] == ["InstanceIdInUse"]
    again = client.batch_replace_cluster_nodes(ClusterName=NAME, NodeLogicalIds=[worker[1]])
    assert [f["ErrorCode"] for f in again["FailedNodeLogicalIds"]] == ["InvalidInstanceStatus"]


# events and operations


def _event(number: int, **changes: Any) -> EventRecord:
    return EventRecord(
        **{
            "event_id": f"00000000-0000-0000-0000-{number:012x}",
            "resource_type": "Instance",
            "time": 1_800_000_000.0 + number,
            "description": f"event {number}",
            **changes,
        }
    )


def test_events_are_filtered_paged_and_newest_first(
    client: Any, cluster: str, served: Served
) -> None:
    operation = "01234567-89ab-cdef-0123-456789abcdef"
    served.service.find(NAME).events = [
        _event(1),
        _event(2, group=WORKERS, level="Warn"),
        _event(3, instance_id="i-12345678", operation_id=operation),
        _event(
            4,
            resource_type="InstanceGroup",
            metadata={"InstanceGroupScaling": {"TargetCount": 4, "MinCount": 2}},
        ),
    ]

    def numbers(**members: Any) -> list[str]:
        answer = client.list_cluster_events(ClusterName=NAME, **members)
        return [e["Description"][-1] for e in answer["Events"]]

    assert numbers() == ["4", "3", "2", "1"]
    assert numbers(SortOrder="Ascending", SortBy="EventTime") == ["1", "2", "3", "4"]
    assert numbers(InstanceGroupName=WORKERS) == ["2"]
    assert numbers(NodeId="i-12345678") == ["3"]
    assert numbers(OperationId=operation) == ["3"]
    assert numbers(ResourceType="InstanceGroup") == ["4"]
    assert numbers(EventTimeAfter=1_800_000_002, EventTimeBefore=1_800_000_004) == ["3"]
    pages = client.get_paginator("list_cluster_events").paginate(
        ClusterName=NAME, PaginationConfig={"PageSize": 3}
    )
    assert [len(page["Events"]) for page in pages] == [3, 1]
    one = client.describe_cluster_event(
        ClusterName=NAME, EventId="00000000-0000-0000-0000-000000000004"
    )["EventDetails"]
    assert one["EventDetails"]["EventMetadata"]["InstanceGroupScaling"]["TargetCount"] == 4
    with pytest.raises(client.exceptions.ResourceNotFound):
        client.describe_cluster_event(ClusterName=NAME, EventId=operation)


def test_operations_are_filtered_and_described(client: Any, cluster: str, served: Served) -> None:
    def record(number: int, status: str) -> OperationRecord:
        scaling = {
            "InstanceGroupName": WORKERS,
            "Status": status,
            "Original": {"CurrentCount": 0, "TargetCount": 0, "MinCount": 0},
            "Desired": {"CurrentCount": 4, "TargetCount": 4, "MinCount": 0},
        }
        return OperationRecord(
            f"00000000-0000-0000-0000-{number:012x}",
            "Scaling",
            status,
            1_800_000_000.0 + number,
            {"ScalingDetails": [scaling]},
        )

    served.service.find(NAME).operations = [record(1, "Done"), record(2, "InProgress")]
    listed = client.list_cluster_operations(ClusterName=NAME)["ClusterOperationSummaries"]
    assert [o["Status"] for o in listed] == ["InProgress", "Done"]
    done = client.list_cluster_operations(ClusterName=NAME, Status="Done", Type="Scaling")
    assert [o["OperationId"][-1] for o in done["ClusterOperationSummaries"]] == ["1"]
    pages = client.get_paginator("list_cluster_operations").paginate(
        ClusterName=NAME, PaginationConfig={"PageSize": 1}
    )
    assert [len(page["ClusterOperationSummaries"]) for page in pages] == [1, 1]
    one = client.describe_cluster_operation(ClusterName=NAME, OperationId=listed[0]["OperationId"])
    assert one["ScalingDetails"][0]["Desired"]["TargetCount"] == 4


# maintenance and tags


def test_health_checks_merge_and_run_one_at_a_time(
    client: Any, cluster: str, served: Served
) -> None:
    ids = [instance for instance, _ in _node_ids(served, WORKERS)]

    def entry(check: str, *instances: str) -> dict[str, Any]:
        return {
            "InstanceGroupName": WORKERS,
            "InstanceIds": list(instances),
            "DeepHealthChecks": [check],
        }

    start = client.start_cluster_health_check
    checks = [entry("InstanceStress", ids[0]), entry("InstanceConnectivity", ids[1])]
    assert start(ClusterName=NAME, DeepHealthCheckConfigurations=checks)["ClusterArn"] == cluster
    operation = served.service.find(NAME).operations[-1].operation_id
    found = client.describe_cluster_operation(ClusterName=NAME, OperationId=operation)
    assert found["DeepHealthCheckDetails"] == [
        {
            "InstanceGroupName": WORKERS,
            "InstanceIds": ids[:2],
            "DeepHealthChecks": ["InstanceStress", "InstanceConnectivity"],
        }
    ]
    assert code(start, ClusterName=NAME, DeepHealthCheckConfigurations=checks[:1]) == (
        "ValidationException"
    )


def test_a_software_update_runs_once(client: Any, cluster: str) -> None:
    update = client.update_cluster_software
    policy = {"MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 25}}
    config = {"RollingUpdatePolicy": policy, "WaitIntervalInSeconds": 60}
    answer = update(ClusterName=NAME, ImageId="default", DeploymentConfig=config)
    assert answer["ClusterArn"] == cluster
    assert code(update, ClusterName=NAME) == "ConflictException"


def test_tags_are_added_overwritten_and_deleted(client: Any, cluster: str) -> None:
    def tags(**wanted: str) -> list[dict[str, str]]:
        return [{"Key": key, "Value": value} for key, value in wanted.items()]

    assert client.add_tags(ResourceArn=cluster, Tags=tags(a="1", b="2"))["Tags"] == tags(
        a="1", b="2"
    )
    assert client.add_tags(ResourceArn=cluster, Tags=tags(b="3"))["Tags"] == tags(a="1", b="3")
    client.delete_tags(ResourceArn=cluster, TagKeys=["a", "nope"])
    assert client.list_tags(ResourceArn=cluster)["Tags"] == tags(b="3")
    pages = client.get_paginator("list_tags").paginate(ResourceArn=cluster)
    assert [page["Tags"] for page in pages] == [tags(b="3")]
    many = [{"Key": str(n), "Value": ""} for n in range(50)]
    assert code(client.add_tags, ResourceArn=cluster, Tags=many) == "ValidationException"


def test_all_operations_were_seen(seen: set[str]) -> None:
    assert seen == set(SERVED)
