"""Each rule, kept and broken. A rule without a case here fails the last test."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from api_requests import ROLE, group, request

from hpresume.api import rules
from hpresume.api.errors import ApiError
from hpresume.api.handlers.clusters import _groups
from hpresume.api.rules import check_cluster, check_request
from hpresume.api.rules.groups import min_instance_count
from hpresume.api.rules.maintenance import merged_checks
from hpresume.api.rules.nodes import addition_problem, node_problem
from hpresume.api.rules.tags import added
from hpresume.provision.service import ClusterRecord, GroupRecord, GroupSpec, NodeRecord

COMPUTE = "worker-gpu-a"


def workers(**changes: Any) -> dict[str, Any]:
    """The seed's request with a changed worker group."""
    document = request()
    document["InstanceGroups"][2].update(changes)
    return document


def groups(*entries: dict[str, Any]) -> dict[str, Any]:
    return request(InstanceGroups=list(entries))


def slurm(**config: Any) -> dict[str, Any]:
    return request(Orchestrator={"Slurm": config})


CONTROLLER = group("c", 1, "Controller")
LUSTRE = {"FsxLustreConfig": {"DnsName": "fs-0123456789abcdef0.fsx", "MountName": "x"}}
ZFS = {"FsxOpenZfsConfig": {"DnsName": "fs-0123456789abcdef0.fsx"}}
NO_NETWORK = {k: v for k, v in workers(InstanceStorageConfigs=[LUSTRE]).items() if k != "VpcConfig"}

