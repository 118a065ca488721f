"""Statuses of cluster, groups and operations: pure, from counts and the clock."""

from __future__ import annotations

from dataclasses import replace

from hpresume.provision.draft import Draft
from hpresume.provision.model import (
    ClusterStatus,
    Counts,
    Group,
    GroupStatus,
    NodeType,
    Operation,
    OperationDetail,
    OperationStatus,
)
from hpresume.provision.policy import Policy


def settle_groups(draft: Draft, policy: Policy) -> None:
    """MinCount: groups that reached theirs are InService, late ones go back."""
    up = _counts(draft)
    for group in list(draft.groups.values()):
        if not group.in_flux:
            continue
        if up.get(group.name, 0) >= group.minimum:
            _reached(draft, group)
        elif draft.now >= _deadline(draft, group, policy):
            _roll_back(draft, group)


def settle_cluster(draft: Draft) -> None:
    """InService once a controller is up, and a login node where there is such a group."""
    status = draft.cluster.status
    if status not in (ClusterStatus.CREATING, ClusterStatus.UPDATING):
        return
    up = _counts(draft)
    wanted = [
        group
        for group in draft.groups.values()
        if group.node_type is NodeType.CONTROLLER
        or (group.node_type is NodeType.LOGIN and group.target > 0)
    ]
    if wanted and all(up.get(group.name, 0) > 0 for group in wanted):
        draft.set_cluster(status=ClusterStatus.IN_SERVICE, failure="")
        word = "creation" if status is ClusterStatus.CREATING else "update"
        draft.tell_cluster(f"Cluster {draft.cluster.name} {word} completed successfully")


def settle_operations(draft: Draft) -> None:
    """Operations whose groups have what they asked for are done."""
    if not draft.operations:
        return
    up = _counts(draft)
    total: dict[str, int] = {}
    for node in draft.nodes.values():
        total[node.group] = total.get(node.group, 0) + 1
    for operation in list(draft.operations.values()):
        details = tuple(
            replace(detail, status=OperationStatus.DONE)
            if detail.status is OperationStatus.IN_PROGRESS and _is_done(draft, detail, up, total)
            else detail
            for detail in operation.details
        )
        if details != operation.details:
            draft.put_operation(closed(replace(operation, details=details)))
            for before, after in zip(operation.details, details, strict=True):
                if after.status is not before.status:
                    _tell_done(draft, operation, after)


def _tell_done(draft: Draft, operation: Operation, detail: OperationDetail) -> None:
    group = draft.groups.get(detail.group)
    if group is None or group.status is GroupStatus.DELETING:
        return  # the deletion has an event of its own
    what = "creation" if group.created_at == operation.created_at else "scaling"
    draft.tell_group(
        replace(group, operation=operation.operation_id),
        f"Instance Group {group.name} {what} in Cluster {draft.cluster.name} "
        "completed successfully",
    )


def closed(operation: Operation) -> Operation:
    """The operation with the status that its groups give it."""
    states = {detail.status for detail in operation.details}
    if OperationStatus.IN_PROGRESS in states:
        return operation
    done = OperationStatus.DONE in states or not states
    return replace(operation, status=OperationStatus.DONE if done else OperationStatus.SUPERSEDED)


def supersede(
    draft: Draft, groups: frozenset[str], by: str, *, only_reductions: bool = False
) -> None:
    """A newer request sets other targets: what older ones wanted there is void.

    Additions add up: they void reductions only.
    """
    for operation in list(draft.operations.values()):
        if operation.operation_id == by:
            continue
        details = tuple(
            replace(detail, status=OperationStatus.SUPERSEDED)
            if detail.group in groups
            and detail.status is OperationStatus.IN_PROGRESS
            and (not only_reductions or detail.desired.target < detail.original.target)
            else detail
            for detail in operation.details
        )
        if details != operation.details:
            draft.put_operation(closed(replace(operation, details=details)))


def _counts(draft: Draft) -> dict[str, int]:
    up: dict[str, int] = {}
    for node in draft.nodes.values():
        if node.is_up:
            up[node.group] = up.get(node.group, 0) + 1
    return up


def _is_done(
    draft: Draft, detail: OperationDetail, up: dict[str, int], total: dict[str, int]
) -> bool:
    group = draft.groups.get(detail.group)
    if group is None:
        return True
    enough = up.get(detail.group, 0) >= detail.desired.target
    return enough and (
        detail.desired.target >= detail.original.target
        or total.get(detail.group, 0) <= detail.desired.target
    )


def _deadline(draft: Draft, group: Group, policy: Policy) -> float:
    """When the wait for MinCount ends.

    Not before the controller has come up: until then the group was not allowed to start. A
    controller group has no deadline: without it there is no cluster to go back to, and its
    failures have rules of their own.
    """
    if group.node_type is NodeType.CONTROLLER or draft.cluster.controller_up_at is None:
        return float("inf")
    begun = max(group.minimum_since, draft.cluster.controller_up_at)
    return begun + policy.minimum_timeout_s


def _reached(draft: Draft, group: Group) -> None:
    group = draft.set_group(
        group.name,
        status=GroupStatus.IN_SERVICE,
        good=Counts(group.minimum, group.target),
    )
    if group.minimum:
        draft.tell_group(
            group,
            f"Minimum capacity reached: InstanceGroup {group.name} in Cluster "
            f"{draft.cluster.name} has its MinCount of {group.minimum} and is InService",
        )


def _roll_back(draft: Draft, group: Group) -> None:
    back = group.good or Counts(0, 0)
    failed = f"MinCount {group.minimum} was not reached in time"
    supersede(draft, frozenset({group.name}), by="")
    group = draft.set_group(
        group.name,
        status=GroupStatus.IN_SERVICE,
        minimum=back.minimum,
        target=back.target,
        good=back,
    )
    draft.tell_group(
        group,
        f"Rollback initiated: InstanceGroup {group.name} in Cluster {draft.cluster.name} goes back "
        f"to MinCount {back.minimum} and TargetCount {back.target}",
        level="Warn",
        failure=failed,
    )
