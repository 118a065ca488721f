"""How many nodes a group has: new ones are added, surplus ones chosen for removal."""

from __future__ import annotations

from hpresume.provision.draft import Draft
from hpresume.provision.model import (
    ClusterStatus,
    Group,
    GroupStatus,
    Leave,
    Node,
    NodeType,
    Phase,
    host_name,
)
from hpresume.provision.steps import remove


def size_groups(draft: Draft, most: int | None = None) -> None:
    """Bring the number of nodes of each group to its target; drop groups and cluster at the end.

    With ``most``, a group gets no more nodes than that; its target stays what was asked for.
    """
    members = draft.members()
    others = any(
        nodes and draft.groups[name].node_type is not NodeType.CONTROLLER
        for name, nodes in members.items()
    )
    deleting = draft.cluster.status is ClusterStatus.DELETING
    for group in list(draft.groups.values()):
        nodes = members[group.name]
        if deleting and others and group.node_type is NodeType.CONTROLLER:
            continue  # the controller goes last
        staying = [node for node in nodes if not node.is_removed]
        wanted = group.target if most is None else min(group.target, most)
        if len(staying) < wanted:
            add_nodes(draft, group, wanted - len(staying), nodes)
        for node in victims(staying, len(staying) - wanted):
            remove(draft, node)
        if group.status is GroupStatus.DELETING and not draft.of(group.name):
            draft.drop_group(group.name)
            if not deleting:
                draft.tell_group(
                    group,
                    f"Instance Group {group.name} deletion in Cluster {draft.cluster.name} "
                    "completed successfully",
                )


def victims(nodes: list[Node], surplus: int) -> list[Node]:
    """Which nodes go: first those that are not well, then those that were provisioned last.

    The order of the seed's rollback, for every reduction.
    """
    return sorted(nodes, key=_worth)[:surplus] if surplus > 0 else []


def add_nodes(draft: Draft, group: Group, count: int, existing: list[Node]) -> list[Node]:
    """New nodes of a group, each with the lowest number that is free."""
    taken = {node.index for node in existing}
    added: list[Node] = []
    index = 0
    serial = draft.cluster.next_serial
    while len(added) < count:
        index += 1
        if index in taken:
            continue
        added.append(
            draft.put_node(
                Node(
                    logical_id=f"{draft.cluster.cluster_id}-{serial}",
                    group=group.name,
                    name=host_name(group.name, index),
                    index=index,
                    phase=Phase.WAITING,
                    created_at=draft.now,
                    phase_since=draft.now,
                    operation=group.operation,
                )
            )
        )
        serial += 1
    draft.set_cluster(next_serial=serial)
    return added


def _worth(node: Node) -> tuple[int, float, int]:
    if node.phase is Phase.WAITING:
        rank = 0
    elif node.phase is not Phase.RUNNING or node.leave is not Leave.STAY:
        rank = 1
    else:
        rank = 2
    return rank, -max(node.running_since, node.created_at), -node.index
