"""Rules of UpdateCluster and DeleteCluster about the cluster as it is."""

from __future__ import annotations

from collections.abc import Iterator

from hpresume.api.rules.cluster import controller_problems
from hpresume.api.rules.registry import rule
from hpresume.provision.service import ClusterRecord, Document

#: Most groups of a cluster; the model's limit of a request, held for the cluster too.
MAX_GROUPS = 100

#: What an update has to repeat unchanged.
_FIXED = ("InstanceType", "ExecutionRole", "ThreadsPerCore")


@rule(
    "cluster",
    "UpdateCluster",
    "UpdateClusterSoftware",
    "BatchAddClusterNodes",
    "BatchDeleteClusterNodes",
    "BatchRebootClusterNodes",
    "BatchReplaceClusterNodes",
    "StartClusterHealthCheck",
    error="ConflictException",
)
def cluster_is_not_leaving(_request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """Nothing but DeleteCluster is asked of a cluster that is being deleted.

    Source: botocore's model, ClusterStatus Deleting; ConflictException where the operation
    declares it, else ValidationException.
    """
    if cluster.status == "Deleting":
        yield f"Cluster {cluster.name} is being deleted"


@rule("cluster", "UpdateCluster", error="ConflictException")
def groups_are_not_leaving(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """A group that is being deleted cannot be changed until it is gone.

    Source: botocore's model, InstanceGroupStatus Deleting.
    """
    for spec in request.get("InstanceGroups", ()):
        group = cluster.group(spec["InstanceGroupName"])
        if group is not None and group.status == "Deleting":
            yield f"Instance group {group.spec.name} is being deleted"


@rule("cluster", "UpdateCluster")
def fixed_members_stay(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """InstanceType, ExecutionRole and ThreadsPerCore of a group stay as they are, unless the
    cluster is Failed; the node type always stays. InstanceRequirements may change.

    Source: AWS documentation, ...-operate-slurm-cli-command and sagemaker-hyperpod-ref. Seed 004
    names another instance type as the remedy of a Failed cluster.
    """
    for spec in request.get("InstanceGroups", ()):
        group = cluster.group(spec["InstanceGroupName"])
        if group is None:
            continue
        had = group.spec.document
        fixed = () if cluster.status == "Failed" else _FIXED
        for name in fixed:
            if had.get(name) != spec.get(name):
                yield (
                    f"{name} of instance group {group.spec.name} cannot change: "
                    f"it is {had.get(name, 'not set')}"
                )
        node_type = spec.get("SlurmConfig", {}).get("NodeType")
        if node_type is not None and node_type != group.spec.node_type:
            yield (
                f"NodeType of instance group {group.spec.name} cannot change: "
                f"it is {group.spec.node_type}"
            )


@rule("cluster", "UpdateCluster")
def deleted_groups_exist(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """InstanceGroupsToDelete names groups of the cluster, each once, and none that is updated.

    Source: botocore's model, text of InstanceGroupsToDelete.
    """
    updated = {spec["InstanceGroupName"] for spec in request.get("InstanceGroups", ())}
    seen: set[str] = set()
    for name in request.get("InstanceGroupsToDelete", ()):
        if cluster.group(name) is None:
            yield f"Cluster {cluster.name} has no instance group {name} to delete"
        elif name in updated or name in seen:
            yield f"Instance group {name} is to be deleted, and is named another time"
        seen.add(name)


@rule("cluster", "UpdateCluster")
def controller_group_stays(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """After the update there is exactly one Controller group and at most one Login group.

    Source: AWS documentation, sagemaker-hyperpod-ref and ...-slurm-api-config-migration.
    """
    leaving = set(request.get("InstanceGroupsToDelete", ()))
    types: dict[str, str | None] = {
        group.spec.name: group.spec.node_type
        for group in cluster.groups
        if group.status != "Deleting" and group.spec.name not in leaving
    }
    for spec in request.get("InstanceGroups", ()):
        types[spec["InstanceGroupName"]] = spec.get("SlurmConfig", {}).get("NodeType")
    yield from controller_problems(cluster.name, list(types.values()))


@rule("cluster", "UpdateCluster", error="ResourceLimitExceeded")
def groups_within_limit(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """A cluster has at most 100 instance groups.

    Source: botocore's model, largest ClusterInstanceGroupSpecifications.
    """
    names = {group.spec.name for group in cluster.groups}
    names |= {spec["InstanceGroupName"] for spec in request.get("InstanceGroups", ())}
    names -= set(request.get("InstanceGroupsToDelete", ()))
    if len(names) > MAX_GROUPS:
        yield (
            f"Cluster {cluster.name} would have {len(names)} instance groups: at most {MAX_GROUPS}"
        )
