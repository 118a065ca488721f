"""Software updates of a cluster's groups: pure, on a draft.

One group after the other: compute nodes, then login nodes, the controller last, so that an
image that does not work is seen where it costs least, and never more than one batch of the
cluster is out of service. A node of a batch drains, gives its machine up and gets another
one under its name; jobs are never ended for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpresume.errors import ConflictError, RequestRefusedError
from hpresume.provision.draft import Draft
from hpresume.provision.model import (
    ClusterStatus,
    Group,
    GroupStatus,
    Leave,
    Node,
    NodeType,
    Phase,
)
from hpresume.provision.rolling import EndBatch, Finish, Member, Replace, RollBack, Wait, decide
from hpresume.provision.software import Software, Stage, Update, image_of

_ORDER = {NodeType.COMPUTE: 0, NodeType.LOGIN: 1, NodeType.CONTROLLER: 2}

#: Machines that are known and not in service yet.
_COMING = (Phase.BOOTING, Phase.CONFIGURING, Phase.LIFECYCLE, Phase.JOINING, Phase.REBOOTING)

#: Longer than a call to Slurm takes (s): a drain that is under way when it is called off has
#: ended by then, and the look that follows shows it.
_CALLED_OFF_S = 45.0


def start(draft: Draft, document: Mapping[str, Any]) -> None:
    """UpdateClusterSoftware. Raises RequestRefusedError, ConflictError."""
    named = {e["InstanceGroupName"]: e for e in document.get("InstanceGroups", ())}
    for name in named:
        if name not in draft.groups:
            raise RequestRefusedError(f"InstanceGroup {name}: the cluster has no such group")
    if draft.cluster.status is not ClusterStatus.IN_SERVICE:
        raise ConflictError(f"Cluster {draft.cluster.name} is {draft.cluster.status}")
    chosen = [
        group
        for group in draft.groups.values()
        if (group.name in named if named else group.status is not GroupStatus.DELETING)
    ]
    for group in chosen:
        if group.status is not GroupStatus.IN_SERVICE:
            raise ConflictError(f"InstanceGroup {group.name} is {group.status}")
        last = group.update.goal.revision if group.update else 0
        goal = Software(
            max(group.software.revision, last) + 1,
            image_of({**named.get(group.name, {}), **document}),
        )
        config = document.get("DeploymentConfig") or {}
        group = draft.set_group(
            group.name, status=GroupStatus.SYSTEM_UPDATING, update=Update(goal, config=config)
        )
        strategy = "rolling" if config.get("RollingUpdatePolicy") else "all at once"
        draft.tell_group(
            group,
            f"UpdateClusterSoftware initiated for IG {group.name} in Cluster "
            f"{draft.cluster.name} using {strategy} strategy.",
        )
    draft.set_cluster(status=ClusterStatus.SYSTEM_UPDATING)
    draft.tell_cluster(f"Cluster {draft.cluster.name} software update started successfully")


def advance(draft: Draft, held: frozenset[str], alarms: frozenset[str] | None) -> None:
    """Take the update that is under way as far as it goes now."""
    if draft.cluster.status not in (ClusterStatus.SYSTEM_UPDATING, ClusterStatus.ROLLING_BACK):
        return
    for name in sorted(draft.groups, key=lambda n: _ORDER[draft.groups[n].node_type]):
        while _step(draft, draft.groups[name], held, alarms):
            pass
        if _is_active(draft.groups[name]):
            return  # one group at a time
    failed = draft.cluster.status is ClusterStatus.ROLLING_BACK
    draft.set_cluster(status=ClusterStatus.IN_SERVICE)
    draft.tell_cluster(
        f"Cluster {draft.cluster.name} software update "
        + ("failed" if failed else "completed successfully"),
        level="Error" if failed else "Info",
    )


def software_of(group: Group) -> Software:
    """What a machine that is launched now is made of.

    During an update it is the new software for whoever gets a machine: a node that was out of
    service anyway need not be replaced twice.
    """
    update = group.update
    if update is not None and update.stage is Stage.IN_PROGRESS:
        return update.goal
    return group.software


def note_failure(draft: Draft, node: Node, said: str, tries: int, *, is_final: bool) -> None:
    """A machine with the software that the update goes to did not come up.

    After ``tries`` of one node the batch has failed; at once if ``is_final``, as where the
    provider refuses the image.
    """
    update = draft.groups[node.group].update
    if update is None or update.broken or node.is_removed:
        return
    if update.stage is Stage.IN_PROGRESS:
        counts = node.revision == update.goal.revision
    else:
        counts = update.stage is Stage.ROLLBACK_IN_PROGRESS and (
            node.updating and node.revision != update.goal.revision
        )
    if not counts:
        return
    failures = {**update.failures, node.logical_id: update.failures.get(node.logical_id, 0) + 1}
    broken = is_final or failures[node.logical_id] >= tries
    draft.set_group(
        node.group,
        update=replace(update, failures=failures, broken=f"{node.name}: {said}" if broken else ""),
    )


def is_back(draft: Draft, node: Node) -> Node:
    """A node of a batch is in service again."""
    group = draft.groups[node.group]
    going_back = group.update is not None and group.update.stage is Stage.ROLLBACK_IN_PROGRESS
    node = draft.set_node(node, updating=False, updated_at=draft.now)
    word = "rolled back" if going_back else "updated"
    draft.tell_node(node, f"Instance {node.instance_id} in IG {group.name} {word} successfully.")
    return node


def _is_active(group: Group) -> bool:
    update = group.update
    return update is not None and update.is_active and group.status is not GroupStatus.DELETING


def _step(draft: Draft, group: Group, held: frozenset[str], alarms: frozenset[str] | None) -> bool:
    """One step of a group; whether another one may follow at once."""
    update = group.update
    if update is None or not _is_active(group):
        return False
    if update.stage is Stage.PENDING:
        draft.set_group(group.name, update=replace(update, stage=Stage.IN_PROGRESS))
        return True
    stay = (node for node in draft.of(group.name) if not node.is_removed)
    nodes = sorted(stay, key=lambda node: node.index)  # a lower number may have come later
    step = decide(update, [_member(node, held) for node in nodes], draft.now, alarms)
    match step:
        case Wait():
            return False
        case Replace(chosen):
            for key in chosen:
                draft.set_node(draft.nodes[key], leave=Leave.UPDATE, updating=True)
            draft.set_group(group.name, update=replace(update, batching=True))
            return False
        case EndBatch(next_at):
            draft.set_group(group.name, update=replace(update, batching=False, not_before=next_at))
        case RollBack(why):
            _roll_back(draft, group, update, nodes, why)
        case Finish(stage, why):
            _finish(draft, group, update, stage, why)
    return True


def _member(node: Node, held: frozenset[str]) -> Member:
    return Member(
        node.logical_id,
        node.revision,
        has_machine=node.phase is not Phase.WAITING,
        is_up=node.is_up,
        in_batch=node.updating,
        is_free=node.name not in held and not node.checking,
    )


def _roll_back(draft: Draft, group: Group, update: Update, nodes: list[Node], why: str) -> None:
    """The nodes of the batch go back first; groups that have not begun stay as they are."""
    draft.set_cluster(status=ClusterStatus.ROLLING_BACK)
    group = draft.set_group(
        group.name,
        update=replace(
            update, stage=Stage.ROLLBACK_IN_PROGRESS, batching=True, failures={}, broken=""
        ),
    )
    draft.tell_group(
        group,
        f"UpdateClusterSoftware failed for IG {group.name} in Cluster {draft.cluster.name}: "
        "the previous software comes back.",
        level="Error",
        failure=why,
    )
    for node in nodes:
        if node.leave is Leave.UPDATE and node.phase is Phase.RUNNING:
            draft.set_node(node, leave=Leave.STAY, updating=False)
        elif node.leave is Leave.UPDATE and node.phase is Phase.DRAINING:
            not_before = draft.now + _CALLED_OFF_S
            draft.move(node, Phase.JOINING, leave=Leave.STAY, not_before=not_before)
        elif node.revision != update.goal.revision:
            continue
        elif node.phase is Phase.WAITING:
            draft.set_node(node, not_before=0.0, failures=0)
        elif node.phase in _COMING and node.leave is Leave.STAY:
            draft.set_node(node, leave=Leave.REPLACE, updating=True)
    for other in list(draft.groups.values()):
        if other.update is not None and other.update.stage is Stage.PENDING:
            _finish(draft, other, other.update, Stage.ROLLBACK_COMPLETE, "it was not begun")


def _finish(draft: Draft, group: Group, update: Update, stage: Stage, why: str) -> None:
    values: dict[str, Any] = {"update": replace(update, stage=stage, batching=False)}
    if stage is Stage.SUCCEEDED:
        values["software"] = update.goal
    if group.status is GroupStatus.SYSTEM_UPDATING:
        values["status"] = GroupStatus.IN_SERVICE
    group = draft.set_group(group.name, **values)
    for node in draft.of(group.name):
        if node.updating:
            draft.set_node(node, updating=False)
    said = {
        Stage.SUCCEEDED: "completed successfully",
        Stage.ROLLBACK_COMPLETE: "was rolled back",
        Stage.FAILED: "could not be rolled back",
    }[stage]
    draft.tell_group(
        group,
        f"UpdateClusterSoftware {said} for IG {group.name} in Cluster {draft.cluster.name}.",
        level={Stage.SUCCEEDED: "Info", Stage.ROLLBACK_COMPLETE: "Warn"}.get(stage, "Error"),
        failure=why,
    )
    for other in list(draft.groups.values()):
        if other.update is not None and other.update.stage is Stage.PENDING:
            # The pause between batches lies between the groups as well.
            later = replace(other.update, not_before=update.not_before)
            draft.set_group(other.name, update=later)