#: Rule, operation, request, part of the message.
BROKEN: list[tuple[str, str, dict[str, Any], str]] = [
    ("members_served", "CreateCluster", request(Orchestrator={"Eks": {}}), "Eks is not served"),
    (
        "members_served",
        "CreateCluster",
        request(RestrictedInstanceGroups=[]),
        "RestrictedInstanceGroups is not served",
    ),
    (
        "members_served",
        "UpdateCluster",
        {"ClusterName": "c", "AutoScaling": {"Mode": "Enable"}},
        "AutoScaling.Mode=Enable is not served",
    ),
    (
        "members_served",
        "CreateCluster",
        slurm(AccountingDatabase={}),
        "AccountingDatabase is not served",
    ),
    ("members_served", "CreateCluster", workers(AutoPatchConfig={}), "AutoPatchConfig of instance"),
    (
        "orchestrator_is_one",
        "CreateCluster",
        request(Orchestrator={}),
        "exactly one of Eks and Slurm",
    ),
    (
        "mode_is_continuous",
        "CreateCluster",
        {k: v for k, v in request().items() if k != "NodeProvisioningMode"},
        "has to be Continuous",
    ),
    *(
        (
            "no_strategy_with_continuous",
            "CreateCluster",
            slurm(SlurmConfigStrategy=strategy),
            "SlurmConfigStrategy is not supported",
        )
        for strategy in ("Managed", "Merge", "Overwrite")
    ),
    (
        "no_strategy_with_continuous",
        "UpdateCluster",
        {"ClusterName": "c", "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}}},
        "SlurmConfigStrategy is not supported",
    ),
    (
        "one_controller_group",
        "CreateCluster",
        groups(CONTROLLER, group("d", 1, "Controller")),
        "2 Controller Groups found: SlurmConfig for InstanceGroups may only have one",
    ),
    (
        "one_controller_group",
        "CreateCluster",
        groups(group("w", 1, "Compute")),
        "Cluster my-training-cluster has no InstanceGroup with Controller node type.",
    ),
    (
        "one_controller_group",
        "CreateCluster",
        {"ClusterName": "x", "NodeProvisioningMode": "Continuous"},
        "Cluster x has no InstanceGroup with Controller node type.",
    ),
    (
        "one_controller_group",
        "CreateCluster",
        groups(CONTROLLER, group("l", 1, "Login"), group("m", 1, "Login")),
        "2 Login Groups found",
    ),
    ("fsx_needs_network", "CreateCluster", NO_NETWORK, "mounts FSx: VpcConfig is needed"),
    (
        "group_names_differ",
        "CreateCluster",
        groups(CONTROLLER, group("w", 1, "Compute"), group("w", 2, "Compute")),
        "w is named 2 times",
    ),
    (
        "group_has_slurm_config",
        "CreateCluster",
        groups(
            CONTROLLER, {k: v for k, v in group("w", 1, "Compute").items() if k != "SlurmConfig"}
        ),
        "w needs SlurmConfig",
    ),
    ("min_within_count", "CreateCluster", workers(MinInstanceCount=17), "MinInstanceCount 17"),
    (
        "one_controller_node",
        "CreateCluster",
        groups(group("c", 2, "Controller")),
        "its InstanceCount has to be 1, not 2",
    ),
    ("one_controller_node", "CreateCluster", groups(group("c", 0, "Controller")), "not 0"),
    (
        "partitions_on_compute",
        "CreateCluster",
        groups(
            group(
                "c",
                1,
                "Controller",
                SlurmConfig={"NodeType": "Controller", "PartitionNames": ["p"]},
            )
        ),
        "Partitions can only be assigned to Compute node types",
    ),
    (
        "partitions_on_compute",
        "CreateCluster",
        workers(SlurmConfig={"NodeType": "Compute"}),
        "PartitionNames is needed",
    ),
    (
        "instance_type_or_requirements",
        "CreateCluster",
        workers(InstanceRequirements={"InstanceTypes": ["ml.p5.48xlarge"]}),
        "needs either InstanceType or InstanceRequirements",
    ),
    (
        "lifecycle_script_has_source",
        "CreateCluster",
        workers(LifeCycleConfig={"OnCreate": "x.sh"}),
        "needs SourceS3Uri and",
    ),
    (
        "lifecycle_script_has_source",
        "CreateCluster",
        workers(LifeCycleConfig={"SourceS3Uri": "s3://b"}),
        "needs SourceS3Uri and",
    ),
    (
        "lifecycle_script_has_source",
        "UpdateCluster",
        workers(LifeCycleConfig={"SourceS3Uri": "https://b/x", "OnCreate": "x.sh"}),
        "worker-gpu-a has to be s3://BUCKET/PREFIX, not https://b/x",
    ),
    *(
        (
            "lifecycle_script_is_below_source",
            "CreateCluster",
            workers(LifeCycleConfig={"SourceS3Uri": "s3://b/", "OnInitComplete": script}),
            "LifeCycleConfig.OnInitComplete of instance group worker-gpu-a has to be a file below",
        )
        for script in ("/etc/passwd", "../x.sh", "a/../../x", ".", "a\nb", "a\x00b")
    ),
    (
        "one_mount_of_each_kind",
        "CreateCluster",
        workers(InstanceStorageConfigs=[LUSTRE, ZFS, LUSTRE]),
        "has 2 FsxLustreConfig",
    ),
    (
        "volume_size_or_root",
        "CreateCluster",
        workers(InstanceStorageConfigs=[{"EbsVolumeConfig": {}}]),
        "needs VolumeSizeInGB",
    ),
    (
        "volume_size_or_root",
        "CreateCluster",
        workers(InstanceStorageConfigs=[{"EbsVolumeConfig": {"RootVolume": True}}]),
        "VolumeKmsKeyId is needed",
    ),
    (
        "capacity_is_of_one_kind",
        "CreateCluster",
        workers(CapacityRequirements={"Spot": {}, "OnDemand": {}}),
        "Spot or OnDemand, not both",
    ),
    (
        "tag_keys_differ",
        "CreateCluster",
        request(Tags=[{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]),
        "Tag a is there 2 times",
    ),
    ("tag_keys_are_not_reserved", "AddTags", {"Tags": [{"Key": "AWS:x", "Value": ""}]}, "reserved"),
    ("tag_keys_are_not_reserved", "DeleteTags", {"TagKeys": ["aws:x"]}, "reserved"),
    ("some_node_is_named", "BatchDeleteClusterNodes", {"ClusterName": "c"}, "at least one node"),
    (
        "deletion_within_limit",
        "BatchDeleteClusterNodes",
        {"NodeIds": [f"i-{n:08x}" for n in range(50)], "NodeLogicalIds": ["n1"]},
        "more than 50 nodes",
    ),
    (
        "recovery_within_limit",
        "BatchRebootClusterNodes",
        {"NodeIds": [f"i-{n:08x}" for n in range(25)], "NodeLogicalIds": ["n1"]},
        "more than 25 nodes",
    ),
    ("one_id_of_a_node", "DescribeClusterNode", {"ClusterName": "c"}, "and not both"),
    (
        "one_id_of_a_node",
        "DescribeClusterNode",
        {"NodeId": "i-12345678", "NodeLogicalId": "n"},
        "and not both",
    ),
    (
        "addition_within_limit",
        "BatchAddClusterNodes",
        {"NodesToAdd": [{"InstanceGroupName": "a", "IncrementTargetCountBy": 50}] * 2},
        "asks for 100 nodes: at most 50",
    ),
    (
        "batch_size_is_possible",
        "UpdateClusterSoftware",
        {
            "DeploymentConfig": {
                "RollingUpdatePolicy": {
                    "MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 101}
                }
            }
        },
        "101 percent",
    ),
    (
        "updated_groups_differ",
        "UpdateClusterSoftware",
        {"InstanceGroups": [{"InstanceGroupName": "a"}, {"InstanceGroupName": "a"}]},
        "a is named 2 times",
    ),
    (
        "one_image_is_named",
        "UpdateClusterSoftware",
        {
            "ImageId": "default",
            "InstanceGroups": [{"InstanceGroupName": "a", "ImageReleaseVersion": "1.0.0"}],
        },
        "contradict each other",
    ),
]

#: Requests that break no rule.
KEPT: list[tuple[str, dict[str, Any]]] = [
    ("CreateCluster", request()),
    ("CreateCluster", {k: v for k, v in request().items() if k != "Orchestrator"}),
    ("CreateCluster", groups(CONTROLLER)),
    ("CreateCluster", workers(MinInstanceCount=16)),
    ("CreateCluster", workers(MinInstanceCount=0, InstanceCount=0)),
    ("CreateCluster", request(AutoScaling={"Mode": "Disable"})),
    ("CreateCluster", workers(InstanceStorageConfigs=[LUSTRE, ZFS])),
    ("CreateCluster", {**NO_NETWORK, "VpcConfig": {}}),
    (
        "CreateCluster",
        workers(
            InstanceStorageConfigs=[
                {"EbsVolumeConfig": {"VolumeSizeInGB": 500}},
                {"EbsVolumeConfig": {"RootVolume": True, "VolumeKmsKeyId": "k"}},
            ]
        ),
    ),
    ("CreateCluster", workers(LifeCycleConfig={"SourceS3Uri": "s3://b", "OnCreate": "a/b.sh"})),
    ("CreateCluster", request(Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "1"}])),
    ("UpdateCluster", {"ClusterName": "c", "NodeProvisioningMode": "Continuous"}),
    ("UpdateCluster", {**NO_NETWORK, "InstanceGroups": NO_NETWORK["InstanceGroups"][2:]}),
    ("UpdateCluster", {"ClusterName": "c", "InstanceGroups": [group("w", 0, "Compute")]}),
    ("BatchDeleteClusterNodes", {"NodeIds": [f"i-{n:08x}" for n in range(3000)]}),
    ("BatchRebootClusterNodes", {"NodeIds": [f"i-{n:08x}" for n in range(25)]}),
    ("DescribeClusterNode", {"NodeId": "i-12345678"}),
]


