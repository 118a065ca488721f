"""What to do next for one cluster: pure, from its state and one look at the world.

Called again and again. What has to be remembered is in the change, which is written
before any of the work starts; the work is idempotent, so a plan made after a crash asks for
what was under way again.
"""

from __future__ import annotations

from collections.abc import Callable

from hpresume.providers.model import Machine, MachineState
from hpresume.provision import checking
from hpresume.provision.draft import Draft
from hpresume.provision.model import ClusterStatus, Leave, Node, NodeType, Phase, State
from hpresume.provision.observed import Observed, Plan, Task, Work
from hpresume.provision.policy import Policy
from hpresume.provision.sizing import size_groups
from hpresume.provision.statuses import settle_cluster, settle_groups, settle_operations
from hpresume.provision.steps import ask_for_machine, begin_scripts, comes_up, fails, terminate
from hpresume.provision.updating import advance

#: Controllers first; then all others at once, a login node before workers where there is no room
#: for all calls at the same moment.
_ORDER = {NodeType.CONTROLLER: 0, NodeType.LOGIN: 1, NodeType.COMPUTE: 2}


#: For these reasons a machine goes only when its jobs have ended.
_DRAINS_FIRST = (Leave.REMOVE, Leave.UPDATE)


def plan(state: State, observed: Observed, policy: Policy, now: float) -> Plan:
    """Changes of the state, and work for the executor; reads no clock and does no I/O."""
    planner = _Planner(Draft(state, now), observed, policy)
    return planner.plan()


