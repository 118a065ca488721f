"""Each rule of a request for a cluster as it stands, kept and broken."""

from __future__ import annotations

import re
from typing import Any

import pytest
from api_clusters import CLUSTER, COMPUTE, LUSTRE, cluster, with_group
from api_requests import ROLE, group

from hpresume.api import rules
from hpresume.api.errors import ApiError
from hpresume.api.rules import check_cluster
from hpresume.provision.service import ClusterRecord, GroupRecord, GroupSpec


def update(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"ClusterName": "c", "InstanceGroups": list(entries), **more}


MANY = cluster(
    groups=(
        *CLUSTER.groups,
        *(
            GroupRecord(GroupSpec(group(f"w{n}", 1, "Compute")), "InService", 1, 1, 0)
            for n in range(97)
        ),
    )
)
CHECK = {
    "DeepHealthCheckConfigurations": [
        {"InstanceGroupName": COMPUTE, "DeepHealthChecks": ["InstanceStress"]}
    ]
}
WORKER = group(COMPUTE, 16, "Compute")

#: Rule, operation, request, cluster, error, part of the message.
BROKEN_STATES: list[tuple[str, str, dict[str, Any], ClusterRecord, str, str]] = [
    *(
        (
            "cluster_is_not_leaving",
            operation,
            document,
            cluster(status="Deleting"),
            "ConflictException",
            "is being deleted",
        )
        for operation, document in (
            ("UpdateCluster", update()),
            ("UpdateClusterSoftware", {}),
            ("BatchAddClusterNodes", {"NodesToAdd": []}),
            ("BatchDeleteClusterNodes", {}),
            ("BatchRebootClusterNodes", {}),
            ("BatchReplaceClusterNodes", {}),
            ("StartClusterHealthCheck", CHECK),
        )
    ),
    (
        "groups_are_not_leaving",
        "UpdateCluster",
        update(WORKER),
        with_group(status="Deleting"),
        "ConflictException",
        "Instance group worker-gpu-a is being deleted",
    ),
    *(
        (
            "fixed_members_stay",
            "UpdateCluster",
            update({**WORKER, name: value}),
            CLUSTER,
            "ValidationException",
            f"{name} of instance group worker-gpu-a cannot change",
        )
        for name, value in (
            ("InstanceType", "ml.p4d.24xlarge"),
            ("ExecutionRole", ROLE + "2"),
            ("ThreadsPerCore", 2),
        )
    ),
    (
        "fixed_members_stay",
        "UpdateCluster",
        update(group(COMPUTE, 1, "Login")),
        cluster(status="Failed"),
        "ValidationException",
        "NodeType of instance group worker-gpu-a cannot change: it is Compute",
    ),
    (
        "deleted_groups_exist",
        "UpdateCluster",
        update(InstanceGroupsToDelete=["nope"]),
        CLUSTER,
        "ValidationException",
        "has no instance group nope to delete",
    ),
    (
        "deleted_groups_exist",
        "UpdateCluster",
        update(WORKER, InstanceGroupsToDelete=[COMPUTE]),
        CLUSTER,
        "ValidationException",
        "is named another time",
    ),
    (
        "controller_group_stays",
        "UpdateCluster",
        update(InstanceGroupsToDelete=["controller-group"]),
        CLUSTER,
        "ValidationException",
        "Cluster c has no InstanceGroup with Controller node type.",
    ),
    (
        "controller_group_stays",
        "UpdateCluster",
        update(group("second", 1, "Controller")),
        CLUSTER,
        "ValidationException",
        "2 Controller Groups found",
    ),
    (
        "fsx_needs_the_clusters_network",
        "UpdateCluster",
        update({**WORKER, "InstanceStorageConfigs": [LUSTRE]}, NodeProvisioningMode="Continuous"),
        CLUSTER,
        "ValidationException",
        "mounts FSx: VpcConfig is needed",
    ),
    (
        "groups_within_limit",
        "UpdateCluster",
        update(group("another", 1, "Compute")),
        MANY,
        "ResourceLimitExceeded",
        "101 instance groups",
    ),
    (
        "count_within_limit",
        "BatchAddClusterNodes",
        {"NodesToAdd": [{"InstanceGroupName": COMPUTE, "IncrementTargetCountBy": 1}]},
        with_group(target_count=6758),
        "ResourceLimitExceeded",
        "6759 instances: at most 6758",
    ),
    (
        "replacement_needs_service",
        "BatchReplaceClusterNodes",
        {},
        cluster(status="Creating"),
        "ValidationException",
        "it has to be InService",
    ),
    (
        "checks_need_service",
        "StartClusterHealthCheck",
        CHECK,
        cluster(status="Creating"),
        "ValidationException",
        "it has to be InService",
    ),
    (
        "checks_need_service",
        "StartClusterHealthCheck",
        CHECK,
        cluster(health_check_active=True),
        "ValidationException",
        "has an active health check",
    ),
    (
        "checks_are_for_compute",
        "StartClusterHealthCheck",
        {
            "DeepHealthCheckConfigurations": [
                {"InstanceGroupName": "login-group", "DeepHealthChecks": ["InstanceStress"]}
            ]
        },
        CLUSTER,
        "ValidationException",
        "only Compute nodes are checked",
    ),
    (
        "software_needs_service",
        "UpdateClusterSoftware",
        {},
        cluster(status="SystemUpdating"),
        "ConflictException",
        "is SystemUpdating",
    ),
    (
        "custom_image_is_named",
        "UpdateClusterSoftware",
        {"InstanceGroups": [{"InstanceGroupName": COMPUTE}]},
        with_group(details={"CurrentImageId": "ami-0123456789abcdef0"}),
        "ValidationException",
        "has the image ami-0123456789abcdef0: name an ImageId",
    ),
    (
        "software_waits_for_min_count",
        "UpdateClusterSoftware",
        {},
        with_group(awaits_min_count=True, status="Updating", min_count=8),
        "ConflictException",
        "is Updating until its MinCount of 8 is reached",
    ),
    (
        "updated_groups_exist",
        "UpdateClusterSoftware",
        {"InstanceGroups": [{"InstanceGroupName": "nope"}]},
        CLUSTER,
        "ValidationException",
        "has no instance group nope",
    ),
]

