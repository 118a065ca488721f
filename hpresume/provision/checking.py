"""Deep health checks of a cluster's nodes on demand: pure, on a draft.

A node that is to be checked has the operation's id until its result is there. One group after
the other is given to ``hpresume deep-check``, which takes idle nodes, waits for jobs for a
while, and marks what is bad in Slurm; node recovery takes it from there, as the cluster's
NodeRecovery says, as soon as the node is out of our hands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from hpresume.errors import ConflictError, RequestRefusedError
from hpresume.provision.draft import Draft
from hpresume.provision.model import (
    CheckedGroup,
    ClusterStatus,
    Node,
    NodeType,
    Operation,
    OperationKind,
    OperationStatus,
)
from hpresume.provision.policy import Policy, pause
from hpresume.provision.service import Document

#: ``DeepHealthCheckType``: those that there are checks for.
STRESS, CONNECTIVITY = "InstanceStress", "InstanceConnectivity"


class Verdict(StrEnum):
    """What a deep check says of one node."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """A verdict, and why."""

    verdict: Verdict
    said: str = ""


@dataclass(frozen=True)
class Run:
    """Nodes of one group that are to be checked now, by name."""

    operation: str
    group: str
    checks: tuple[str, ...]
    nodes: tuple[str, ...]


_EVENTS = {
    Verdict.PASSED: ("Info", "has passed"),
    Verdict.FAILED: ("Error", "has failed"),
    Verdict.SKIPPED: ("Warn", "was skipped"),
    Verdict.UNKNOWN: ("Warn", "has no result"),
}


def start(draft: Draft, configurations: Iterable[Document], operation_id: str) -> None:
    """StartClusterHealthCheck. Raises RequestRefusedError, ConflictError."""
    if draft.cluster.status is not ClusterStatus.IN_SERVICE:
        raise ConflictError(f"Cluster {draft.cluster.name} is {draft.cluster.status}")
    if any(op.kind is OperationKind.DEEP_HEALTH_CHECK for op in draft.operations.values()):
        raise ConflictError(f"Cluster {draft.cluster.name} has an active health check")
    parts: list[CheckedGroup] = []
    chosen: list[Node] = []
    for entry in configurations:
        part = _part(draft, entry)
        parts.append(part)
        chosen += _nodes(draft, part)
    operation = Operation(
        operation_id,
        draft.now,
        (),
        kind=OperationKind.DEEP_HEALTH_CHECK,
        checks=tuple(parts),
    )
    ready = [node for node in chosen if node.is_up]
    if not ready:
        raise RequestRefusedError("DeepHealthCheckConfigurations: none of the nodes is Running")
    for part in parts:
        group = replace(draft.groups[part.group], operation=operation_id)
        draft.tell_group(
            group,
            f"InstanceGroup {group.name} deep health check started successfully in Cluster "
            f"{draft.cluster.name}",
        )
    for node in chosen:
        if node.is_up:
            draft.set_node(node, checking=operation_id)
        else:
            _tell(draft, node, operation_id, Finding(Verdict.SKIPPED, "it is not Running"))
    draft.put_operation(operation)


def advance(draft: Draft, held: frozenset[str]) -> tuple[Run, ...]:
    """Leave out what cannot be checked any more, end what is through; the runs that are due."""
    return tuple(
        run
        for operation in list(draft.operations.values())
        if operation.kind is OperationKind.DEEP_HEALTH_CHECK
        and (run := _next(draft, operation, held)) is not None
    )


def ended(run: Run, findings: Mapping[str, Finding]) -> Callable[[Draft, Policy], None]:
    """A run has told what it found, by node name."""

    def apply(draft: Draft, _policy: Policy) -> None:
        for node in _under_check(draft, run.operation):
            if node.name in run.nodes and node.group == run.group:
                finding = findings.get(node.name, Finding(Verdict.SKIPPED, "it was left out"))
                _note(draft, node, run.operation, finding)

    return apply


def not_run(run: Run, problem: str) -> Callable[[Draft, Policy], None]:
    """A run came to nothing: it is tried again, for as long as a check may take."""

    def apply(draft: Draft, policy: Policy) -> None:
        operation = draft.operations.get(run.operation)
        if operation is None:
            return
        if draft.now - operation.created_at >= policy.check_limit_s:
            everyone = dict.fromkeys(run.nodes, Finding(Verdict.SKIPPED, problem))
            ended(run, everyone)(draft, policy)
            return
        failures = operation.failures + 1
        wait = pause(policy, run.operation, failures)
        draft.put_operation(replace(operation, failures=failures, not_before=draft.now + wait))

    return apply


def _part(draft: Draft, entry: Document) -> CheckedGroup:
    name = str(entry["InstanceGroupName"])
    group = draft.groups.get(name)
    if group is None:
        raise RequestRefusedError(f"InstanceGroup {name}: the cluster has no such group")
    if group.node_type is not NodeType.COMPUTE:
        raise RequestRefusedError(f"InstanceGroup {name}: only Compute nodes are checked")
    checks = tuple(str(check) for check in entry["DeepHealthChecks"])
    for check in checks:
        if check not in (STRESS, CONNECTIVITY):
            raise RequestRefusedError(
                f"DeepHealthChecks: there is no {check} here; use {STRESS}, {CONNECTIVITY}"
            )
    return CheckedGroup(name, checks, tuple(entry.get("InstanceIds", ())))


def _nodes(draft: Draft, part: CheckedGroup) -> list[Node]:
    nodes = [node for node in draft.of(part.group) if not node.is_removed]
    if not part.instance_ids:
        return nodes
    by_id = {node.instance_id: node for node in nodes if node.machine_id}
    for instance in part.instance_ids:
        if instance not in by_id:
            raise RequestRefusedError(f"InstanceGroup {part.group} has no instance {instance}")
    return [by_id[instance] for instance in part.instance_ids]


def _next(draft: Draft, operation: Operation, held: frozenset[str]) -> Run | None:
    for node in _under_check(draft, operation.operation_id):
        if node.name in held:
            why = "node recovery has it"
        elif not node.is_up:
            why = "it is not Running any more"
        else:
            continue
        _note(draft, node, operation.operation_id, Finding(Verdict.SKIPPED, why))
    left = _under_check(draft, operation.operation_id)
    if not left:
        draft.put_operation(replace(operation, status=OperationStatus.DONE))
        draft.tell_cluster(f"Cluster {draft.cluster.name} deep health check completed successfully")
        return None
    if draft.now < operation.not_before:
        return None
    part = next(p for p in operation.checks if any(node.group == p.group for node in left))
    names = tuple(node.name for node in left if node.group == part.group)
    return Run(operation.operation_id, part.group, part.checks, names)


def _under_check(draft: Draft, operation_id: str) -> list[Node]:
    return [node for node in draft.nodes.values() if node.checking == operation_id]


def _note(draft: Draft, node: Node, operation_id: str, finding: Finding) -> None:
    message = node.message
    if finding.verdict is Verdict.FAILED:
        message = f"Deep health check failed: {finding.said}"
    elif finding.verdict is Verdict.PASSED:
        message = ""
    node = draft.set_node(node, checking="", message=message)
    _tell(draft, node, operation_id, finding)


def _tell(draft: Draft, node: Node, operation_id: str, finding: Finding) -> None:
    level, words = _EVENTS[finding.verdict]
    draft.tell_node(
        replace(node, operation=operation_id),
        f"Deep health check of EC2 Instance {node.instance_id or node.logical_id} "
        f"{draft.where(node)} {words}",
        level=level,
        failure=finding.said,
    )