@pytest.mark.parametrize(("name", "operation", "document", "text"), BROKEN)
def test_a_broken_rule_of_a_request(
    name: str, operation: str, document: dict[str, Any], text: str
) -> None:
    entry = next(r for r in rules.all_rules() if r.name == name)
    assert entry.kind == "request"
    assert operation in entry.operations
    assert any(text in problem for problem in entry.check(document))
    with pytest.raises(ApiError, match=re.escape(text)) as caught:
        check_request(operation, document)
    assert caught.value.code == "ValidationException"


@pytest.mark.parametrize(("operation", "document"), KEPT)
def test_a_good_request_breaks_no_rule(operation: str, document: dict[str, Any]) -> None:
    check_request(operation, document)


def test_several_broken_rules_are_told_at_once() -> None:
    document = workers(MinInstanceCount=99)
    document["Orchestrator"] = {}
    with pytest.raises(ApiError, match=r"^2 validation errors detected: .*; .*"):
        check_request("CreateCluster", document)


@pytest.mark.parametrize(
    ("entry", "least"),
    [
        (group("c", 1, "Controller"), 1),
        (group("l", 2, "Login"), 1),
        (group("l", 0, "Login"), 0),
        (group("w", 4, "Compute"), 0),
        (group("l", 2, "Login", MinInstanceCount=2), 2),
        (group("l", 2, "Login", MinInstanceCount=0), 0),
    ],
)
def test_the_default_of_min_count(entry: dict[str, Any], least: int) -> None:
    assert min_instance_count(entry) == least


CLUSTER = ClusterRecord(
    arn="arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12",
    name="c",
    status="InService",
    created_at=1.0,
    groups=tuple(
        GroupRecord(spec, "InService", spec.count, spec.count, spec.min_count)
        for spec in _groups(request())
    ),
    document={"NodeProvisioningMode": "Continuous"},
)


def cluster(**changes: Any) -> ClusterRecord:
    return replace(CLUSTER, **changes)


def with_group(name: str = COMPUTE, **changes: Any) -> ClusterRecord:
    return cluster(
        groups=tuple(replace(g, **changes) if g.spec.name == name else g for g in CLUSTER.groups)
    )


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


