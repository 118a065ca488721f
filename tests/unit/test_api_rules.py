"""Each rule of a request, kept and broken. A rule without a case fails the last test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from api_clusters import CONTROLLER, LUSTRE
from api_requests import group, request

from hpresume.api import rules
from hpresume.api.errors import ApiError
from hpresume.api.rules import check_request
from hpresume.api.rules.groups import min_instance_count


def workers(**changes: Any) -> dict[str, Any]:
    """The seed's request with a changed worker group."""
    document = request()
    document["InstanceGroups"][2].update(changes)
    return document


def groups(*entries: dict[str, Any]) -> dict[str, Any]:
    return request(InstanceGroups=list(entries))


def slurm(**config: Any) -> dict[str, Any]:
    return request(Orchestrator={"Slurm": config})


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
        "partition_is_no_default",
        "CreateCluster",
        workers(SlurmConfig={"NodeType": "Compute", "PartitionNames": ["Default"]}),
        "Default is no name for a partition",
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


def test_every_rule_has_a_case_and_a_source() -> None:
    files = Path(__file__).parent.glob("test_api_rules*.py")
    text = "".join(file.read_text() for file in files)
    for entry in rules.all_rules():
        assert f'"{entry.name}"' in text, entry.name
        assert entry.source
        assert entry.summary
