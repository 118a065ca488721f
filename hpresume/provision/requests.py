"""What a request does to a cluster's state: pure, on a draft.

Shapes and cross-field rules of the API are checked before; what is checked here
holds whoever asks, and depends on the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpresume.errors import ConflictError, RequestRefusedError
from hpresume.provision.draft import Draft
from hpresume.provision.model import (
    Cluster,
    ClusterStatus,
    Counts,
    Group,
    GroupStatus,
    Leave,
    Node,
    NodeType,
    Operation,
    OperationDetail,
    Phase,
    State,
)
from hpresume.provision.service import Addition, ClusterSpec, ClusterUpdate, GroupSpec, NodeAction
from hpresume.provision.sizing import add_nodes
from hpresume.provision.software import DEFAULT_IMAGE, Software, image_of
from hpresume.provision.statuses import supersede
from hpresume.provision.steps import remove

#: Default MinInstanceCount at the creation of a cluster, by NodeType (seed, "MinCount").
_DEFAULT_MINIMUM = {NodeType.CONTROLLER: 1, NodeType.LOGIN: 1, NodeType.COMPUTE: 0}

#: Members of UpdateCluster that replace those of the cluster.
_CLUSTER_MEMBERS = (
    "AutoScaling",
    "ClusterRole",
    "NodeRecovery",
    "Orchestrator",
    "RestrictedInstanceGroupsConfig",
    "TieredStorageConfig",
)


def create(spec: ClusterSpec, cluster_id: str, arn: str, operation_id: str, now: float) -> Draft:
    """The draft of a new cluster. Raises RequestRefusedError."""
    _check_mode(spec.document)
    controllers = [g for g in spec.groups if _node_type(g) is NodeType.CONTROLLER]
    if len(controllers) != 1:
        raise RequestRefusedError(
            f"{len(controllers)} Controller Groups found: a cluster has exactly one instance group "
            "with SlurmConfig.NodeType Controller"
        )
    cluster = Cluster(
        cluster_id=cluster_id,
        arn=arn,
        name=spec.name,
        status=ClusterStatus.CREATING,
        created_at=now,
        spec=dict(spec.document),
        tags=dict(spec.tags),
    )
    draft = Draft(State(cluster), now)
    draft.tell_cluster(f"Cluster {spec.name} creation started successfully")
    details = [
        _create_group(draft, group, operation_id, is_new_cluster=True) for group in spec.groups
    ]
    draft.put_operation(Operation(operation_id, now, tuple(details)))
    return draft


def update(draft: Draft, request: ClusterUpdate, operation_id: str) -> None:
    """New targets; groups that are not named stay. Raises RequestRefusedError, ConflictError."""
    cluster = draft.cluster
    _check_alive(cluster)
    if {"Orchestrator", "NodeProvisioningMode"} & set(request.document):
        _check_mode({**cluster.spec, **request.document})
    changed = {
        name: request.document[name] for name in _CLUSTER_MEMBERS if name in request.document
    }
    if changed:
        draft.set_cluster(spec={**cluster.spec, **changed})
    details = []
    for spec in request.groups:
        group = draft.groups.get(spec.name)
        if group is None:
            details.append(_create_group(draft, spec, operation_id, is_new_cluster=False))
        else:
            details += _change_group(draft, group, spec, operation_id)
    details += [_delete_group(draft, name, operation_id) for name in request.delete]
    if details:
        supersede(draft, frozenset(detail.group for detail in details), by=operation_id)
        draft.put_operation(Operation(operation_id, draft.now, tuple(details)))
    draft.tell_cluster(f"Cluster {cluster.name} update started successfully")
    if cluster.status is ClusterStatus.FAILED:
        _try_again(draft)


def delete(draft: Draft) -> None:
    """Everything goes, the controller last; allowed in every state, and twice."""
    if draft.cluster.status is ClusterStatus.DELETING:
        return
    draft.set_cluster(status=ClusterStatus.DELETING)
    draft.tell_cluster(f"Cluster {draft.cluster.name} deletion started successfully")
    supersede(draft, frozenset(draft.groups), by="")
    for name in draft.groups:
        draft.set_group(name, status=GroupStatus.DELETING, target=0, minimum=0)


def add(draft: Draft, additions: Iterable[Addition], operation_id: str) -> list[Node]:
    """BatchAddClusterNodes: higher targets, and the nodes for them at once."""
    _check_alive(draft.cluster)
    added: list[Node] = []
    details: dict[str, OperationDetail] = {}
    for addition in additions:
        group = draft.groups.get(addition.group)
        if group is None or group.in_flux or group.status is GroupStatus.DELETING:
            raise RequestRefusedError(
                f"InstanceGroup {addition.group} takes no nodes: it is not InService"
            )
        before = details.get(group.name)
        desired = Counts(group.minimum, group.target + addition.count)
        details[group.name] = OperationDetail(
            group.name,
            before.current if before else draft.up(group.name),
            before.original if before else Counts(group.minimum, group.target),
            desired,
        )
        group = draft.set_group(group.name, target=desired.target, operation=operation_id)
        nodes = draft.of(group.name)
        staying = sum(not node.is_removed for node in nodes)
        # Nodes that the target asked for before and the plan has not made yet come first.
        made = add_nodes(draft, group, max(group.target - staying, addition.count), nodes)
        added += made[-addition.count :]
        draft.tell_group(
            group,
            f"InstanceGroup {group.name} scaling started successfully in Cluster "
            f"{draft.cluster.name}",
        )
    if details:
        supersede(draft, frozenset(details), by=operation_id, only_reductions=True)
        draft.put_operation(Operation(operation_id, draft.now, tuple(details.values())))
    return added


def act(draft: Draft, action: NodeAction, nodes: Iterable[Node], operation_id: str) -> None:
    """BatchDelete, BatchReboot or BatchReplaceClusterNodes on nodes that may be acted on."""
    chosen = list(nodes)
    if action is NodeAction.DELETE:
        _delete_nodes(draft, chosen, operation_id)
        return
    for node in chosen:
        if action is NodeAction.REPLACE:
            has_machine = node.phase not in (Phase.WAITING, Phase.LAUNCHING, Phase.TERMINATING)
            if has_machine and node.leave is not Leave.UPDATE:
                draft.set_node(node, leave=Leave.REPLACE)
        elif node.phase is Phase.RUNNING and node.leave is Leave.STAY:
            draft.move(node, Phase.REBOOTING, not_before=0.0)
            draft.tell_node(
                node,
                f"Reboot of EC2 Instance {node.instance_id} is currently in progress on Cluster "
                f"{draft.cluster.name} and IG {node.group}",
            )


def _create_group(
    draft: Draft, spec: GroupSpec, operation_id: str, *, is_new_cluster: bool
) -> OperationDetail:
    node_type = _node_type(spec)
    if not is_new_cluster and node_type is not NodeType.COMPUTE:
        has = {group.node_type for group in draft.groups.values()}
        if node_type in has:
            raise RequestRefusedError(
                f"InstanceGroup {spec.name}: the cluster has a {node_type} group already"
            )
    if spec.name.lower() in {name.lower() for name in draft.groups}:
        raise RequestRefusedError(
            f"InstanceGroup {spec.name}: names of a cluster's groups must differ in more than case"
        )
    minimum = spec.document.get("MinInstanceCount")
    if minimum is None:
        default = _DEFAULT_MINIMUM[node_type] if is_new_cluster else 0
        minimum = min(default, spec.count)
    _check_minimum(spec, int(minimum))
    group = draft.put_group(
        Group(
            name=spec.name,
            node_type=node_type,
            target=spec.count,
            minimum=int(minimum),
            # A minimum of 0 is reached from the beginning.
            status=GroupStatus.CREATING if minimum else GroupStatus.IN_SERVICE,
            created_at=draft.now,
            minimum_since=draft.now,
            spec=dict(spec.document),
            operation=operation_id,
            software=_first_software(draft, spec),
        )
    )
    draft.tell_group(
        group,
        f"InstanceGroup {group.name} creation started successfully in Cluster {draft.cluster.name}",
    )
    return OperationDetail(group.name, 0, Counts(0, 0), Counts(group.minimum, group.target))


def _first_software(draft: Draft, spec: GroupSpec) -> Software:
    """What a new group starts with: without an image, that of the cluster's earliest group.

    So says botocore's model of continuous provisioning (ClusterInstanceGroupSpecification.ImageId).
    """
    if not image_of(spec.document) and draft.groups:
        earliest = min(draft.groups.values(), key=lambda group: group.created_at)
        if earliest.created_at < draft.now:
            return Software(image=earliest.software.image)
    return Software(image=image_of(spec.document))


def _change_group(
    draft: Draft, group: Group, spec: GroupSpec, operation_id: str
) -> list[OperationDetail]:
    if group.status is GroupStatus.DELETING:
        raise ConflictError(f"InstanceGroup {group.name} is being deleted")
    _check_same(draft, group, spec)
    given = spec.document.get("MinInstanceCount")
    minimum = min(group.minimum, spec.count) if given is None else int(given)
    _check_minimum(spec, minimum)
    if group.status is GroupStatus.SYSTEM_UPDATING and minimum != group.minimum:
        raise ConflictError(
            f"InstanceGroup {group.name}: its MinInstanceCount cannot change while its software "
            "is updated"
        )
    current = draft.up(group.name)
    before = Counts(group.minimum, group.target)
    desired = Counts(minimum, spec.count)
    values: dict[str, Any] = {
        "target": spec.count,
        "minimum": minimum,
        "spec": _merged(group.spec, spec.document),
    }
    if group.in_flux:
        if given is not None:
            values["minimum_since"] = draft.now
    else:
        values["good"] = before
        if minimum != group.minimum and current < minimum:
            values |= {"status": GroupStatus.UPDATING, "minimum_since": draft.now}
    if desired != before:
        values["operation"] = operation_id
    group = draft.set_group(group.name, **values)
    if desired == before:
        return []
    draft.tell_group(
        group,
        f"InstanceGroup {group.name} scaling started successfully in Cluster {draft.cluster.name}",
    )
    return [OperationDetail(group.name, current, before, desired)]


def _merged(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a group after an update; of two that exclude each other the new one stays."""
    kept = dict(before)
    for one, other in (
        ("InstanceType", "InstanceRequirements"),
        ("InstanceRequirements", "InstanceType"),
    ):
        if one in given:
            kept.pop(other, None)
    return {**kept, **given}


