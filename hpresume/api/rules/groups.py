"""Rules of CreateCluster and UpdateCluster about each instance group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from hpresume.api.rules.registry import rule
from hpresume.provision.service import Document

_BOTH = ("CreateCluster", "UpdateCluster")


def _groups(request: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    for group in request.get("InstanceGroups", ()):
        yield group["InstanceGroupName"], group


def min_instance_count(group: Document) -> int:
    """MinInstanceCount of a group, or its default: 1 for Controller and Login, else 0.

    Source: seed 004, "Using the MinCount API". Never above InstanceCount.
    """
    if "MinInstanceCount" in group:
        return int(group["MinInstanceCount"])
    node_type = group.get("SlurmConfig", {}).get("NodeType")
    return min(1, int(group["InstanceCount"])) if node_type in ("Controller", "Login") else 0


@rule("request", *_BOTH)
def group_names_differ(request: Document) -> Iterator[str]:
    """Each instance group is named once in a request.

    Source: botocore's model, text of InstanceGroupName; a name is a group's identity.
    """
    names = Counter(name for name, _ in _groups(request))
    for name, times in names.items():
        if times > 1:
            yield f"Instance group {name} is named {times} times"


@rule("request", *_BOTH)
def group_has_slurm_config(request: Document) -> Iterator[str]:
    """Continuous provisioning takes node types and partitions from each group's SlurmConfig.

    Source: seed 004, "Prerequisites".
    """
    for name, group in _groups(request):
        if "SlurmConfig" not in group:
            yield (
                f"Instance group {name} needs SlurmConfig: "
                "provisioning_parameters.json is not used with NodeProvisioningMode Continuous"
            )


@rule("request", *_BOTH)
def min_within_count(request: Document) -> Iterator[str]:
    """MinInstanceCount is at most InstanceCount.

    Source: seed 004, "Important considerations" about MinCount.
    """
    for name, group in _groups(request):
        least, count = group.get("MinInstanceCount", 0), group["InstanceCount"]
        if least > count:
            yield (
                f"MinInstanceCount {least} of instance group {name} has to be between 0 and its "
                f"InstanceCount {count}"
            )


@rule("request", *_BOTH)
def one_controller_node(request: Document) -> Iterator[str]:
    """The Controller group has exactly one instance.

    Source: seed 004, "Prerequisites": no multi-head configuration with continuous provisioning;
    without a controller a cluster never gets InService.
    """
    for name, group in _groups(request):
        if group.get("SlurmConfig", {}).get("NodeType") == "Controller" and (
            group["InstanceCount"] != 1
        ):
            yield (
                f"Instance group {name} is the Controller: its InstanceCount has to be 1, "
                f"not {group['InstanceCount']}"
            )


@rule("request", *_BOTH)
def partitions_on_compute(request: Document) -> Iterator[str]:
    """Compute groups name their partition; Controller and Login groups have none.

    Source: AWS documentation, sagemaker-hyperpod-ref and ...-slurm-api-config-migration.
    """
    for name, group in _groups(request):
        config = group.get("SlurmConfig")
        if config is None:
            continue
        if config["NodeType"] == "Compute":
            if not config.get("PartitionNames"):
                yield f"Instance group {name} is Compute: SlurmConfig.PartitionNames is needed"
        elif config.get("PartitionNames"):
            yield f"Partitions can only be assigned to Compute node types (instance group {name})"


@rule("request", *_BOTH)
def partition_is_no_default(request: Document) -> Iterator[str]:
    """No partition is called DEFAULT, in whatever case.

    Source: slurm.conf(5): PartitionName=DEFAULT sets what all later partitions have.
    """
    for name, group in _groups(request):
        for partition in group.get("SlurmConfig", {}).get("PartitionNames", ()):
            if partition.upper() == "DEFAULT":
                yield (
                    f"Instance group {name}: {partition} is no name for a partition: "
                    "slurm.conf has it for what is set for all of them"
                )


@rule("request", *_BOTH)
def instance_type_or_requirements(request: Document) -> Iterator[str]:
    """A group has either InstanceType or InstanceRequirements.

    Source: botocore's model, text of InstanceRequirements.
    """
    for name, group in _groups(request):
        if ("InstanceType" in group) == ("InstanceRequirements" in group):
            yield f"Instance group {name} needs either InstanceType or InstanceRequirements"


@rule("request", *_BOTH)
def lifecycle_script_has_source(request: Document) -> Iterator[str]:
    """A lifecycle script needs SourceS3Uri, and a source, s3://BUCKET/PREFIX, at least one script.

    Source: botocore's model, texts of ClusterLifeCycleConfig. That https:// is not fetched is
    hpresume's.
    """
    for name, group in _groups(request):
        config = group.get("LifeCycleConfig", {})
        scripts = [key for key in ("OnCreate", "OnInitComplete") if key in config]
        if config and not ("SourceS3Uri" in config and scripts):
            yield (
                f"LifeCycleConfig of instance group {name} needs SourceS3Uri "
                "and OnCreate or OnInitComplete"
            )
        elif config and not config["SourceS3Uri"].startswith("s3://"):
            yield (
                f"SourceS3Uri of instance group {name} has to be s3://BUCKET/PREFIX, not "
                f"{config['SourceS3Uri'][:64]}"
            )


@rule("request", *_BOTH)
def lifecycle_script_is_below_source(request: Document) -> Iterator[str]:
    """OnCreate and OnInitComplete are paths below SourceS3Uri.

    Source: botocore's model: "file name of the entrypoint script … under SourceS3Uri"; that none
    leads out of it is hpresume's.
    """
    for name, group in _groups(request):
        for key in ("OnCreate", "OnInitComplete"):
            script = group.get("LifeCycleConfig", {}).get(key)
            if script is not None and not _is_below(script):
                yield (
                    f"LifeCycleConfig.{key} of instance group {name} has to be a file "
                    "below SourceS3Uri"
                )


def _is_below(script: str) -> bool:
    path = PurePosixPath(script)
    return (
        script.isprintable()
        and not path.is_absolute()
        and ".." not in path.parts
        and bool(path.name)
    )


@rule("request", *_BOTH)
def one_mount_of_each_kind(request: Document) -> Iterator[str]:
    """A group mounts at most one FSx for Lustre and one FSx for OpenZFS file system.

    Source: AWS documentation, sagemaker-hyperpod-ref (FSx mounts).
    """
    for name, group in _groups(request):
        kinds = Counter(k for entry in group.get("InstanceStorageConfigs", ()) for k in entry)
        for kind in ("FsxLustreConfig", "FsxOpenZfsConfig"):
            if kinds[kind] > 1:
                yield f"Instance group {name} has {kinds[kind]} {kind}: at most one"


@rule("request", *_BOTH)
def volume_size_or_root(request: Document) -> Iterator[str]:
    """A root volume has a key and no size; any other volume has a size.

    Source: botocore's model, text of ClusterEbsVolumeConfig.RootVolume.
    """
    for name, group in _groups(request):
        for entry in group.get("InstanceStorageConfigs", ()):
            volume = entry.get("EbsVolumeConfig")
            if volume is None:
                continue
            if volume.get("RootVolume"):
                if "VolumeSizeInGB" in volume or "VolumeKmsKeyId" not in volume:
                    yield (
                        f"EbsVolumeConfig of instance group {name}: with RootVolume, "
                        "VolumeKmsKeyId is needed and VolumeSizeInGB is not allowed"
                    )
            elif "VolumeSizeInGB" not in volume:
                yield f"EbsVolumeConfig of instance group {name} needs VolumeSizeInGB"


@rule("request", *_BOTH)
def capacity_is_of_one_kind(request: Document) -> Iterator[str]:
    """CapacityRequirements name Spot or OnDemand, not both.

    Source: botocore's model, CapacityType of a node is one of the two.
    """
    for name, group in _groups(request):
        if len(group.get("CapacityRequirements", ())) > 1:
            yield f"CapacityRequirements of instance group {name}: Spot or OnDemand, not both"