class _Planner:
    def __init__(self, draft: Draft, observed: Observed, policy: Policy) -> None:
        self._draft = draft
        self._seen = observed
        self._policy = policy
        self._deleting = draft.cluster.status is ClusterStatus.DELETING
        self._by_phase: dict[Phase, Callable[[Node], Task | None]] = {
            Phase.LAUNCHING: self._launching,
            Phase.BOOTING: self._booting,
            Phase.CONFIGURING: self._configuring,
            Phase.LIFECYCLE: self._lifecycle,
            Phase.JOINING: self._joining,
            Phase.RUNNING: self._running,
            Phase.REBOOTING: self._rebooting,
            Phase.DRAINING: self._draining,
            Phase.TERMINATING: self._terminating,
        }

    def plan(self) -> Plan:
        draft = self._draft
        work: list[Work] = []
        for node in list(draft.nodes.values()):
            self._advance(node)
        settle_groups(draft, self._policy)
        advance(draft, self._seen.held, self._seen.alarms)
        size_groups(draft, self._policy.max_per_group)
        checks = checking.advance(draft, self._seen.held)
        self._launch()
        for node in list(draft.nodes.values()):
            task = self._advance(node)
            if task is not None:
                work.append(Work(task, draft.nodes[node.logical_id]))
        # What came up in this very pass counts in it.
        settle_groups(draft, self._policy)
        settle_cluster(draft)
        settle_operations(draft)
        # A process that is killed before slurm.conf was cleared has to know of the cluster still.
        draft.is_gone = self._deleting and not draft.nodes and self._seen.is_cleared
        if draft.is_gone:
            draft.tell_cluster(f"Cluster {draft.cluster.name} deletion completed successfully")
        return Plan(draft.change(), tuple(work), self._strays(), checks)

    def _advance(self, node: Node) -> Task | None:
        """Take a node as far as what was seen allows; the work it waits for then, if any."""
        for _ in Phase:
            if node.name in self._seen.held:
                return None  # node recovery has it
            step = self._by_phase.get(node.phase)
            if step is None:
                return None
            task = step(node)
            after = self._draft.nodes.get(node.logical_id)
            if after is None or after.phase is node.phase:
                return task
            node = after
        return None

    def _launch(self) -> None:
        draft = self._draft
        if draft.cluster.status in (ClusterStatus.FAILED, ClusterStatus.DELETING):
            return
        room = self._policy.launch_width
        waiting = []
        for node in draft.nodes.values():
            if node.phase is Phase.LAUNCHING:
                room -= 1
            elif node.phase is Phase.WAITING and draft.now >= node.not_before:
                kind = draft.groups[node.group].node_type
                if kind is NodeType.CONTROLLER or draft.cluster.controller_up_at is not None:
                    waiting.append((_ORDER[kind], node))
        if room <= 0:
            return
        waiting.sort(key=lambda pair: pair[0])
        for _, node in waiting[:room]:
            if node.name not in self._seen.held:
                ask_for_machine(draft, node)

    def _launching(self, node: Node) -> Task | None:
        # Also for a node to be removed: only the provider's answer tells whether there is a
        # machine, and the same token makes no second one.
        return Task.LAUNCH if self._is_time(node) else None

    def _booting(self, node: Node) -> Task | None:
        if node.leave is not Leave.STAY:
            terminate(self._draft, node)
            return None
        machine = self._machine(node)
        if machine is not None and machine.state is MachineState.RUNNING:
            self._boots(node, machine)
            return None
        if self._draft.now - node.phase_since >= self._policy.boot_timeout_s:
            waited = f"{self._policy.boot_timeout_s:g} s"
            fails(self._draft, node, self._policy, f"the instance was not up after {waited}")
            return None
        return self._missing(node)

    def _boots(self, node: Node, machine: Machine) -> None:
        draft = self._draft
        draft.tell_node(
            node,
            f"EC2 Instance {node.instance_id} successfully provisioned {draft.where(node)}",
        )
        draft.move(
            node,
            Phase.CONFIGURING,
            address=machine.address or node.address,
            in_slurm=self._is_slurm_node(node),
            not_before=0.0,
        )

    def _configuring(self, node: Node) -> Task | None:
        if node.leave is not Leave.STAY:
            self._leave(node)
        elif not node.in_slurm:
            begin_scripts(self._draft, node)
        elif not node.shape:
            # Slurm takes a node's CPUs and memory only when it first hears of it.
            return self._run_on(node, Task.INSPECT)
        elif self._is_configured(node):
            begin_scripts(self._draft, node)
        return self._missing(node)

    def _lifecycle(self, node: Node) -> Task | None:
        if node.leave is not Leave.STAY:
            self._leave(node)
            return None
        if self._draft.groups[node.group].scripts:
            return self._run_on(node, Task.SCRIPTS)
        self._draft.move(node, Phase.JOINING)
        return None

    def _run_on(self, node: Node, task: Task) -> Task | None:
        """Run something on the machine, for as long as that is worth waiting for."""
        missing = self._missing(node)
        if missing is not None:
            return missing
        limit = self._policy.script_timeout_s
        if self._draft.now - node.phase_since >= limit:
            said = node.message or "no answer"
            fails(self._draft, node, self._policy, f"no {task} to an end in {limit:g} s: {said}")
            return None
        return task if self._is_time(node) else None

    def _joining(self, node: Node) -> Task | None:
        if node.leave is not Leave.STAY:
            self._leave(node)
            return None
        if not node.in_slurm:
            comes_up(self._draft, node)
            return None
        if not self._is_time(node):
            return None
        # What was seen before its scripts ended is not true any more: they hold it out of service.
        is_fresh = self._seen.slurm_at >= node.phase_since
        known = (self._seen.slurm or {}).get(node.name) if is_fresh else None
        if known is not None and known.is_ready:
            comes_up(self._draft, node)
            return None
        if known is not None and known.needs_resume:
            return Task.RESUME
        if self._draft.now - node.phase_since >= self._policy.join_timeout_s:
            waited = f"{self._policy.join_timeout_s:g} s"
            fails(self._draft, node, self._policy, f"slurmd was not registered after {waited}")
            return None
        return self._missing(node)

    def _running(self, node: Node) -> Task | None:
        # First: a node that is to go has to give up the machine that it has now.
        if self._replaced_by_recovery(node):
            return None
        if node.leave in _DRAINS_FIRST:
            self._leave(node)
            return None
        if node.leave is Leave.REPLACE:
            terminate(self._draft, node)
            return None
        if self._is_off(node):
            self._draft.tell_node(
                node,
                f"EC2 Instance {node.instance_id} is powered off {self._draft.where(node)}",
                level="Error",
                failure="the instance was stopped, or has crashed: it is started again",
            )
            self._draft.move(node, Phase.REBOOTING, not_before=0.0)
            return None
        return self._missing(node)

    def _is_off(self, node: Node) -> bool:
        """Whether a node that Slurm does not watch is powered off; not again and again."""
        draft, machine = self._draft, self._machine(node)
        return (
            machine is not None
            and machine.state is MachineState.STOPPED
            and self._seen.machines_at > node.phase_since
            and draft.now - node.phase_since >= self._policy.retry_max_s
            and draft.groups[node.group].node_type is not NodeType.COMPUTE
            and draft.cluster.spec.get("NodeRecovery") != "None"
        )

    def _rebooting(self, node: Node) -> Task | None:
        if node.leave is not Leave.STAY:
            self._leave(node)
            return None
        return Task.REBOOT if self._is_time(node) else None

    def _leave(self, node: Node) -> None:
        """A node leaves Slurm before its machine goes; one that is replaced keeps its place."""
        if node.in_slurm and node.leave in _DRAINS_FIRST and not self._deleting:
            self._draft.move(node, Phase.DRAINING, not_before=0.0)
        else:
            terminate(self._draft, node)

    def _draining(self, node: Node) -> Task | None:
        if node.leave is Leave.UPDATE:
            return self._emptying(node)
        policy, draft = self._policy, self._draft
        waited = draft.now - node.phase_since
        without_slurm = self._deleting or not self._seen.has_slurm
        if without_slurm or waited >= policy.drain_timeout_s + policy.join_timeout_s:
            terminate(draft, node, in_slurm=False)
            return None
        if not node.in_slurm:
            configured = self._seen.configured
            if configured is not None and node.name not in configured:
                terminate(draft, node)
            return None
        slurm = self._seen.slurm
        if slurm is None and waited < policy.drain_timeout_s:
            return None
        known = (slurm or {}).get(node.name)
        if known is None or known.is_drained or waited >= policy.drain_timeout_s:
            draft.set_node(node, in_slurm=False)
            return None
        return Task.DRAIN if self._is_time(node) else None

    def _emptying(self, node: Node) -> Task | None:
        """A node that keeps its place in Slurm: its machine goes when its last job has ended."""
        slurm = self._seen.slurm
        if self._deleting or not self._seen.has_slurm:
            terminate(self._draft, node)
            return None
        if slurm is None:
            return None
        known = slurm.get(node.name)
        if known is None or known.is_drained:
            terminate(self._draft, node)
            return None
        return Task.DRAIN if self._is_time(node) else None

    def _terminating(self, node: Node) -> Task | None:
        return Task.TERMINATE if self._is_time(node) else None

    def _missing(self, node: Node) -> Task | None:
        """A machine that the provider's list lacks is asked for by id before it counts as lost."""
        if self._seen.machines is None or self._seen.machines_at <= node.phase_since:
            return None
        return Task.VERIFY if node.machine_id not in self._seen.machines else None

    def _replaced_by_recovery(self, node: Node) -> bool:
        """Another machine stands behind the name: node recovery has replaced it."""
        machine = self._machine(node)
        if self._seen.machines is None or machine is not None:
            return False
        other = self._by_name.get(node.name)
        if other is None or other.state is not MachineState.RUNNING:
            return False
        draft = self._draft
        # The old machine went before the new one was asked for.
        draft.end_bill(node, other.launched_at)
        node = draft.move(
            node,
            Phase.CONFIGURING,
            machine_id=other.machine_id,
            token=other.token or node.token,
            address=other.address or node.address,
            launched_at=other.launched_at or draft.now,
            # A replacement that was asked for meanwhile has been had.
            leave=Leave.REMOVE if node.is_removed else Leave.STAY,
        )
        draft.tell_node(
            node,
            f"Instance {node.instance_id} is starting as part of instance replacement "
            f"{draft.where(node)}",
        )
        return True

    @property
    def _by_name(self) -> dict[str, Machine]:
        found = getattr(self, "_names", None)
        if found is None:
            known = {node.machine_id for node in self._draft.nodes.values()}
            found = self._names = {
                machine.node: machine
                for machine in (self._seen.machines or {}).values()
                if machine.node
                and machine.machine_id not in known
                and not machine.token.startswith(self._draft.cluster.cluster_id)
            }
        return found

    def _strays(self) -> tuple[str, ...]:
        """Machines that were launched for this cluster and that no node stands for any more."""
        prefix = f"{self._draft.cluster.cluster_id}-"
        ours = [
            machine
            for machine in (self._seen.machines or {}).values()
            if machine.token.startswith(prefix) and not machine.state.is_gone
        ]
        if not ours:
            return ()
        tokens = {node.token for node in self._draft.nodes.values()}
        ids = {node.machine_id for node in self._draft.nodes.values()}
        return tuple(
            m.machine_id for m in ours if m.token not in tokens and m.machine_id not in ids
        )

    def _machine(self, node: Node) -> Machine | None:
        return (self._seen.machines or {}).get(node.machine_id)

    def _is_time(self, node: Node) -> bool:
        return self._draft.now >= node.not_before

    def _is_slurm_node(self, node: Node) -> bool:
        kind = self._draft.groups[node.group].node_type
        return self._seen.has_slurm and kind is NodeType.COMPUTE

    def _is_configured(self, node: Node) -> bool:
        configured = self._seen.configured
        return configured is not None and configured.get(node.name) == node.address
