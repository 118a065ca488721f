"""Events and operations of a cluster."""

from __future__ import annotations

from typing import Any

from hpresume.api import render
from hpresume.api.handlers.call import Call
from hpresume.provision.service import EventQuery, OperationQuery


def list_events(call: Call) -> dict[str, Any]:
    """A page of events, newest first."""
    cluster = call.service.cluster(call.cluster_ref)
    page = call.service.events(
        cluster.arn,
        EventQuery(
            limit=call.limit,
            descending=call.descending(default=True),
            after=call.start(cluster.arn),
            time_after=call.time("EventTimeAfter"),
            time_before=call.time("EventTimeBefore"),
            group=call.text("InstanceGroupName"),
            instance_id=call.text("NodeId"),
            resource_type=call.text("ResourceType"),
            operation_id=call.text("OperationId"),
        ),
    )
    return call.answer("Events", page, [render.event(cluster, e) for e in page.items], cluster.arn)


def describe_event(call: Call) -> dict[str, Any]:
    """One event with its metadata."""
    cluster = call.service.cluster(call.cluster_ref)
    record = call.service.event(cluster.arn, call.text("EventId"))
    return {"EventDetails": render.event_details(cluster, record)}


def list_operations(call: Call) -> dict[str, Any]:
    """A page of operations, newest first."""
    arn = call.service.cluster(call.cluster_ref).arn
    page = call.service.operations(
        arn,
        OperationQuery(
            limit=call.limit,
            descending=call.descending(default=True),
            after=call.start(arn),
            created_after=call.time("CreationTimeAfter"),
            created_before=call.time("CreationTimeBefore"),
            status=call.text("Status"),
            type=call.text("Type"),
        ),
    )
    items = [render.operation(arn, record) for record in page.items]
    return call.answer("ClusterOperationSummaries", page, items, arn)


def describe_operation(call: Call) -> dict[str, Any]:
    """One operation with what it changes."""
    arn = call.service.cluster(call.cluster_ref).arn
    record = call.service.operation(arn, call.text("OperationId"))
    return {**render.operation(arn, record), **record.details}
