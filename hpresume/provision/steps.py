"""The steps of a node's life that several decisions share: pure, on a draft."""

from __future__ import annotations

from hpresume.provision.draft import Draft
from hpresume.provision.model import ClusterStatus, Leave, Node, NodeType, Phase, token_of
from hpresume.provision.policy import Policy, pause
from hpresume.provision.updating import is_back, note_failure, software_of

#: Phases in which there is no machine, or none that is known.
_WITHOUT_MACHINE = (Phase.WAITING, Phase.LAUNCHING)


def ask_for_machine(draft: Draft, node: Node) -> Node:
    """Give the node its next client token: written down before the provider is asked."""
    attempt = node.attempt + 1
    software = software_of(draft.groups[node.group])
    node = draft.move(
        node,
        Phase.LAUNCHING,
        attempt=attempt,
        token=token_of(node, attempt),
        not_before=0.0,
        image=software.image,
        revision=software.revision,
    )
    draft.tell_node(node, f"Instance creation started successfully {draft.where(node)}")
    return node


def remove(draft: Draft, node: Node) -> None:
    """Mark a node for removal; the plan takes it through the phases that this needs."""
    if node.phase is Phase.WAITING:
        draft.drop_node(node)
    elif node.phase is Phase.DRAINING and not node.is_removed:
        # It drains for an update: the time that its jobs have begins now.
        draft.move(node, Phase.DRAINING, leave=Leave.REMOVE, not_before=0.0)
    elif not node.is_removed:
        draft.set_node(node, leave=Leave.REMOVE, not_before=0.0)


def terminate(draft: Draft, node: Node, **values: object) -> Node:
    """The machine goes into its terminating state: metering ends here, whatever the reason."""
    draft.end_bill(node)
    node = draft.move(node, Phase.TERMINATING, not_before=0.0, **values)
    draft.tell_node(
        node,
        f"Termination of EC2 Instance {node.instance_id} is currently in progress "
        f"{draft.where(node)}",
    )
    return node


def begin_scripts(draft: Draft, node: Node) -> Node:
    """The lifecycle scripts start, and with them the metering."""
    node = draft.move(node, Phase.LIFECYCLE, not_before=0.0)
    draft.begin_bill(node)
    if draft.groups[node.group].scripts:
        draft.tell_node(
            node,
            f"Instance lifecycle script execution for EC2 Instance {node.instance_id} has started",
            script="Started",
        )
    return node


def comes_up(draft: Draft, node: Node) -> Node:
    """The node is provisioned and ready, for the first time or again."""
    what = _what_ended(node)
    node = draft.move(
        node, Phase.RUNNING, running_since=draft.now, failures=0, message="", not_before=0.0
    )
    group = draft.groups[node.group]
    if group.node_type is NodeType.CONTROLLER and draft.cluster.controller_up_at is None:
        draft.set_cluster(controller_up_at=draft.now)
    draft.tell_node(node, what.format(instance=node.instance_id, where=draft.where(node)))
    return is_back(draft, node) if node.updating else node


def _what_ended(node: Node) -> str:
    """HyperPod's words for what a node has come through."""
    if node.running_since >= node.launched_at > 0:
        return "Instance reboot {instance} {where} completed successfully"
    if node.running_since or (node.attempt > 1 and not node.failures):
        return (
            "Instance {instance} creation completed successfully as part of instance replacement "
            "{where}"
        )
    return "Instance creation {instance} {where} completed successfully"


def fails(draft: Draft, node: Node, policy: Policy, said: str, *, is_script: bool = False) -> Node:
    """A try to bring the node up has failed: its machine, if any, goes, and another is tried later.

    ``said`` is what went wrong, as users will read it.
    """
    draft.tell_node(
        node,
        f"Instance creation {node.instance_id or node.logical_id} {draft.where(node)} failed",
        level="Error",
        failure=said,
        script="Failed" if is_script else "",
    )
    failures = node.failures + 1
    if node.phase is not Phase.LAUNCHING:
        note_failure(draft, node, said, policy.update_tries, is_final=False)
    if node.phase in _WITHOUT_MACHINE:
        if node.is_removed:
            draft.drop_node(node)
            return node
        wait = pause(policy, node.logical_id, failures)
        return draft.move(
            node,
            Phase.WAITING,
            failures=failures,
            message=said,
            not_before=draft.now + wait,
            leave=Leave.STAY,
        )
    leave = Leave.REMOVE if node.is_removed else Leave.REPLACE
    return terminate(draft, node, failures=failures, message=said, leave=leave)


def fails_for_good(draft: Draft, node: Node, said: str) -> None:
    """A controller that cannot come up ends the creation; what is up stays.

    Nothing happens where the node is no controller, or the cluster was in service before.
    """
    group = draft.groups[node.group]
    if group.node_type is not NodeType.CONTROLLER:
        return
    if draft.cluster.status is not ClusterStatus.CREATING:
        return
    message = (
        f"The controller group {group.name} could not be provisioned: {said}. Mend that and call "
        "UpdateCluster, which tries again, or DeleteCluster"
    )
    draft.set_cluster(status=ClusterStatus.FAILED, failure=message)
    draft.tell_cluster(
        f"Cluster {draft.cluster.name} creation failed", level="Error", failure=message
    )


def machine_gone(draft: Draft, node: Node, policy: Policy) -> None:
    """The machine of the node is gone: the node goes too, or waits for another one."""
    if node.is_removed:
        draft.drop_node(node)
        return
    wait = 0.0
    if node.failures:
        wait = pause(policy, node.logical_id, node.failures, policy.script_retry_max_s)
    draft.move(
        node,
        Phase.WAITING,
        machine_id="",
        launched_at=0.0,
        running_since=0.0,
        leave=Leave.STAY,
        not_before=draft.now + wait,
    )
