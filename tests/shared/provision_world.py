"""Provisioning without threads, database and clock: plan, work and outcomes in one loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from simulated_provider import SimulatedProvider

from hpresume.errors import CapacityError, ProviderError
from hpresume.providers.model import LaunchRequest
from hpresume.provision import checking, outcomes, requests, updating
from hpresume.provision.checking import Finding, Run
from hpresume.provision.draft import Draft, applied
from hpresume.provision.model import (
    Bill,
    Change,
    ClusterStatus,
    Event,
    Group,
    Node,
    NodeType,
    Phase,
    State,
)
from hpresume.provision.observed import Observed, Plan, SlurmNode, Task, Work
from hpresume.provision.plan import plan
from hpresume.provision.policy import Policy
from hpresume.provision.ports import SlurmEntries, slurm_entries
from hpresume.provision.service import ClusterSpec, ClusterUpdate, GroupSpec

SCRIPTS = {"SourceS3Uri": "s3://bucket/scripts/", "OnCreate": "on_create.sh"}


def group(name: str, kind: str, count: int, **more: Any) -> GroupSpec:
    """A group as the API gets it."""
    slurm: dict[str, Any] = {"NodeType": kind}
    if kind == "Compute":
        slurm["PartitionNames"] = [more.pop("partition", "p1")]
    document: dict[str, Any] = {
        "InstanceGroupName": name,
        "InstanceType": "ml.c5.xlarge",
        "InstanceCount": count,
        "ExecutionRole": "arn:aws:iam::111122223333:role/role-for-cluster",
        "LifeCycleConfig": SCRIPTS,
        "SlurmConfig": slurm,
    }
    if "minimum" in more:
        document["MinInstanceCount"] = more.pop("minimum")
    document.update(more)
    return GroupSpec({key: value for key, value in document.items() if value is not None})


CONTROLLER = group("controller", "Controller", 1)
LOGIN = group("login", "Login", 1)


def workers(count: int, **more: Any) -> GroupSpec:
    return group("workers", "Compute", count, **more)


def spec(*groups: GroupSpec, **more: Any) -> ClusterSpec:
    document = {"NodeProvisioningMode": "Continuous", "Orchestrator": {"Slurm": {}}, **more}
    return ClusterSpec("c1", document, groups)


def deployment_config(
    batch: int = 1, wait: int = 0, *, percent: bool = False, **more: Any
) -> dict[str, Any]:
    """DeploymentConfig of a software update: so many nodes at once, and a pause (s)."""
    kind = "CAPACITY_PERCENTAGE" if percent else "INSTANCE_COUNT"
    policy: dict[str, Any] = {"MaximumBatchSize": {"Type": kind, "Value": batch}}
    if "back" in more:
        policy["RollbackMaximumBatchSize"] = {"Type": kind, "Value": more.pop("back")}
    document: dict[str, Any] = {"RollingUpdatePolicy": policy, **more}
    return {**document, "WaitIntervalInSeconds": wait} if wait else document


class World:
    """One cluster and everything around it; time passes only when told to.

    ``scripts`` decides how the lifecycle scripts of a node end ("" is well). ``hold_scripts`` are
    the nodes whose scripts are still running, ``held`` those in the hands of node recovery.
    ``checks`` is what a deep health check finds; None where it has to be tried again.
    ``killed``: the process dies after
    that work is done outside and before its outcome is written.
    """

    def __init__(self, *groups: GroupSpec, policy: Policy | None = None, slurm: bool = False):
        self.now = 1_000_000.0
        self.provider = SimulatedProvider(lambda: self.now)
        self.policy = policy or Policy()
        self.slurm = slurm
        self.slurm_answers = True
        self.scripts: Callable[[Node], str] = lambda node: ""
        self.hold_scripts: Callable[[Node], bool] = lambda node: False
        self.held: frozenset[str] = frozenset()
        self.alarms: frozenset[str] | None = frozenset()
        self.killed: Callable[[Work], bool] = lambda work: False
        self.checks: Callable[[Run], dict[str, Finding] | None] = lambda run: None
        self.busy: set[str] = set()
        self.drained: set[str] = set()
        self.unready: set[str] = set()
        self.configured: dict[str, str] = {}
        self.entries: SlurmEntries | None = None
        self.events: list[Event] = []
        self.bills: list[Bill] = []
        self.ran: list[tuple[str, str]] = []
        self.is_gone = False
        self._ids = (f"{n:08d}-0000-4000-8000-000000000000" for n in itertools.count(1))
        draft = requests.create(
            spec(*groups), "abcdefghij01", "arn:test", next(self._ids), self.now
        )
        self.state = State(draft.cluster)
        self.take(draft.change())

    def take(self, change: Change) -> None:
        self.events += change.events
        self.bills += change.bills
        self.is_gone = self.is_gone or change.is_gone
        self.state = applied(self.state, change)

    def ask(self, work: Callable[[Draft, str], object]) -> str:
        """A request: its operation's id."""
        draft = Draft(self.state, self.now)
        operation = next(self._ids)
        work(draft, operation)
        self.take(draft.change())
        return operation

    def update(self, *groups: GroupSpec, delete: tuple[str, ...] = (), **document: Any) -> str:
        update = ClusterUpdate(document, groups, delete)
        return self.ask(lambda draft, operation: requests.update(draft, update, operation))

    def do(self, outcome: outcomes.Outcome) -> None:
        draft = Draft(self.state, self.now)
        outcome(draft, self.policy)
        self.take(draft.change())

    def check_health(self, *configurations: dict[str, Any]) -> str:
        return self.ask(lambda draft, op: checking.start(draft, configurations, op))

    def update_software(self, **document: Any) -> None:
        self.ask(lambda draft, _: updating.start(draft, document))

    def observed(self) -> Observed:
        machines = {machine.machine_id: machine for machine in self.provider.list()}
        nodes = {
            name: SlurmNode(
                is_ready=name not in self.unready and name not in self.drained,
                is_drained=name in self.drained and name not in self.busy,
                needs_resume=name in self.drained,
            )
            for name in self.configured
        }
        return Observed(
            machines=machines,
            machines_at=self.now,
            has_slurm=self.slurm,
            configured=dict(self.configured) if self.slurm else None,
            slurm=nodes if self.slurm else None,
            is_cleared=not self.slurm or self.entries == SlurmEntries(),
            slurm_at=self.now,
            held=self.held,
            alarms=self.alarms,
        )

    def plan(self) -> Plan:
        return plan(self.state, self.observed(), self.policy, self.now)

    def step(self, seconds: float = 0.0) -> Plan:
        """One pass: plan, write, work, outcomes; then time passes."""
        made = self.plan()
        self.take(made.change)
        for work in made.work:
            self.carry_out(work)
        for run in made.checks:
            findings = self.checks(run)
            if findings is not None:
                self.do(checking.ended(run, findings))
            else:
                self.do(checking.not_run(run, "another deep check"))
        for machine_id in made.strays:
            self.provider.terminate(machine_id)
        if self.slurm and self.slurm_answers and not self.is_gone:
            self.entries = slurm_entries(self.state)
            self.configured = {entry.name: entry.address for entry in self.entries.nodes}
            self.drained &= set(self.configured)
        self.now += seconds
        return made

    def settle(self, passes: int = 60, seconds: float = 1.0) -> None:
        for _ in range(passes):
            self.step(seconds)

    def carry_out(self, work: Work) -> None:
        node = work.node
        done: outcomes.Outcome | None = None
        if work.task is Task.LAUNCH:
            try:
                machine = self.provider.launch(
                    LaunchRequest(
                        node.token,
                        node.name,
                        self.groups[node.group].instance_type,
                        image=node.image,
                    )
                )
                done = outcomes.launched(node, machine)
            except ProviderError as error:
                done = outcomes.launch_failed(node, error)
        elif work.task is Task.VERIFY:
            done = outcomes.verified(node, self.provider.describe(node.machine_id))
        elif work.task is Task.SCRIPTS:
            if self.hold_scripts(node):
                return
            self.ran.append((node.logical_id, node.machine_id))
            done = outcomes.scripts_ended(node, self.scripts(node))
        elif work.task is Task.INSPECT:
            done = outcomes.inspected(node, "CPUs=2")
        elif work.task is Task.TERMINATE:
            self.provider.terminate(node.machine_id)
            done = outcomes.terminated(node, None)
        elif work.task is Task.REBOOT:
            self.provider.reboot(node.machine_id)
            done = outcomes.rebooted(node, None)
        elif work.task is Task.DRAIN:
            self.drained.add(node.name)
            done = outcomes.look_again(node)
        elif work.task is Task.RESUME:
            self.drained.discard(node.name)
            done = outcomes.look_again(node)
        if done is not None and not self.killed(work):
            self.do(done)

    @property
    def groups(self) -> dict[str, Group]:
        return dict(self.state.groups)

    def nodes(self, group: str) -> list[Node]:
        return [node for node in self.state.nodes.values() if node.group == group]

    def node(self, name: str) -> Node:
        return next(node for node in self.state.nodes.values() if node.name == name)

    def up(self, group: str) -> int:
        return sum(node.is_up for node in self.nodes(group))

    def phases(self, group: str) -> list[Phase]:
        return [node.phase for node in self.nodes(group)]

    def told(self, text: str) -> list[Event]:
        return [event for event in self.events if text in event.description]

    def of_type(self, kind: NodeType) -> list[Node]:
        return [n for n in self.state.nodes.values() if self.groups[n.group].node_type is kind]


def shortage() -> CapacityError:
    return CapacityError("no capacity")


def running_world(count: int = 4, **more: object) -> World:
    """A cluster in service with its workers up."""
    world = World(CONTROLLER, LOGIN, workers(count, **more))
    world.settle(10)
    assert world.state.cluster.status is ClusterStatus.IN_SERVICE
    assert world.up("workers") == count
    return world