def _delete_group(draft: Draft, name: str, operation_id: str) -> OperationDetail:
    group = draft.groups.get(name)
    if group is None:
        raise RequestRefusedError(f"InstanceGroup {name}: the cluster has no such group")
    if group.node_type is NodeType.CONTROLLER:
        raise RequestRefusedError(
            f"InstanceGroup {name} is the Controller group: it goes with its cluster only"
        )
    before = Counts(group.minimum, group.target)
    current = draft.up(name)
    group = draft.set_group(
        name, status=GroupStatus.DELETING, target=0, minimum=0, operation=operation_id
    )
    draft.tell_group(
        group,
        f"InstanceGroup {name} deletion started successfully in Cluster {draft.cluster.name}",
    )
    return OperationDetail(name, current, before, Counts(0, 0))


def _delete_nodes(draft: Draft, nodes: list[Node], operation_id: str) -> None:
    details: dict[str, OperationDetail] = {}
    for node in nodes:
        if node.is_removed:
            continue
        group = draft.groups[node.group]
        if group.node_type is NodeType.CONTROLLER:
            raise RequestRefusedError(
                f"node {node.logical_id} is a controller: it cannot be removed"
            )
        if group.in_flux:
            raise RequestRefusedError(
                f"InstanceGroup {group.name} waits for its MinCount: no node of it is removed now"
            )
        before = details.get(group.name)
        original = before.original if before else Counts(group.minimum, group.target)
        target = max(group.target - 1, 0)
        desired = Counts(min(group.minimum, target), target)
        details[group.name] = OperationDetail(
            group.name, before.current if before else draft.up(group.name), original, desired
        )
        draft.set_group(group.name, target=target, minimum=desired.minimum, operation=operation_id)
        remove(draft, node)
    if details:
        supersede(draft, frozenset(details), by=operation_id)
        draft.put_operation(Operation(operation_id, draft.now, tuple(details.values())))


