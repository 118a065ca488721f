"""ListClusterNodes and DescribeClusterNode."""

from __future__ import annotations

from typing import Any

from hpresume.api import render
from hpresume.api.handlers.call import Call
from hpresume.provision.service import NodeQuery


def list_all(call: Call) -> dict[str, Any]:
    """A page of nodes."""
    arn = call.service.cluster(call.cluster_ref).arn
    logical = bool(call.request.get("IncludeNodeLogicalIds", False))
    page = call.service.nodes(
        arn,
        NodeQuery(
            limit=call.limit,
            sort_by=call.text("SortBy") or "CREATION_TIME",
            descending=call.descending(default=False),
            after=call.start(arn),
            created_after=call.time("CreationTimeAfter"),
            created_before=call.time("CreationTimeBefore"),
            group_contains=call.text("InstanceGroupNameContains"),
            include_logical=logical,
        ),
    )
    items = [render.node_summary(node, with_logical_id=logical) for node in page.items]
    return call.answer("ClusterNodeSummaries", page, items, arn)


def describe(call: Call) -> dict[str, Any]:
    """One node, with what its group gives it."""
    cluster = call.service.cluster(call.cluster_ref)
    node = call.service.node(
        cluster.arn,
        instance_id=call.text("NodeId"),
        logical_id=call.text("NodeLogicalId"),
    )
    return {"NodeDetails": render.node_details(node, cluster.group(node.group))}
