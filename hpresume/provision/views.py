"""Records as the API's service protocol has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hpresume.provision.model import (
    Cluster,
    Counts,
    Group,
    Leave,
    Node,
    Operation,
    OperationKind,
    OperationStatus,
    Phase,
    State,
)
from hpresume.provision.service import (
    ClusterRecord,
    EventRecord,
    GroupRecord,
    GroupSpec,
    NodeRecord,
    OperationRecord,
)
from hpresume.provision.software import Stage, members_of
from hpresume.provision.tables import EventRow
from hpresume.provision.updating import software_of

#: ``ClusterInstanceStatus`` of each phase, for a node that stays.
_STATUS = {
    Phase.WAITING: "Pending",
    Phase.LAUNCHING: "Pending",
    Phase.BOOTING: "Pending",
    Phase.CONFIGURING: "Pending",
    Phase.LIFECYCLE: "Pending",
    Phase.JOINING: "Pending",
    Phase.RUNNING: "Running",
    Phase.REBOOTING: "Pending",
    Phase.DRAINING: "ShuttingDown",
    Phase.TERMINATING: "ShuttingDown",
}


def node_status(node: Node) -> str:
    """``ClusterInstanceStatus`` of a node.

    A node between two tries, after one that failed with a machine, is a ``Failure``; one that is
    replaced is ``Pending``, or ``SystemUpdating`` where that is for its software. A wait for
    capacity is ``Pending`` too: nothing failed that was there.
    """
    if node.leave is Leave.REMOVE:
        return "ShuttingDown"
    if node.updating:
        return "SystemUpdating"
    if node.checking:
        return "DeepHealthCheckInProgress"
    if node.leave is Leave.REPLACE:
        return "Failure" if node.failures else "Pending"
    return _STATUS[node.phase]


def cluster_record(state: State) -> ClusterRecord:
    """A cluster with its groups."""
    cluster: Cluster = state.cluster
    current: dict[str, int] = {}
    updated: dict[str, int] = {}
    for node in state.nodes.values():
        if node.is_up:
            current[node.group] = current.get(node.group, 0) + 1
            update = state.groups[node.group].update
            if update is not None and node.revision == update.goal.revision:
                updated[node.group] = updated.get(node.group, 0) + 1
    scaling: dict[str, int] = {}
    for operation in state.operations.values():
        for detail in operation.details:
            if detail.status is OperationStatus.IN_PROGRESS:
                scaling[detail.group] = scaling.get(detail.group, 0) + 1
    return ClusterRecord(
        arn=cluster.arn,
        name=cluster.name,
        status=cluster.status.value,
        created_at=cluster.created_at,
        groups=tuple(
            _group_record(
                group,
                current.get(group.name, 0),
                scaling.get(group.name, 0),
                updated.get(group.name, 0),
            )
            for group in state.groups.values()
        ),
        document=cluster.spec,
        failure_message=cluster.failure,
        health_check_active=any(
            operation.kind is OperationKind.DEEP_HEALTH_CHECK
            for operation in state.operations.values()
        ),
    )


def node_record(state: State, node: Node) -> NodeRecord:
    """One node."""
    group = state.groups[node.group]
    return NodeRecord(
        logical_id=node.logical_id,
        name=node.name,
        group=node.group,
        instance_type=group.instance_type,
        status=node_status(node),
        created_at=node.created_at,
        instance_id=node.instance_id,
        launched_at=node.launched_at if node.machine_id else 0.0,
        message=node.message,
        address=node.address,
        hostname=node.name,
        updated_at=node.updated_at,
        details=members_of(node.image, "Current") | members_of(software_of(group).image, "Desired"),
    )


def operation_record(operation: Operation) -> OperationRecord:
    """One operation."""
    if operation.kind is OperationKind.DEEP_HEALTH_CHECK:
        return _check_record(operation)
    return OperationRecord(
        operation_id=operation.operation_id,
        type="Scaling",
        status=operation.status.value,
        created_at=operation.created_at,
        details={
            "ScalingDetails": [
                {
                    "InstanceGroupName": detail.group,
                    "Status": detail.status.value,
                    "Original": _counts(detail.original) | {"CurrentCount": detail.current},
                    "Desired": _counts(detail.desired),
                }
                for detail in operation.details
            ]
        },
    )


def _check_record(operation: Operation) -> OperationRecord:
    return OperationRecord(
        operation_id=operation.operation_id,
        type=operation.kind.value,
        status=operation.status.value,
        created_at=operation.created_at,
        details={
            "DeepHealthCheckDetails": [
                {
                    "InstanceGroupName": part.group,
                    "DeepHealthChecks": list(part.checks),
                    **({"InstanceIds": list(part.instance_ids)} if part.instance_ids else {}),
                }
                for part in operation.checks
            ]
        },
    )


def event_record(row: EventRow) -> EventRecord:
    """One event."""
    metadata: Mapping[str, Any] = row.details
    return EventRecord(
        event_id=row.event_id,
        resource_type=row.resource,
        time=row.time,
        description=row.description,
        level=row.level,
        group=row.instance_group,
        instance_id=row.instance_id,
        operation_id=row.operation,
        metadata=metadata,
    )


def _group_record(group: Group, current: int, scaling: int, updated: int) -> GroupRecord:
    return GroupRecord(
        spec=GroupSpec(group.spec),
        status=group.status.value,
        current_count=current,
        target_count=group.target,
        min_count=group.minimum,
        awaits_min_count=group.in_flux,
        scaling_operations=scaling,
        details=_software(group, updated),
    )


def _software(group: Group, updated: int) -> dict[str, Any]:
    """Members about the group's software; ``updated`` are the nodes that have the desired one."""
    update = group.update
    known: dict[str, Any] = members_of(group.software.image, "Current")
    if update is None:
        return known | members_of(group.software.image, "Desired")
    is_back = update.stage in (Stage.ROLLBACK_IN_PROGRESS, Stage.ROLLBACK_COMPLETE, Stage.FAILED)
    desired = group.software if is_back else update.goal
    known |= members_of(desired.image, "Desired")
    known |= {"SoftwareUpdateStatus": update.stage.value, "TargetStateCount": updated}
    if update.is_active and update.config:
        known["ActiveSoftwareUpdateConfig"] = dict(update.config)
    return known


def _counts(counts: Counts) -> dict[str, int]:
    values = asdict(counts)
    return {"TargetCount": values["target"], "MinCount": values["minimum"]}
