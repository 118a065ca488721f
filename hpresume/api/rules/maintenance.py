"""Rules of StartClusterHealthCheck and UpdateClusterSoftware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpresume.api.rules.registry import rule
from hpresume.provision.service import ClusterRecord, Document


@rule("cluster", "StartClusterHealthCheck")
def checks_need_service(_request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """Deep health checks run in a cluster that is InService, one request at a time.

    Source: AWS documentation, ...-resiliency-slurm-deep-health-checks (one active request).
    """
    if cluster.status != "InService" and cluster.status != "Deleting":
        yield f"Cluster {cluster.name} is {cluster.status}: it has to be InService"
    if cluster.health_check_active:
        yield f"Cluster {cluster.name} has an active health check: wait until it is Done"


@rule("cluster", "StartClusterHealthCheck")
def checks_are_for_compute(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """Deep health checks are for Compute groups of the cluster.

    Source: AWS documentation, ...-resiliency-slurm-deep-health-checks (worker nodes only).
    """
    for entry in request["DeepHealthCheckConfigurations"]:
        name = entry["InstanceGroupName"]
        group = cluster.group(name)
        if group is None:
            yield f"Cluster {cluster.name} has no instance group {name}"
        elif group.spec.node_type != "Compute":
            yield f"Instance group {name} is {group.spec.node_type}: only Compute nodes are checked"


def merged_checks(configurations: tuple[Document, ...]) -> tuple[Document, ...]:
    """One configuration for each group: all instances that are named, and all checks.

    No instances named means all of the group. Source: AWS documentation of StartClusterHealthCheck:
    overlapping configurations are one operation.
    """
    merged: dict[str, Document] = {}
    for entry in configurations:
        name = entry["InstanceGroupName"]
        known = merged.get(name, entry)
        ids = dict.fromkeys((*known.get("InstanceIds", ()), *entry.get("InstanceIds", ())))
        everyone = "InstanceIds" not in known or "InstanceIds" not in entry
        checks = dict.fromkeys((*known["DeepHealthChecks"], *entry["DeepHealthChecks"]))
        merged[name] = {
            "InstanceGroupName": name,
            **({} if everyone else {"InstanceIds": list(ids)}),
            "DeepHealthChecks": list(checks),
        }
    return tuple(merged.values())


@rule("request", "UpdateClusterSoftware")
def batch_size_is_possible(request: Document) -> Iterator[str]:
    """A batch size in percent is at most 100.

    Source: botocore's model, text of CapacitySizeConfig.
    """
    policy = request.get("DeploymentConfig", {}).get("RollingUpdatePolicy", {})
    for name in ("MaximumBatchSize", "RollbackMaximumBatchSize"):
        size = policy.get(name, {})
        if size.get("Type") == "CAPACITY_PERCENTAGE" and size["Value"] > 100:
            yield f"{name}: {size['Value']} percent is more than 100"


@rule("request", "UpdateClusterSoftware")
def updated_groups_differ(request: Document) -> Iterator[str]:
    """Each group is named once.

    Source: botocore's model, UpdateClusterSoftwareInstanceGroupSpecification.
    """
    names = Counter(entry["InstanceGroupName"] for entry in request.get("InstanceGroups", ()))
    for name, times in names.items():
        if times > 1:
            yield f"Instance group {name} is named {times} times"


@rule("request", "UpdateClusterSoftware")
def one_image_is_named(request: Document) -> Iterator[str]:
    """ImageId for all groups, or an ImageReleaseVersion for a group, not both.

    Source: hpresume; the model leaves open which of the two would win.
    """
    versions = [e for e in request.get("InstanceGroups", ()) if "ImageReleaseVersion" in e]
    if "ImageId" in request and versions:
        yield "ImageId and ImageReleaseVersion contradict each other: give one of them"


@rule("cluster", "UpdateClusterSoftware")
def custom_image_is_named(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """A group with an image of its own (``ami-…``) is updated with an ImageId, or ``default``.

    Source: botocore's model, text of UpdateClusterSoftwareRequest.ImageId.
    """
    if "ImageId" in request:
        return
    named = {e["InstanceGroupName"]: e for e in request.get("InstanceGroups", ())}
    for group in cluster.groups:
        image = str(group.details.get("CurrentImageId", ""))
        entry = named.get(group.spec.name, {} if not named else None)
        if image and entry is not None and "ImageReleaseVersion" not in entry:
            yield f"Instance group {group.spec.name} has the image {image}: name an ImageId"


@rule("cluster", "UpdateClusterSoftware", error="ConflictException")
def software_needs_service(_request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """Software is updated in a cluster that is InService, one update at a time.

    Source: botocore's model, ClusterStatus SystemUpdating; AWS documentation: InService >
    SystemUpdating > InService.
    """
    if cluster.status not in ("InService", "Deleting"):
        yield f"Cluster {cluster.name} is {cluster.status}: it has to be InService"


@rule("cluster", "UpdateClusterSoftware", error="ConflictException")
def software_waits_for_min_count(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """No group is updated that waits for its MinCount, is updated already or is being deleted.

    Source: seed 004, "Status of the instance group during MinCount operations".
    """
    named = {entry["InstanceGroupName"] for entry in request.get("InstanceGroups", ())}
    for group in cluster.groups:
        if named and group.spec.name not in named:
            continue
        if group.awaits_min_count:
            yield (
                f"Instance group {group.spec.name} is {group.status} until its MinCount of "
                f"{group.min_count} is reached"
            )
        elif group.status == "SystemUpdating" or (named and group.status == "Deleting"):
            yield f"Instance group {group.spec.name} is {group.status}"


@rule("cluster", "UpdateClusterSoftware")
def updated_groups_exist(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """The groups to update are the cluster's.

    Source: botocore's model, text of InstanceGroupName.
    """
    for entry in request.get("InstanceGroups", ()):
        if cluster.group(entry["InstanceGroupName"]) is None:
            yield f"Cluster {cluster.name} has no instance group {entry['InstanceGroupName']}"
