"""A cluster service in memory, for tests of the protocol: records only, no provisioning.

Counts and nodes follow the requests at once (``settle`` gives the nodes their machines), so that
what the API does with records can be seen without an engine. The real service has its own tests,
and test_api_provisioner.py joins the two.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpresume.errors import RequestRefusedError, ResourceInUseError, ResourceNotFoundError
from hpresume.provision.arn import cluster_arn, new_cluster_id
from hpresume.provision.page import Page, page_of
from hpresume.provision.service import (
    AddedNodes,
    Addition,
    AdditionGuard,
    ClientToken,
    ClusterQuery,
    ClusterRecord,
    ClusterSpec,
    ClusterUpdate,
    Document,
    EventQuery,
    EventRecord,
    GroupRecord,
    GroupSpec,
    Guard,
    NodeAction,
    NodeJudge,
    NodeQuery,
    NodeRecord,
    OperationQuery,
    OperationRecord,
)

REGION = "us-west-2"
ACCOUNT = "111122223333"


@dataclass
class Kept:
    """Everything of one cluster."""

    record: ClusterRecord
    tags: Mapping[str, str]
    nodes: list[NodeRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    operations: list[OperationRecord] = field(default_factory=list)
    tokens: dict[str, tuple[str, list[str], tuple[Document, ...]]] = field(default_factory=dict)


class MemoryClusters:
    """``ClusterService`` on a dictionary; ``changes`` counts what was changed."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.kept: dict[str, Kept] = {}
        self.changes: list[str] = []
        self.now = now
        self._lock = threading.RLock()

    # reads

    def find(self, ref: str) -> Kept:
        for kept in self.kept.values():
            if ref in (kept.record.arn, kept.record.name):
                return kept
        raise ResourceNotFoundError(f"Cluster {ref} does not exist")

    def cluster(self, ref: str) -> ClusterRecord:
        return self.find(ref).record

    def clusters(self, query: ClusterQuery) -> Page[ClusterRecord]:
        found = [
            k.record
            for k in self.kept.values()
            if query.name_contains in k.record.name
            and _within(k.record.created_at, query.created_after, query.created_before)
            and (
                not query.training_plan
                or any(
                    g.spec.document.get("TrainingPlanArn") == query.training_plan
                    for g in k.record.groups
                )
            )
        ]
        by_name = query.sort_by == "NAME"
        return page_of(
            found,
            lambda c: (c.name if by_name else c.created_at, c.arn),
            limit=query.limit,
            after=query.after,
            descending=query.descending,
        )

    def nodes(self, ref: str, query: NodeQuery) -> Page[NodeRecord]:
        found = [
            n
            for n in self.find(ref).nodes
            if (n.instance_id or query.include_logical)
            and query.group_contains in n.group
            and _within(n.created_at, query.created_after, query.created_before)
        ]
        by_name = query.sort_by == "NAME"
        return page_of(
            found,
            lambda n: (n.name if by_name else n.created_at, n.logical_id),
            limit=query.limit,
            after=query.after,
            descending=query.descending,
        )

    def node(self, ref: str, *, instance_id: str = "", logical_id: str = "") -> NodeRecord:
        for node in self.find(ref).nodes:
            if (instance_id and node.instance_id == instance_id) or node.logical_id == logical_id:
                return node
        raise ResourceNotFoundError(f"there is no node {instance_id or logical_id}")

    def events(self, ref: str, query: EventQuery) -> Page[EventRecord]:
        found = [
            e
            for e in self.find(ref).events
            if _within(e.time, query.time_after, query.time_before)
            and query.group in ("", e.group)
            and query.instance_id in ("", e.instance_id)
            and query.resource_type in ("", e.resource_type)
            and query.operation_id in ("", e.operation_id)
        ]
        return page_of(
            found,
            lambda e: (e.time, e.event_id),
            limit=query.limit,
            after=query.after,
            descending=query.descending,
        )

    def event(self, ref: str, event_id: str) -> EventRecord:
        for event in self.find(ref).events:
            if event.event_id == event_id:
                return event
        raise ResourceNotFoundError(f"there is no event {event_id}")

    def operations(self, ref: str, query: OperationQuery) -> Page[OperationRecord]:
        found = [
            o
            for o in self.find(ref).operations
            if _within(o.created_at, query.created_after, query.created_before)
            and query.status in ("", o.status)
            and query.type in ("", o.type)
        ]
        return page_of(
            found,
            lambda o: (o.created_at, o.operation_id),
            limit=query.limit,
            after=query.after,
            descending=query.descending,
        )

    def operation(self, ref: str, operation_id: str) -> OperationRecord:
        for operation in self.find(ref).operations:
            if operation.operation_id == operation_id:
                return operation
        raise ResourceNotFoundError(f"there is no operation {operation_id}")

    def tags(self, arn: str) -> Mapping[str, str]:
        return self.find(arn).tags

    # changes

    def create_cluster(self, spec: ClusterSpec) -> str:
        with self._lock:
            if any(k.record.name == spec.name for k in self.kept.values()):
                raise ResourceInUseError(f"Cluster {spec.name} exists already")
            arn = cluster_arn(REGION, ACCOUNT, new_cluster_id())
            self.now += 1
            record = ClusterRecord(arn, spec.name, "Creating", self.now, document=spec.document)
            self.kept[arn] = kept = Kept(record, spec.tags)
            self._tell(kept, "create", f"Cluster {spec.name} creation started successfully")
            for group in spec.groups:
                self._put(kept, group)
            return arn

    def update_cluster(self, ref: str, update: ClusterUpdate, guard: Guard) -> str:
        with self._lock:
            kept = self.find(ref)
            guard(kept.record)
            self._tell(kept, "update", f"Cluster {kept.record.name} update started successfully")
            for group in update.groups:
                self._put(kept, group)
            left = tuple(g for g in kept.record.groups if g.spec.name not in update.delete)
            kept.record = replace(kept.record, groups=left)
            kept.nodes = [n for n in kept.nodes if n.group not in update.delete]
            return kept.record.arn

    def delete_cluster(self, ref: str, guard: Guard) -> str:
        with self._lock:
            kept = self.find(ref)
            guard(kept.record)
            self._tell(kept, "delete", "deletion started")
            kept.record = replace(kept.record, status="Deleting")
            return kept.record.arn

    def add_nodes(
        self, ref: str, additions: tuple[Addition, ...], token: ClientToken, guard: AdditionGuard
    ) -> AddedNodes:
        with self._lock:
            kept = self.find(ref)
            if token.value in kept.tokens:
                digest, ids, failed = kept.tokens[token.value]
                if digest != token.digest:
                    raise RequestRefusedError("ClientToken was used with other parameters")
                return AddedNodes(tuple(n for n in kept.nodes if n.logical_id in ids), failed)
            verdict = guard(kept.record)
            before = {n.logical_id for n in kept.nodes}
            if verdict.accepted:
                self._tell(kept, "add", "nodes added")
            for addition in verdict.accepted:
                group = kept.record.group(addition.group)
                assert group is not None
                self._put(kept, _with_count(group.spec, group.target_count + addition.count))
            added = tuple(n for n in kept.nodes if n.logical_id not in before)
            kept.tokens[token.value] = (
                token.digest,
                [n.logical_id for n in added],
                verdict.failed,
            )
            return AddedNodes(added, verdict.failed)

    def act_on_nodes(
        self,
        ref: str,
        action: NodeAction,
        *,
        instance_ids: tuple[str, ...],
        logical_ids: tuple[str, ...],
        judge: NodeJudge,
    ) -> str:
        with self._lock:
            kept = self.find(ref)
            named = {
                n.logical_id: n
                for n in kept.nodes
                if n.logical_id in logical_ids or (n.instance_id and n.instance_id in instance_ids)
            }
            accepted = judge(kept.record, named)
            if accepted:
                self._tell(kept, str(action), f"{action} of {len(accepted)} nodes")
            for logical_id in accepted:
                node = named[logical_id]
                group = kept.record.group(node.group)
                assert group is not None
                if action is NodeAction.DELETE:
                    kept.nodes.remove(node)
                    self._put(kept, _with_count(group.spec, group.target_count - 1))
                elif action is NodeAction.REPLACE:
                    self.change_node(kept, logical_id, status="Pending", instance_id="")
            return kept.record.arn

    def start_health_check(
        self, ref: str, configurations: tuple[Document, ...], guard: Guard
    ) -> str:
        with self._lock:
            kept = self.find(ref)
            guard(kept.record)
            self._tell(kept, "check", "deep health check started")
            kept.operations.append(
                OperationRecord(
                    str(uuid.uuid4()),
                    "DeepHealthCheck",
                    "InProgress",
                    self.now,
                    {"DeepHealthCheckDetails": list(configurations)},
                )
            )
            kept.record = replace(kept.record, health_check_active=True)
            return kept.record.arn

    def update_software(self, ref: str, document: Document, guard: Guard) -> str:
        with self._lock:
            kept = self.find(ref)
            guard(kept.record)
            self._tell(kept, "software", "UpdateClusterSoftware initiated")
            kept.record = replace(kept.record, status="SystemUpdating")
            return kept.record.arn

    def change_tags(
        self, arn: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        with self._lock:
            kept = self.find(arn)
            kept.tags = dict(change(kept.tags))
            self.changes.append("tags")
            return kept.tags

    # for tests

    def settle(self, ref: str) -> None:
        """All nodes have their machines, the cluster is InService."""
        kept = self.find(ref)
        for number, node in enumerate(kept.nodes, 1):
            self.change_node(
                kept,
                node.logical_id,
                status="Running",
                instance_id=node.instance_id or f"i-{number:017x}",
                launched_at=node.created_at + 60,
                address=f"10.0.{number // 250}.{number % 250 + 1}",
                hostname=f"ip-10-0-{number // 250}-{number % 250 + 1}.ec2.internal",
            )
        groups = tuple(
            replace(g, status="InService", current_count=g.target_count, scaling_operations=0)
            for g in kept.record.groups
        )
        kept.record = replace(kept.record, status="InService", groups=groups)

    def change_node(self, kept: Kept, logical_id: str, **changes: Any) -> None:
        kept.nodes = [
            replace(n, **changes) if n.logical_id == logical_id else n for n in kept.nodes
        ]

    def change_group(self, ref: str, name: str, **changes: Any) -> None:
        kept = self.find(ref)
        kept.record = replace(
            kept.record,
            groups=tuple(
                replace(g, **changes) if g.spec.name == name else g for g in kept.record.groups
            ),
        )

    def _put(self, kept: Kept, spec: GroupSpec) -> None:
        known = kept.record.group(spec.name)
        record = GroupRecord(
            spec=spec,
            status=known.status if known else "Creating",
            current_count=known.current_count if known else 0,
            target_count=spec.count,
            min_count=spec.min_count,
            scaling_operations=1,
        )
        groups = tuple(g for g in kept.record.groups if g.spec.name != spec.name)
        kept.record = replace(kept.record, groups=(*groups, record))
        mine = [n for n in kept.nodes if n.group == spec.name]
        for node in mine[spec.count :]:
            kept.nodes.remove(node)
        for number in range(len(mine), spec.count):
            self.now += 1
            kept.nodes.append(
                NodeRecord(
                    logical_id=f"node-{uuid.uuid4()}",
                    name=f"{spec.name}-{number + 1}",
                    group=spec.name,
                    instance_type=spec.instance_types[0],
                    status="Pending",
                    created_at=self.now,
                )
            )

    def _tell(self, kept: Kept, change: str, text: str) -> None:
        self.changes.append(change)
        self.now += 1
        kept.events.append(
            EventRecord(
                str(uuid.uuid4()),
                "Cluster",
                self.now,
                text,
                metadata={"Cluster": {"FailureMessage": ""}},
            )
        )


def _with_count(spec: GroupSpec, count: int) -> GroupSpec:
    return GroupSpec({**spec.document, "InstanceCount": count})


def _within(value: float, after: float | None, before: float | None) -> bool:
    return (after is None or value > after) and (before is None or value < before)
