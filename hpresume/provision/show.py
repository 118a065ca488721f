"""Clusters, instance groups and their nodes, for people and programs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hpresume.provision.model import ClusterStatus, Node, NodeType, Phase, State
from hpresume.provision.views import node_status

#: What follows each phase.
_NEXT = {
    Phase.WAITING: "a machine is launched",
    Phase.LAUNCHING: "the provider answers",
    Phase.BOOTING: "its machine is up",
    Phase.CONFIGURING: "slurm.conf names it",
    Phase.LIFECYCLE: "its lifecycle scripts end",
    Phase.JOINING: "its slurmd has registered",
    Phase.REBOOTING: "its machine reboots",
    Phase.DRAINING: "its jobs end",
    Phase.TERMINATING: "its machine is given up",
}


@dataclass(frozen=True)
class ClusterLine:
    """One cluster. ``current`` are the nodes that are up, ``target`` those asked for."""

    name: str
    arn: str
    status: str
    created_at: float
    current: int
    target: int
    message: str


@dataclass(frozen=True)
class GroupLine:
    """One instance group; ``phases`` counts the nodes that are not up by what they wait for.

    ``not_begun`` counts what there is no node for: beyond ``max_per_group``, or not yet.
    ``message`` is the last failure of a node that is not up, or what was said of it.
    """

    cluster: str
    group: str
    node_type: str
    instance_type: str
    partition: str
    status: str
    current: int
    minimum: int
    target: int
    phases: Mapping[str, int] = field(default_factory=dict)
    not_begun: int = 0
    message: str = ""


@dataclass(frozen=True)
class NodeLine:
    """One node of a group; ``phase`` is empty for one that is up."""

    node: str
    cluster: str
    group: str
    status: str
    phase: str
    since: float
    next_step: str


def cluster_lines(states: Iterable[State]) -> tuple[ClusterLine, ...]:
    """A line for every cluster, by name."""
    return tuple(
        ClusterLine(
            name=state.cluster.name,
            arn=state.cluster.arn,
            status=state.cluster.status.value,
            created_at=state.cluster.created_at,
            current=sum(node.is_up for node in state.nodes.values()),
            target=sum(group.target for group in state.groups.values()),
            message=state.cluster.failure,
        )
        for state in sorted(states, key=lambda state: state.cluster.name)
    )


def group_lines(states: Iterable[State]) -> tuple[GroupLine, ...]:
    """A line for every group, in the clusters' own order."""
    lines: list[GroupLine] = []
    for state in sorted(states, key=lambda state: state.cluster.name):
        members: dict[str, list[Node]] = {name: [] for name in state.groups}
        for node in state.nodes.values():
            members[node.group].append(node)
        for group in state.groups.values():
            nodes = members[group.name]
            missing = [node for node in nodes if not node.is_up]
            said = max(missing, key=lambda n: (bool(n.message), n.phase_since), default=None)
            lines.append(
                GroupLine(
                    cluster=state.cluster.name,
                    group=group.name,
                    node_type=group.node_type.value,
                    instance_type=group.instance_type,
                    partition=group.partition,
                    status=group.status.value,
                    current=len(nodes) - len(missing),
                    minimum=group.minimum,
                    target=group.target,
                    phases=dict(Counter(_phase(node) for node in missing)),
                    not_begun=max(0, group.target - len(nodes)),
                    message=said.message if said is not None else "",
                )
            )
    return tuple(lines)


def node_lines(states: Iterable[State]) -> dict[str, NodeLine]:
    """Every node of every group by its host name."""
    found: dict[str, NodeLine] = {}
    for state in states:
        for node in state.nodes.values():
            following = _following(state, node)
            if node.message and following:
                following += f" ({node.message})"
            found[node.name] = NodeLine(
                node=node.name,
                cluster=state.cluster.name,
                group=node.group,
                status=node_status(node),
                phase="" if node.is_up else _phase(node),
                since=node.phase_since,
                next_step=following,
            )
    return found


def _following(state: State, node: Node) -> str:
    cluster = state.cluster
    if node.phase is Phase.WAITING:
        if cluster.status is ClusterStatus.FAILED:
            return "an update of its cluster, which is Failed"
        is_controller = state.groups[node.group].node_type is NodeType.CONTROLLER
        if cluster.controller_up_at is None and not is_controller:
            return "its cluster's controller is up"
    return _NEXT.get(node.phase, "")


def _phase(node: Node) -> str:
    # One that is up and asked to leave is on its way out.
    return Phase.DRAINING.value if node.phase is Phase.RUNNING else node.phase.value
