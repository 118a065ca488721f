"""Node recovery and provisioning in one process: never both at one node, and they converge.

Slurm and the machines are fakes; the store, the lease, recovery, provisioning and the controller's
own passes are real.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from provision_service import NoScripts
from provision_world import CONTROLLER, spec, workers
from recovery_world import FakeProvider, FakeSlurm
from sqlalchemy import Connection, event, select

from hpresume.controller.provisioning import Opening, Provisioning, while_leading
from hpresume.errors import LeadershipLostError, ProviderTransientError, ServiceBusyError
from hpresume.providers.model import LaunchRequest
from hpresume.provision import setup
from hpresume.provision.checking import Finding, Run, Verdict
from hpresume.provision.engine import OWNER as PROVISIONING
from hpresume.provision.model import State
from hpresume.provision.observed import SlurmNode
from hpresume.provision.pace import Pace
from hpresume.provision.policy import Policy as ProvisionPolicy
from hpresume.provision.ports import SlurmEntries
from hpresume.provision.service import ClusterUpdate, NodeAction
from hpresume.provision.setup import ProvisionConfig
from hpresume.provision.slurm_side import _seen
from hpresume.provision.tables import BillRow
from hpresume.recovery import check, table
from hpresume.recovery.model import Policy
from hpresume.recovery.observe import OWNER as RECOVERY
from hpresume.recovery.reasons import Kind
from hpresume.recovery.recoverer import Recoverer
from hpresume.slurm.models import Node
from hpresume.store import Fence, Lease, Store, open_store
from hpresume.store.holds import Holds

NODE = "workers-1"
RECOVER = Policy(
    down_grace_s=0.0, halt_share=1.0, max_per_hour=1000, down_steps=(Kind.REPLACE,),
    describe_every_s=0.1, retry_s=0.05, sweep_every_s=0.5,
)  # fmt: skip


class Side:
    """slurm.conf and slurmctld for provisioning, over the same fake as recovery's."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm = slurm

    def configure(self, entries: SlurmEntries) -> None:
        for entry in entries.nodes:
            known = self.slurm.known.get(entry.name) or Node(
                entry.name, frozenset({"IDLE"}), address=entry.address, hostname=entry.name,
                port=6818, boot_time=1.0, slurmd_start_time=1.0, partitions=("p1",),
            )  # fmt: skip
            self.slurm.known[entry.name] = replace(known, address=entry.address)

    def look(self) -> dict[str, SlurmNode]:
        return {n: _seen(node, is_settled=True) for n, node in self.slurm.known.items()}

    def drain(self, node: str, reason: str) -> None:
        self.slurm.update_node(node, State="DRAIN", Reason=reason)

    def down(self, node: str, reason: str) -> None:
        self.slurm.update_node(node, State="DOWN", Reason=reason)

    def resume(self, node: str) -> None:
        self.slurm.update_node(node, State="RESUME")


