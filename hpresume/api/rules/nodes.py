"""Rules of the Batch operations and of DescribeClusterNode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from hpresume.api.rules.registry import rule, rules_of
from hpresume.provision.service import ClusterRecord, Document, GroupRecord, NodeRecord

#: Largest count of a group: the model's ClusterInstanceCount.
MAX_COUNT = 6758

#: Most nodes that one BatchAddClusterNodes adds: botocore's model, text of NodesToAdd.
MAX_ADDED = 50

#: Most ids of one BatchDeleteClusterNodes with logical ids: text of NodeLogicalIds.
MAX_LOGICAL = 50

#: Most nodes of one reboot or replacement: text of the operations.
MAX_RECOVERED = 25

_IDS = ("BatchDeleteClusterNodes", "BatchRebootClusterNodes", "BatchReplaceClusterNodes")


def _identifiers(request: Document) -> set[str]:
    return {*request.get("NodeIds", ()), *request.get("NodeLogicalIds", ())}


@rule("request", *_IDS)
def some_node_is_named(request: Document) -> Iterator[str]:
    """NodeIds or NodeLogicalIds, or both, name at least one node.

    Source: botocore's model, texts of NodeIds and NodeLogicalIds.
    """
    if not _identifiers(request):
        yield "NodeIds or NodeLogicalIds has to name at least one node"


@rule("request", "BatchDeleteClusterNodes")
def deletion_within_limit(request: Document) -> Iterator[str]:
    """With logical ids, a deletion names at most 50 nodes; instance ids alone up to the model's
    3,000.

    Source: botocore's model, text of NodeLogicalIds. Its 99 instance ids "without contacting
    Support" are a limit of AWS's accounts.
    """
    if request.get("NodeLogicalIds") and len(_identifiers(request)) > MAX_LOGICAL:
        yield f"NodeIds and NodeLogicalIds name more than {MAX_LOGICAL} nodes together"


@rule("request", "BatchRebootClusterNodes", "BatchReplaceClusterNodes")
def recovery_within_limit(request: Document) -> Iterator[str]:
    """At most 25 nodes are rebooted or replaced at a time.

    Source: botocore's model, texts of BatchRebootClusterNodes and BatchReplaceClusterNodes.
    """
    if len(_identifiers(request)) > MAX_RECOVERED:
        yield f"NodeIds and NodeLogicalIds name more than {MAX_RECOVERED} nodes together"


@rule("request", "DescribeClusterNode")
def one_id_of_a_node(request: Document) -> Iterator[str]:
    """Either NodeId or NodeLogicalId, not both.

    Source: botocore's model, text of NodeLogicalId.
    """
    if ("NodeId" in request) == ("NodeLogicalId" in request):
        yield "Either NodeId or NodeLogicalId is needed, and not both"


@rule("request", "BatchAddClusterNodes")
def addition_within_limit(request: Document) -> Iterator[str]:
    """At most 50 nodes are added at a time.

    Source: botocore's model, text of NodesToAdd.
    """
    total = sum(entry["IncrementTargetCountBy"] for entry in request["NodesToAdd"])
    if total > MAX_ADDED:
        yield f"NodesToAdd asks for {total} nodes: at most {MAX_ADDED}"


@rule("cluster", "BatchAddClusterNodes", error="ResourceLimitExceeded")
def count_within_limit(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """The target count of a group stays within the model's largest InstanceCount, 6,758.

    Source: botocore's model, ClusterInstanceCount.
    """
    added: dict[str, int] = {}
    for entry in request["NodesToAdd"]:
        name = entry["InstanceGroupName"]
        added[name] = added.get(name, 0) + entry["IncrementTargetCountBy"]
    for name, count in added.items():
        group = cluster.group(name)
        if group is not None and group.target_count + count > MAX_COUNT:
            yield (
                f"Instance group {name} would have {group.target_count + count} instances: "
                f"at most {MAX_COUNT}"
            )


@rule("cluster", "BatchReplaceClusterNodes")
def replacement_needs_service(_request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """Nodes are replaced in a cluster that is InService.

    Source: botocore's model, text of BatchReplaceClusterNodes; field notes.
    """
    if cluster.status not in ("InService", "Deleting"):
        yield f"Cluster {cluster.name} is {cluster.status}: it has to be InService"


@dataclass(frozen=True)
class AddProblem:
    """Why nodes are not added to a group: a BatchAddClusterNodesErrorCode."""

    code: str
    message: str


@rule("group", "BatchAddClusterNodes", error="InstanceGroupNotFound")
def group_to_add_to_exists(entry: Document, group: GroupRecord | None) -> AddProblem | None:
    """Nodes are added to a group of the cluster.

    Source: botocore's model, BatchAddClusterNodesErrorCode.
    """
    if group is None:
        return AddProblem(
            "InstanceGroupNotFound", f"no instance group {entry['InstanceGroupName']}"
        )
    return None


@rule("group", "BatchAddClusterNodes", error="InvalidInstanceGroupStatus")
def group_can_grow(_entry: Document, group: GroupRecord | None) -> AddProblem | None:
    """Nothing is added to a group that is being deleted or waits for its MinCount, nor a second
    controller.

    Source: seed 004, "Status of the instance group during MinCount operations" and
    "Prerequisites" (no multi-head). The code is the enum's; prose says InvalidInstanceGroupState.
    """
    if group is None:
        return None
    name = group.spec.name
    if group.status == "Deleting":
        why = "is being deleted"
    elif group.awaits_min_count:
        why = f"is {group.status} until its MinCount of {group.min_count} is reached"
    elif group.spec.node_type == "Controller":
        why = "is the Controller, which has one instance"
    else:
        return None
    return AddProblem("InvalidInstanceGroupStatus", f"instance group {name} {why}")


@rule("group", "BatchAddClusterNodes", error="IncompatibleInstanceTypes")
def added_types_are_the_groups(entry: Document, group: GroupRecord | None) -> AddProblem | None:
    """InstanceTypes of an addition are among the group's.

    Source: botocore's model, text of InstanceTypes and BatchAddClusterNodesErrorCode.
    """
    if group is None:
        return None
    others = [t for t in entry.get("InstanceTypes", ()) if t not in group.spec.instance_types]
    if others:
        return AddProblem(
            "IncompatibleInstanceTypes",
            f"instance group {group.spec.name} has no {', '.join(others)}",
        )
    return None


@rule("group", "BatchAddClusterNodes", error="IncompatibleAvailabilityZones")
def zones_are_not_chosen(entry: Document, group: GroupRecord | None) -> AddProblem | None:
    """AvailabilityZones cannot be chosen: a group's subnets decide where its nodes are.

    Source: hpresume; providers know no zones. The code is BatchAddClusterNodesErrorCode's.
    """
    if group is not None and entry.get("AvailabilityZones"):
        return AddProblem(
            "IncompatibleAvailabilityZones",
            f"nodes of instance group {group.spec.name} are placed by its subnets",
        )
    return None


def addition_problem(entry: Document, group: GroupRecord | None) -> AddProblem | None:
    """The first reason not to add nodes to a group."""
    for one in rules_of("group", "BatchAddClusterNodes"):
        problem: AddProblem | None = one.check(entry, group)
        if problem is not None:
            return problem
    return None


class Refusal(StrEnum):
    """Why a node is left alone, in a word; the operations have their own codes for it."""

    MISSING = "missing"
    STATUS = "status"
    IN_USE = "in use"


@dataclass(frozen=True)
class NodeProblem:
    """Why nothing is done with a node."""

    refusal: Refusal
    message: str


@rule("node", "BatchDeleteClusterNodes", "BatchReplaceClusterNodes", error="NodeIdInUse")
def controller_node_stays(cluster: ClusterRecord, node: NodeRecord) -> NodeProblem | None:
    """The Slurm controller is neither deleted nor replaced.

    Source: botocore's model, texts of NodeIds. Which code it gets is not said; "in use" fits.
    """
    group = cluster.group(node.group)
    if group is not None and group.spec.node_type == "Controller":
        return NodeProblem(Refusal.IN_USE, "The node is the Slurm controller")
    return None


@rule("node", "BatchDeleteClusterNodes", error="InvalidNodeStatus")
def min_count_comes_first(cluster: ClusterRecord, node: NodeRecord) -> NodeProblem | None:
    """No node is deleted while its group waits for its MinCount.

    Source: seed 004, "Status of the instance group during MinCount operations".
    """
    group = cluster.group(node.group)
    if group is not None and group.awaits_min_count:
        return NodeProblem(
            Refusal.STATUS,
            f"Instance group {node.group} is {group.status} until its MinCount of "
            f"{group.min_count} is reached",
        )
    return None


@rule("node", *_IDS, error="InvalidNodeStatus")
def node_is_not_leaving(_cluster: ClusterRecord, node: NodeRecord) -> NodeProblem | None:
    """Nothing is asked of a node that is being shut down.

    Source: botocore's model, ClusterInstanceStatus ShuttingDown.
    """
    if node.status == "ShuttingDown":
        return NodeProblem(Refusal.STATUS, "The node is being shut down")
    return None


#: Something is under way with the machine.
_UNSETTLED = ("Pending", "SystemUpdating", "DeepHealthCheckInProgress")


@rule("node", "BatchRebootClusterNodes", "BatchReplaceClusterNodes", error="InvalidInstanceStatus")
def node_has_settled(_cluster: ClusterRecord, node: NodeRecord) -> NodeProblem | None:
    """A node is rebooted or replaced when it has an instance and is neither Pending nor being
    updated or checked.

    Source: botocore's model, BatchRebootClusterNodesErrorCode InvalidInstanceStatus; which statuses
    are meant is hpresume's choice.
    """
    if not node.instance_id or node.status in _UNSETTLED:
        return NodeProblem(Refusal.STATUS, f"The node is {node.status}")
    return None


def node_problem(operation: str, cluster: ClusterRecord, node: NodeRecord) -> NodeProblem | None:
    """The first reason to leave a node alone."""
    for one in rules_of("node", operation):
        problem: NodeProblem | None = one.check(cluster, node)
        if problem is not None:
            return problem
    return None
