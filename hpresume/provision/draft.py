"""A state under change: pure functions write into a draft, and its change comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpresume.provision.model import (
    Bill,
    Change,
    Cluster,
    Event,
    Group,
    Node,
    Operation,
    OperationStatus,
    Phase,
    State,
)


class Draft:
    """A state and what has been changed in it so far; ``now`` is Unix time (s)."""

    def __init__(self, state: State, now: float) -> None:
        self.now = now
        self.cluster: Cluster = state.cluster
        self.groups: dict[str, Group] = dict(state.groups)
        self.nodes: dict[str, Node] = dict(state.nodes)
        self.operations: dict[str, Operation] = dict(state.operations)
        self.is_gone = False
        self._before = state
        self._groups: dict[str, Group | None] = {}
        self._nodes: dict[str, Node | None] = {}
        self._operations: dict[str, Operation] = {}
        self._events: list[Event] = []
        self._bills: list[Bill] = []

    def set_cluster(self, **values: Any) -> None:
        """Change members of the cluster."""
        self.cluster = replace(self.cluster, **values)

    def put_group(self, group: Group) -> Group:
        """Add a group, or put it in the place of the one with its name."""
        self.groups[group.name] = self._groups[group.name] = group
        return group

    def set_group(self, name: str, **values: Any) -> Group:
        """Change members of a group."""
        return self.put_group(replace(self.groups[name], **values))

    def drop_group(self, name: str) -> None:
        """Remove a group."""
        del self.groups[name]
        self._groups[name] = None

    def put_node(self, node: Node) -> Node:
        """Add a node, or put it in the place of the one with its logical id."""
        self.nodes[node.logical_id] = self._nodes[node.logical_id] = node
        return node

    def set_node(self, node: Node, **values: Any) -> Node:
        """Change members of a node."""
        return self.put_node(replace(node, **values))

    def move(self, node: Node, phase: Phase, **values: Any) -> Node:
        """Take a node into another phase."""
        return self.set_node(node, phase=phase, phase_since=self.now, **values)

    def drop_node(self, node: Node) -> None:
        """Remove a node for good."""
        del self.nodes[node.logical_id]
        self._nodes[node.logical_id] = None

    def put_operation(self, operation: Operation) -> None:
        """Add an operation or put it in its place; ended ones leave the state."""
        self._operations[operation.operation_id] = operation
        if operation.status is OperationStatus.IN_PROGRESS:
            self.operations[operation.operation_id] = operation
        else:
            self.operations.pop(operation.operation_id, None)

    def of(self, group: str) -> list[Node]:
        """The nodes of a group, those on their way out included."""
        return [node for node in self.nodes.values() if node.group == group]

    def members(self) -> Mapping[str, list[Node]]:
        """The nodes of every group."""
        found: dict[str, list[Node]] = {name: [] for name in self.groups}
        for node in self.nodes.values():
            found.setdefault(node.group, []).append(node)
        return found

    def up(self, group: str) -> int:
        """``CurrentCount`` of a group."""
        return sum(node.is_up for node in self.nodes.values() if node.group == group)

    def begin_bill(self, node: Node) -> None:
        """Metering of a machine begins: its lifecycle script starts."""
        self._bills.append(self._bill(node, ends=False))

    def end_bill(self, node: Node, at: float = 0.0) -> None:
        """Metering of a machine ends: it goes into its terminating state, or did so ``at``."""
        if node.machine_id:
            bill = self._bill(node, ends=True)
            if node.running_since < at < self.now:
                bill = replace(bill, at=at)
            self._bills.append(bill)

    def _bill(self, node: Node, *, ends: bool) -> Bill:
        group = self.groups[node.group]
        return Bill(
            machine_id=node.machine_id,
            token=node.token,
            logical_id=node.logical_id,
            group=node.group,
            instance_type=group.instance_type,
            at=self.now,
            ends=ends,
        )

    def tell_cluster(self, text: str, level: str = "Info", failure: str = "") -> None:
        """An event of the cluster."""
        metadata = {"Cluster": {"FailureMessage": failure}} if failure else {}
        self._events.append(Event(self.now, "Cluster", level, text, metadata=metadata))

    def tell_group(self, group: Group, text: str, level: str = "Info", failure: str = "") -> None:
        """An event of a group, with its counts."""
        counts: dict[str, Any] = {
            "InstanceCount": self.up(group.name),
            "TargetCount": group.target,
            "MinCount": group.minimum,
        }
        if failure:
            counts["FailureMessage"] = failure
        self._events.append(
            Event(
                self.now,
                "InstanceGroup",
                level,
                text,
                group=group.name,
                operation=group.operation,
                metadata={"InstanceGroupScaling": counts},
            )
        )

    def tell_node(
        self, node: Node, text: str, level: str = "Info", failure: str = "", script: str = ""
    ) -> None:
        """An event of a node; ``script`` is how its lifecycle script stands."""
        instance = {"NodeLogicalId": node.logical_id}
        if failure:
            instance["FailureMessage"] = failure
        if script:
            instance["LcsExecutionState"] = script
        self._events.append(
            Event(
                self.now,
                "Instance",
                level,
                text,
                group=node.group,
                instance_id=node.instance_id,
                operation=node.operation,
                metadata={"Instance": instance},
            )
        )

    def where(self, node: Node) -> str:
        """The end of most event texts about a node."""
        return f"in Cluster {self.cluster.name} and IG {node.group}"

    def change(self) -> Change:
        """What was changed."""
        return Change(
            cluster=self.cluster if self.cluster != self._before.cluster else None,
            is_gone=self.is_gone,
            groups=self._groups,
            nodes=self._nodes,
            operations=tuple(self._operations.values()),
            events=tuple(self._events),
            bills=tuple(self._bills),
        )


def applied(state: State, change: Change) -> State:
    """The state after a change."""
    operations = dict(state.operations)
    for operation in change.operations:
        operations[operation.operation_id] = operation
        if operation.status is not OperationStatus.IN_PROGRESS:
            del operations[operation.operation_id]
    return State(
        cluster=change.cluster or state.cluster,
        groups=_merged(state.groups, change.groups),
        nodes=_merged(state.nodes, change.nodes),
        operations=operations,
    )


def _merged(before: Mapping[str, Any], changed: Mapping[str, Any]) -> Mapping[str, Any]:
    if not changed:
        return before
    after = {**before, **changed}
    for key, value in changed.items():
        if value is None:
            del after[key]
    return after