class Marking:
    """Deep checks that find every node bad, and tell so when ``over`` is set."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm = slurm
        self.over = threading.Event()

    def run(self, asked: Run) -> dict[str, Finding]:
        reason = "Action:Replace [hpresume cpu-stress] too slow"
        for node in asked.nodes:
            self.slurm.update_node(node, State="FAIL", Reason=reason)
        assert self.over.wait(20)
        return {node: Finding(Verdict.FAILED, "cpu-stress: too slow") for node in asked.nodes}


class Both:
    """The passes of one controller that leads, turned by hand."""

    checks: Marking

    def __init__(self, store: Store, provider: FakeProvider, slurm: FakeSlurm, name: str) -> None:
        self.store, self.provider, self.slurm = store, provider, slurm
        self.holds = Holds()
        self.lease = Lease(
            store, name, 1e6, time.monotonic, time.time, lambda holder: holder != name
        )
        self.leads = self.lease.try_hold() is not None
        self.config = ProvisionConfig(
            slurm_conf="of the fake",
            policy=ProvisionPolicy(retry_s=0.05, retry_max_s=0.2),
            pace=Pace(look_s=0.02, configure_s=0.02),
        )
        self.groups = Provisioning(self.config, store, provider, self.fence, self.holds)
        self.recovery = Recoverer(
            slurm, store, provider, check.no_check, RECOVER, self.fence, holds=self.holds,
            look=lambda names, nodes, config: [], shaped=self.groups.shaped,
            by_hand=self.groups.by_hand,
        )  # fmt: skip
        self.passes = [Opening(self.groups, self.recovery.hold), self.recovery, self.groups]
        self.api = while_leading(self.groups.service)

    def fence(self) -> Fence | None:
        return self.lease.fence if self.leads else None

    def turn(self) -> None:
        for each in self.passes:
            each.once()
        both = self.holds.of(RECOVERY) & self.holds.of(PROVISIONING)
        assert not both
        for name in self.slurm.known:
            assert len(self.provider.of(name)) <= 1

    def until(self, condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.turn()
            if found := condition():
                return found
            time.sleep(0.005)
        raise AssertionError(f"not within {timeout_s:g} s")

    def states(self) -> list[State]:
        return list(self.groups._opened[2].states.values())  # type: ignore[index]

    def record(self) -> Any:
        return next(n for s in self.states() for n in s.nodes.values() if n.name == NODE)

    def settled(self) -> bool:
        with self.store.read() as session:
            return self.record().is_up and not table.active(session)

    def bills(self) -> list[BillRow]:
        with self.store.read() as session:
            wanted = select(BillRow).where(BillRow.instance_group == "workers")
            return list(session.scalars(wanted.order_by(BillRow.began_at)))

    def end(self) -> None:
        for each in self.passes:
            each.close()


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    slurm = FakeSlurm(())
    slurm.clock = time.time
    provider = FakeProvider(on_start=lambda node: _boots(slurm, node))
    side = Side(slurm)
    monkeypatch.setattr(setup, "_slurm", lambda *_: lambda _state: side)
    monkeypatch.setattr(setup, "_scripts", lambda *_: NoScripts())
    checks = Marking(slurm)
    monkeypatch.setattr(setup, "_deep_checks", lambda *_: checks)
    made = Both(store, provider, slurm, "i1")
    made.checks = checks
    made.turn()
    made.api.create_cluster(spec(CONTROLLER, workers(1), NodeRecovery="Automatic"))
    made.until(lambda: _is_up(made))
    yield made
    checks.over.set()
    made.end()
    store.close()


def _is_up(both: Both) -> bool:
    return both.api.cluster("c1").group("workers").current_count == 1  # type: ignore[union-attr]


def _boots(slurm: FakeSlurm, node: str) -> None:
    if node in slurm.known:
        slurm.register(node)


def test_a_node_that_goes_down_is_replaced_once(both: Both) -> None:
    (before,) = both.provider.of(NODE)
    both.slurm.declare_down(NODE)
    both.until(lambda: both.record().machine_id != before.machine_id and both.settled())
    for _ in range(50):  # and nothing more comes of it
        both.turn()
        time.sleep(0.005)
    (machine,) = both.provider.of(NODE)
    assert both.record().machine_id == machine.machine_id
    assert machine.token.startswith("hpr-")
    assert both.provider.numbers == 3  # the controller's, the first, the second
    first, second = both.bills()
    assert (first.machine_id, second.machine_id) == (before.machine_id, machine.machine_id)
    assert first.ended_at is not None
    assert first.ended_at <= second.began_at
    assert second.ended_at is None


def test_a_launch_of_recovery_has_the_type_and_group_of_the_node(both: Both) -> None:
    asked = []
    launch = both.provider.launch
    both.provider.launch = lambda request: asked.append(request) or launch(request)  # type: ignore
    both.slurm.declare_down(NODE)
    both.until(lambda: asked and both.settled())
    (request,) = asked
    assert (request.group, request.instance_type) == ("workers", "ml.c5.xlarge")


def test_what_the_provider_told_before_recovery_let_go_is_not_believed(both: Both) -> None:
    """A list from between the old machine and the new one says that the node has none."""
    engine = both.groups._opened[2]  # type: ignore[index]
    assert both.holds.take(RECOVERY, NODE)
    (old,) = both.provider.of(NODE)
    both.provider.terminate(old.machine_id)
    both.slurm.update_node(NODE, State="FAIL", Reason="somebody works on it")
    asked = both.provider.calls.count("list")

    def steps(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 10
        while not condition() and time.monotonic() < deadline:
            engine.step()
            time.sleep(0.005)

    steps(lambda: both.provider.calls.count("list") > asked + 1)
    machines = engine._machines
    slow, machines._every_s = machines._every_s, 1e9
    steps(lambda: not machines._looking)
    new = both.provider.launch(LaunchRequest("hpr-aa-1", NODE))
    both.holds.release(RECOVERY, NODE)
    for _ in range(20):
        engine.step()
        time.sleep(0.005)
    assert both.record().machine_id == old.machine_id
    assert both.record().is_up
    machines._every_s = slow
    steps(lambda: both.record().machine_id == new.machine_id and both.record().is_up)
    assert both.provider.of(NODE) == [new]
    assert both.record().machine_id == new.machine_id


@pytest.mark.parametrize("asked", ["removal", "replacement", "deletion"])
def test_what_is_asked_for_while_recovery_acts_leaves_no_machine_behind(
    both: Both, asked: str
) -> None:
    """The machine that recovery is about to launch is the node's, whatever is asked meanwhile."""
    both.provider.faults.extend([("launch", "capacity")] * 2)
    both.slurm.declare_down(NODE)
    both.until(lambda: not both.provider.of(NODE))
    if asked == "removal":
        both.api.update_cluster("c1", ClusterUpdate({}, (workers(0),)), lambda _record: None)
    elif asked == "deletion":
        both.api.delete_cluster("c1", lambda _record: None)
    else:
        both.api.act_on_nodes(
            "c1",
            NodeAction.REPLACE,
            instance_ids=(),
            logical_ids=(both.record().logical_id,),
            judge=lambda _record, found: tuple(found),
        )
    assert NODE in both.holds.of(RECOVERY)
    if asked == "replacement":
        both.until(lambda: both.settled() and both.record().token.startswith("hpr-"))
        assert both.provider.numbers == 3  # one replacement, not two
        return
    both.until(lambda: not any(n.name == NODE for s in both.states() for n in s.nodes.values()))
    for _ in range(20):
        both.turn()
    assert both.provider.of(NODE) == []


