"""CreateCluster, UpdateCluster, DescribeCluster, DeleteCluster, ListClusters."""

from __future__ import annotations

from typing import Any

from hpresume.api import render
from hpresume.api.handlers.call import Call
from hpresume.api.rules.groups import min_instance_count
from hpresume.provision.service import (
    ClusterQuery,
    ClusterSpec,
    ClusterUpdate,
    Document,
    GroupSpec,
)

_APART = frozenset({"ClusterName", "InstanceGroups", "InstanceGroupsToDelete", "Tags"})


def _groups(request: Document) -> tuple[GroupSpec, ...]:
    return tuple(
        GroupSpec({**group, "MinInstanceCount": min_instance_count(group)})
        for group in request.get("InstanceGroups", ())
    )


def _rest(request: Document) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in _APART}


def create(call: Call) -> dict[str, Any]:
    """Record a new cluster; it is Creating when the answer comes."""
    request = call.request
    defaults = {"Orchestrator": {"Slurm": {}}, "NodeRecovery": "Automatic"}
    spec = ClusterSpec(
        name=request["ClusterName"],
        document={**defaults, **_rest(request)},
        groups=_groups(request),
        tags={tag["Key"]: tag["Value"] for tag in request.get("Tags", ())},
    )
    return {"ClusterArn": call.service.create_cluster(spec)}


def update(call: Call) -> dict[str, Any]:
    """Record new targets; groups that are not named stay as they are."""
    change = ClusterUpdate(
        document=_rest(call.request),
        groups=_groups(call.request),
        delete=tuple(call.request.get("InstanceGroupsToDelete", ())),
    )
    return {"ClusterArn": call.service.update_cluster(call.cluster_ref, change, call.guard)}


def describe(call: Call) -> dict[str, Any]:
    """The cluster with its groups."""
    return render.cluster(call.service.cluster(call.cluster_ref))


def delete(call: Call) -> dict[str, Any]:
    """Start the deletion; asking again changes nothing."""
    return {"ClusterArn": call.service.delete_cluster(call.cluster_ref, call.guard)}


def list_all(call: Call) -> dict[str, Any]:
    """A page of clusters."""
    page = call.service.clusters(
        ClusterQuery(
            limit=call.limit,
            sort_by=call.text("SortBy") or "CREATION_TIME",
            descending=call.descending(default=False),
            after=call.start(),
            created_after=call.time("CreationTimeAfter"),
            created_before=call.time("CreationTimeBefore"),
            name_contains=call.text("NameContains"),
            training_plan=call.text("TrainingPlanArn"),
        )
    )
    return call.answer("ClusterSummaries", page, [render.cluster_summary(c) for c in page.items])