@pytest.mark.parametrize(
    ("name", "entry", "state", "code"),
    [
        ("group_to_add_to_exists", {"InstanceGroupName": "x"}, None, "InstanceGroupNotFound"),
        ("group_can_grow", {}, {"status": "Deleting"}, "InvalidInstanceGroupStatus"),
        ("group_can_grow", {}, {"awaits_min_count": True}, "InvalidInstanceGroupStatus"),
        (
            "group_can_grow",
            {},
            {"spec": GroupSpec(CONTROLLER)},
            "InvalidInstanceGroupStatus",
        ),
        (
            "added_types_are_the_groups",
            {"InstanceTypes": ["ml.t3.large"]},
            {},
            "IncompatibleInstanceTypes",
        ),
        (
            "zones_are_not_chosen",
            {"AvailabilityZones": ["us-west-2a"]},
            {},
            "IncompatibleAvailabilityZones",
        ),
    ],
)
def test_what_is_not_added(
    name: str, entry: dict[str, Any], state: dict[str, Any] | None, code: str
) -> None:
    known = None if state is None else replace(CLUSTER.groups[2], **state)
    problem = addition_problem(entry, known)
    assert problem is not None
    assert problem.code == code
    assert next(r for r in rules.all_rules() if r.name == name).check(entry, known) == problem


def test_what_is_added() -> None:
    entry = {"InstanceGroupName": COMPUTE, "InstanceTypes": ["ml.p5.48xlarge"]}
    assert addition_problem(entry, CLUSTER.groups[2]) is None


NODE = NodeRecord("n", "w1", COMPUTE, "ml.p5.48xlarge", "Running", 1.0, instance_id="i-12345678")


@pytest.mark.parametrize(
    ("name", "operation", "node", "group_changes", "refusal"),
    [
        (
            "controller_node_stays",
            "BatchDeleteClusterNodes",
            {"group": "controller-group"},
            {},
            "in use",
        ),
        (
            "controller_node_stays",
            "BatchReplaceClusterNodes",
            {"group": "controller-group"},
            {},
            "in use",
        ),
        (
            "min_count_comes_first",
            "BatchDeleteClusterNodes",
            {},
            {"awaits_min_count": True},
            "status",
        ),
        (
            "node_is_not_leaving",
            "BatchDeleteClusterNodes",
            {"status": "ShuttingDown"},
            {},
            "status",
        ),
        (
            "node_is_not_leaving",
            "BatchRebootClusterNodes",
            {"status": "ShuttingDown"},
            {},
            "status",
        ),
        ("node_has_settled", "BatchRebootClusterNodes", {"status": "Pending"}, {}, "status"),
        (
            "node_has_settled",
            "BatchRebootClusterNodes",
            {"status": "DeepHealthCheckInProgress"},
            {},
            "status",
        ),
        ("node_has_settled", "BatchReplaceClusterNodes", {"instance_id": ""}, {}, "status"),
        (
            "node_has_settled",
            "BatchReplaceClusterNodes",
            {"status": "SystemUpdating"},
            {},
            "status",
        ),
        (None, "BatchRebootClusterNodes", {"group": "controller-group"}, {}, None),
        (None, "BatchDeleteClusterNodes", {"status": "Pending", "instance_id": ""}, {}, None),
        (None, "BatchReplaceClusterNodes", {"status": "Failure"}, {}, None),
        (None, "BatchReplaceClusterNodes", {}, {"awaits_min_count": True}, None),
    ],
)
def test_which_nodes_are_left_alone(
    name: str | None,
    operation: str,
    node: dict[str, Any],
    group_changes: dict[str, Any],
    refusal: str | None,
) -> None:
    state, record = with_group(**group_changes), replace(NODE, **node)
    problem = node_problem(operation, state, record)
    assert (problem.refusal if problem else None) == refusal
    if name:
        assert next(r for r in rules.all_rules() if r.name == name).check(state, record) == problem


def test_overlapping_checks_are_one() -> None:
    def entry(name: str, checks: list[str], *ids: str) -> dict[str, Any]:
        chosen = {"InstanceIds": list(ids)} if ids else {}
        return {"InstanceGroupName": name, **chosen, "DeepHealthChecks": checks}

    stress, links = ["InstanceStress"], ["InstanceConnectivity"]
    assert merged_checks(
        (entry("a", stress, "1", "2"), entry("b", links, "3"), entry("a", links, "2", "4"))
    ) == (entry("a", stress + links, "1", "2", "4"), entry("b", links, "3"))
    assert merged_checks((entry("a", stress, "1"), entry("a", stress))) == (entry("a", stress),)


def test_tags_are_at_most_fifty() -> None:
    full = {str(n): "" for n in range(50)}
    assert added(full, {"0": "new"})["0"] == "new"
    with pytest.raises(ApiError, match="at most 50 tags"):
        added(full, {"more": ""})


def test_every_rule_has_a_case_and_a_source() -> None:
    with open(__file__) as stream:
        text = stream.read()
    for entry in rules.all_rules():
        assert f'"{entry.name}"' in text, entry.name
        assert entry.source
        assert entry.summary