def test_recovery_keeps_off_a_node_that_provisioning_replaces(both: Both) -> None:
    (before,) = both.provider.of(NODE)
    both.provider.faults.extend([("launch", "capacity")] * 5)
    both.api.act_on_nodes(
        "c1", NodeAction.REPLACE, instance_ids=(), logical_ids=(both.record().logical_id,),
        judge=lambda _record, found: tuple(found),
    )  # fmt: skip
    both.until(lambda: not both.provider.of(NODE))
    both.slurm.declare_down(NODE)
    both.until(lambda: both.settled() and both.record().machine_id != before.machine_id)
    (machine,) = both.provider.of(NODE)
    assert not machine.token.startswith("hpr-")
    with both.store.read() as session:
        assert all(not past.acted_at for past in table.past(session, 0.0))


def test_recovery_takes_a_bad_node_when_its_health_check_has_ended(both: Both) -> None:
    (before,) = both.provider.of(NODE)
    asked = {"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"]}
    both.api.start_health_check("c1", (asked,), lambda _record: None)
    both.until(lambda: "Action:Replace" in both.slurm.known[NODE].reason)
    for _ in range(50):
        both.turn()
    with both.store.read() as session:
        assert table.active(session) == ()
    assert both.provider.of(NODE) == [before]
    both.checks.over.set()
    both.until(lambda: both.settled() and both.record().machine_id != before.machine_id)
    (machine,) = both.provider.of(NODE)
    assert machine.token.startswith("hpr-")
    assert (both.record().machine_id, both.record().message) == (machine.machine_id, "")


def test_a_software_update_and_a_node_that_goes_down_meanwhile(both: Both) -> None:
    image = "ami-0123456789abcdef0"
    requests: list[LaunchRequest] = []
    launch = both.provider.launch
    both.provider.launch = lambda request: requests.append(request) or launch(request)  # type: ignore
    both.slurm.declare_down(NODE)
    both.until(lambda: NODE in both.holds.of(RECOVERY))
    both.api.update_software("c1", {"ImageId": image}, lambda _record: None)
    both.until(lambda: both.api.cluster("c1").status == "InService" and both.settled())
    assert both.record().image == image
    images = [request.image for request in requests if request.node == NODE]
    assert images == ["", image]  # recovery's, then the update's