def _try_again(draft: Draft) -> None:
    """An update is how a creation that failed is mended: it goes on."""
    draft.set_cluster(status=ClusterStatus.CREATING, failure="")
    for node in list(draft.nodes.values()):
        if node.phase is Phase.WAITING:
            draft.set_node(node, not_before=0.0, failures=0)


def _check_alive(cluster: Cluster) -> None:
    if cluster.status is ClusterStatus.DELETING:
        raise ConflictError(f"Cluster {cluster.name} is being deleted")


def _check_mode(document: Mapping[str, Any]) -> None:
    if document.get("NodeProvisioningMode") != "Continuous":
        raise RequestRefusedError(
            "NodeProvisioningMode: this control plane provisions continuously; set it to Continuous"
        )
    slurm = (document.get("Orchestrator") or {}).get("Slurm") or {}
    if "SlurmConfigStrategy" in slurm:
        raise RequestRefusedError(
            "SlurmConfigStrategy is not supported with NodeProvisioningMode Continuous, which "
            "always merges: leave it out"
        )


def _check_minimum(spec: GroupSpec, minimum: int) -> None:
    if not 0 <= minimum <= spec.count:
        raise RequestRefusedError(
            f"InstanceGroup {spec.name}: MinInstanceCount {minimum} must be from 0 to "
            f"InstanceCount {spec.count}"
        )


def _check_same(draft: Draft, group: Group, spec: GroupSpec) -> None:
    if _node_type(spec) is not group.node_type:
        raise RequestRefusedError(
            f"InstanceGroup {group.name}: NodeType {group.node_type} cannot be changed"
        )
    image = image_of(spec.document)
    names_one = {"ImageId", "ImageReleaseVersion"} & set(spec.document)
    if names_one and image not in (image_of(group.spec), group.software.image):
        raise RequestRefusedError(
            f"InstanceGroup {group.name}: the image is {group.software.image or DEFAULT_IMAGE}: "
            "UpdateClusterSoftware changes it"
        )
    types = spec.instance_types
    has_machines = any(node.machine_id for node in draft.of(group.name))
    if types and group.instance_type not in types and has_machines:
        raise RequestRefusedError(
            f"InstanceGroup {group.name}: instance type {group.instance_type} cannot be changed "
            "while the group has instances"
        )


def _node_type(spec: GroupSpec) -> NodeType:
    try:
        return NodeType(spec.node_type)
    except ValueError:
        raise RequestRefusedError(
            f"InstanceGroup {spec.name}: SlurmConfig.NodeType must be Controller, Login or Compute"
        ) from None
