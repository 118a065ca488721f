"""What the end of a piece of work means for its node: pure, on a draft.

Work takes time, and the node may have moved on meanwhile. Each function first looks
whether the node still is where the work found it; a late answer changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from hpresume.errors import CapacityError, ProviderRefusedError
from hpresume.providers.model import Machine
from hpresume.provision.draft import Draft
from hpresume.provision.model import NO_SHAPE, Node, Phase
from hpresume.provision.policy import Policy, pause
from hpresume.provision.steps import (
    fails,
    fails_for_good,
    machine_gone,
)
from hpresume.provision.updating import note_failure
from hpresume.slurm.nodeset import fold

Outcome = Callable[[Draft, Policy], None]


def launched(work: Node, machine: Machine) -> Outcome:
    """The provider has a machine for the token."""

    def apply(draft: Draft, policy: Policy) -> None:
        node = _still(draft, work, Phase.LAUNCHING)
        if node is None:
            return
        if machine.state.is_gone:
            # The token is used up: its machine came and went while nobody looked.
            said = "the instance ended right after its launch"
            note_failure(draft, node, said, policy.update_tries, is_final=False)
            fails(draft, node, policy, said)
            return
        draft.move(
            node,
            Phase.BOOTING,
            machine_id=machine.machine_id,
            address=machine.address or node.address,
            launched_at=machine.launched_at or draft.now,
        )

    return apply


def launch_failed(work: Node, error: Exception) -> Outcome:
    """The provider made no machine, or it is not known whether it did."""

    def apply(draft: Draft, policy: Policy) -> None:
        node = _still(draft, work, Phase.LAUNCHING)
        if node is None:
            return
        said = str(error)
        if isinstance(error, CapacityError | ProviderRefusedError):
            draft.tell_node(
                node,
                f"Failed to provision EC2 Instance {draft.where(node)}",
                level="Error",
                failure=said,
            )
            if isinstance(error, ProviderRefusedError):
                note_failure(draft, node, said, policy.update_tries, is_final=True)
            fails(draft, node, policy, said)
            fails_for_good(draft, node, said)
            return
        # The request may have arrived: the same token again, until the answer is clear.
        failures = node.failures + 1
        wait = pause(policy, node.logical_id, failures)
        draft.set_node(node, failures=failures, message=said, not_before=draft.now + wait)

    return apply


def inspected(work: Node, shape: str) -> Outcome:
    """What the machine says of itself for slurm.conf; empty where it says nothing."""

    def apply(draft: Draft, _policy: Policy) -> None:
        node = _still(draft, work, Phase.CONFIGURING)
        if node is not None:
            draft.set_node(node, shape=shape or NO_SHAPE)

    return apply


def scripts_ended(work: Node, problem: str) -> Outcome:
    """The lifecycle scripts are done; ``problem`` is empty where they succeeded."""

    def apply(draft: Draft, policy: Policy) -> None:
        node = _still(draft, work, Phase.LIFECYCLE)
        if node is None:
            return
        if problem:
            said = f"Lifecycle scripts did not run successfully: {problem}"
            draft.tell_node(
                node,
                f"Instance lifecycle script execution for EC2 Instance {node.instance_id} "
                "has failed",
                level="Error",
                failure=said,
                script="Failed",
            )
            fails(draft, node, policy, said, is_script=True)
            fails_for_good(draft, node, said)
            return
        draft.tell_node(
            node,
            f"Instance lifecycle script execution for EC2 Instance {node.instance_id} "
            "has succeeded",
            script="Succeeded",
        )
        draft.move(node, Phase.JOINING)

    return apply


def slurm_refuses(problem: str, before: str) -> Outcome:
    """slurm.conf cannot be changed, or could (``problem`` is empty) after ``before``.

    Told with the nodes that wait for it, and as an event where it is news.
    """

    def apply(draft: Draft, _policy: Policy) -> None:
        for node in list(draft.nodes.values()):
            is_new = node.message != problem and (problem or node.message == before)
            if node.phase is Phase.CONFIGURING and is_new:
                draft.set_node(node, message=problem)
        if problem == before:
            return
        if problem:
            draft.tell_cluster("Slurm could not be reconfigured", "Error", problem)
        else:
            draft.tell_cluster("Slurm was reconfigured successfully")

    return apply


def slurm_lost(names: Collection[str]) -> Outcome:
    """Slurm has no more some nodes that are up: they are put there again."""

    def apply(draft: Draft, _policy: Policy) -> None:
        draft.tell_cluster(
            "Nodes were missing in Slurm",
            "Error",
            f"somebody has taken {fold(sorted(names))} out of slurm.conf; put there again",
        )

    return apply


def verified(work: Node, machine: Machine | None) -> Outcome:
    """The provider was asked for one machine that its list lacked."""

    def apply(draft: Draft, policy: Policy) -> None:
        node = draft.nodes.get(work.logical_id)
        if node is None or node.machine_id != work.machine_id:
            return
        if machine is not None and not machine.state.is_gone:
            return
        if node.phase in (Phase.TERMINATING, Phase.WAITING, Phase.LAUNCHING):
            return
        if node.phase is Phase.RUNNING:
            draft.end_bill(node)
            draft.tell_node(
                node,
                f"EC2 Instance {node.instance_id} is gone {draft.where(node)}",
                level="Error",
                failure="the provider knows no such instance any more",
            )
            machine_gone(draft, node, policy)
            return
        node = fails(draft, node, policy, "the instance is gone: the provider knows it no more")

    return apply


def terminated(work: Node, error: Exception | None) -> Outcome:
    """The provider has given the machine up, or could not."""

    def apply(draft: Draft, policy: Policy) -> None:
        node = _still(draft, work, Phase.TERMINATING)
        if node is None:
            return
        if error is None:
            machine_gone(draft, node, policy)
            return
        draft.tell_node(
            node,
            f"Failed to terminate EC2 Instance {node.instance_id} {draft.where(node)}",
            level="Error",
            failure=str(error),
        )
        wait = pause(policy, node.logical_id, 1)
        draft.set_node(node, message=str(error), not_before=draft.now + wait)

    return apply


def rebooted(work: Node, error: Exception | None) -> Outcome:
    """The provider was asked for a reboot."""

    def apply(draft: Draft, policy: Policy) -> None:
        node = _still(draft, work, Phase.REBOOTING)
        if node is None:
            return
        if error is None:
            draft.move(node, Phase.JOINING, not_before=draft.now + policy.again_s)
            return
        draft.tell_node(
            node,
            f"Failed to submit reboot request for EC2 Instance {node.instance_id}",
            level="Error",
            failure=str(error),
        )
        if isinstance(error, ProviderRefusedError):
            draft.move(node, Phase.RUNNING, message=str(error))
        else:
            wait = pause(policy, node.logical_id, 1)
            draft.set_node(node, message=str(error), not_before=draft.now + wait)

    return apply


def resumed(work: Node) -> Outcome:
    """Slurm was told to use the node: what is seen from now on shows it."""

    def apply(draft: Draft, _policy: Policy) -> None:
        node = _still(draft, work, Phase.JOINING)
        if node is not None:
            draft.move(node, Phase.JOINING)

    return apply


def look_again(work: Node, problem: str = "") -> Outcome:
    """Something was asked for whose effect is looked at, not believed, or could not be asked.

    It is asked for again after the policy's pause.
    """

    def apply(draft: Draft, policy: Policy) -> None:
        node = draft.nodes.get(work.logical_id)
        if node is not None and node.phase is work.phase:
            not_before = draft.now + policy.again_s
            draft.set_node(node, not_before=not_before, message=problem or node.message)

    return apply


def _still(draft: Draft, work: Node, phase: Phase) -> Node | None:
    node = draft.nodes.get(work.logical_id)
    if node is None or node.phase is not phase or node.token != work.token:
        return None
    return node


__all__ = [
    "Outcome",
    "inspected",
    "launch_failed",
    "launched",
    "look_again",
    "rebooted",
    "resumed",
    "scripts_ended",
    "slurm_lost",
    "slurm_refuses",
    "terminated",
    "verified",
]