def test_a_waiting_recovery_says_that_provisioning_has_the_node(both: Both) -> None:
    assert both.holds.take(PROVISIONING, NODE)
    both.slurm.update_node(NODE, State="FAIL", Reason="Action:Replace")
    both.recovery.once()
    with both.store.read() as session:
        assert table.active(session) == ()  # not even begun
    both.holds.release(PROVISIONING, NODE)
    both.recovery.once()
    assert both.holds.take(PROVISIONING, NODE)
    both.recovery.once()
    with both.store.read() as session:
        (waits,) = table.active(session)
    assert waits.note == "provisioning has the node in hand"
    assert both.slurm.known[NODE].reason == "Action:Replace"
    (machine,) = both.provider.of(NODE)
    both.holds.release(PROVISIONING, NODE)
    both.until(lambda: both.settled() and both.provider.of(NODE) != [machine])


def test_after_a_kill_recovery_has_its_node_before_provisioning_steps(both: Both) -> None:
    """The machine is gone, nothing is launched yet: provisioning must not make one too."""
    both.provider.faults.extend([("launch", "capacity")] * 3)
    both.slurm.declare_down(NODE)
    both.until(lambda: not both.provider.of(NODE))
    both.end()
    after = Both(both.store, both.provider, both.slurm, "i2")
    after.groups.open(after.recovery.hold)
    assert NODE in after.holds.of(RECOVERY)
    after.until(lambda: after.settled() and after.record().token.startswith("hpr-"))
    (machine,) = both.provider.of(NODE)
    assert after.record().machine_id == machine.machine_id
    assert both.provider.numbers == 3
    after.end()


def test_node_recovery_none_leaves_a_cluster_to_people(both: Both) -> None:
    update = ClusterUpdate({"NodeRecovery": "None"}, ())
    both.api.update_cluster("c1", update, lambda _record: None)
    (before,) = both.provider.of(NODE)
    both.slurm.declare_down(NODE)
    for _ in range(30):
        both.turn()
    assert both.provider.of(NODE) == [before]
    both.slurm.update_node(NODE, State="FAIL", Reason="Action:Replace")
    both.until(lambda: both.provider.of(NODE) != [before] and both.settled())


def test_without_the_lead_the_api_is_busy_and_nothing_is_launched(both: Both) -> None:
    both.leads = False
    fenced = both.groups._provider
    for call in (fenced.launch, fenced.terminate, fenced.reboot):
        with pytest.raises(ProviderTransientError, match="another instance leads"):
            call(None)  # type: ignore[arg-type]
    assert len(fenced.list()) == 2
    with pytest.raises(ServiceBusyError, match="does not lead"):
        both.api.cluster("c1")
    both.leads = True
    assert both.api.cluster("c1").name == "c1"


def test_a_lead_that_is_lost_in_a_call_is_told_as_busy() -> None:
    class Loses:
        def cluster(self, ref: str) -> None:
            raise LeadershipLostError(f"{ref}: i2 leads now, not i1")

    with pytest.raises(ServiceBusyError, match="i2 leads now"):
        while_leading(lambda: Loses()).cluster("c1")  # type: ignore[arg-type,return-value]


def test_a_database_without_room_is_told_as_busy(both: Both) -> None:
    both.turn()
    pages = [1]  # as where the disk is full: SQLite takes its present size for less

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages[0]}")

    event.listen(both.store.engine, "begin", begun)
    arn = both.api.cluster("c1").arn
    many = {f"k{n}": "v" * 256 for n in range(400)}
    with pytest.raises(ServiceBusyError, match=r"disk is full: send the request again"):
        both.api.change_tags(arn, lambda _tags: many)
    assert both.api.tags(arn) == {}
    pages[0] = 1_000_000
    assert both.api.change_tags(arn, lambda _tags: many) == many


def test_no_more_nodes_than_the_site_has_room_for(both: Both) -> None:
    both.groups.close()
    policy = replace(both.config.policy, max_per_group=2)
    both.groups._config = replace(both.config, policy=policy)
    both.turn()
    both.api.update_cluster("c1", ClusterUpdate({}, (workers(9),)), lambda _record: None)
    both.until(lambda: both.api.cluster("c1").group("workers").current_count == 2)
    for _ in range(20):
        both.turn()
    record = both.api.cluster("c1").group("workers")
    assert record is not None
    assert (record.current_count, record.target_count) == (2, 9)
    assert both.provider.numbers == 3