KEPT_STATES: list[tuple[str, dict[str, Any], ClusterRecord]] = [
    ("UpdateCluster", update(group(COMPUTE, 0, "Compute")), CLUSTER),
    ("UpdateCluster", update(group("new", 3, "Compute")), CLUSTER),
    ("UpdateCluster", update(group("another", 1, "Compute"), InstanceGroupsToDelete=["w1"]), MANY),
    ("UpdateCluster", update({**WORKER, "InstanceType": "ml.g5.xlarge"}), cluster(status="Failed")),
    ("UpdateCluster", update({**WORKER, "MinInstanceCount": 2}), with_group(awaits_min_count=True)),
    ("UpdateCluster", update(InstanceGroupsToDelete=[COMPUTE]), with_group(awaits_min_count=True)),
    (
        "UpdateClusterSoftware",
        {"InstanceGroups": [{"InstanceGroupName": "login-group"}]},
        with_group(awaits_min_count=True),
    ),
    (
        "UpdateCluster",
        update({**WORKER, "InstanceStorageConfigs": [LUSTRE]}),
        cluster(document={"VpcConfig": {}}),
    ),
    ("StartClusterHealthCheck", CHECK, CLUSTER),
    (
        "UpdateClusterSoftware",
        {"InstanceGroups": [{"InstanceGroupName": "login-group"}]},
        with_group(details={"CurrentImageId": "ami-0123456789abcdef0"}),
    ),
    (
        "UpdateClusterSoftware",
        {"ImageId": "default"},
        with_group(details={"CurrentImageId": "ami-0123456789abcdef0"}),
    ),
    ("DeleteCluster", {}, cluster(status="Deleting")),
]


@pytest.mark.parametrize(("name", "operation", "document", "state", "error", "text"), BROKEN_STATES)
def test_a_broken_rule_of_the_state(
    name: str,
    operation: str,
    document: dict[str, Any],
    state: ClusterRecord,
    error: str,
    text: str,
) -> None:
    entry = next(r for r in rules.all_rules() if r.name == name)
    assert entry.kind == "cluster"
    assert any(text in problem for problem in entry.check(document, state))
    with pytest.raises(ApiError, match=re.escape(text)) as caught:
        check_cluster(operation, document, state)
    assert caught.value.code == error == entry.error


@pytest.mark.parametrize(("operation", "document", "state"), KEPT_STATES)
def test_a_good_change_breaks_no_rule(
    operation: str, document: dict[str, Any], state: ClusterRecord
) -> None:
    check_cluster(operation, document, state)


def test_a_conflict_is_told_before_what_is_invalid() -> None:
    document = update({**WORKER, "ThreadsPerCore": 2})
    with pytest.raises(ApiError) as caught:
        check_cluster("UpdateCluster", document, with_group(status="Deleting"))
    assert caught.value.code == "ConflictException"
