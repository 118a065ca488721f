"""Continuous provisioning as the seed describes it, with a clock that stands still until told."""

from __future__ import annotations

import itertools

import pytest
from provision_world import CONTROLLER, LOGIN, World, group, spec, workers

from hpresume.errors import (
    CapacityError,
    ConflictError,
    ProviderRefusedError,
    ProviderTransientError,
    RequestRefusedError,
)
from hpresume.provision import requests
from hpresume.provision.model import (
    ClusterStatus,
    Counts,
    GroupStatus,
    NodeType,
    OperationStatus,
    Phase,
)
from hpresume.provision.policy import HOUR
from hpresume.provision.service import Addition, NodeAction
from hpresume.provision.views import cluster_record, node_status

IN_SERVICE = ClusterStatus.IN_SERVICE


def shortage() -> CapacityError:
    return CapacityError("no capacity")


def running_world(count: int = 4, **more: object) -> World:
    world = World(CONTROLLER, LOGIN, workers(count, **more))
    world.settle(10)
    assert world.state.cluster.status is IN_SERVICE
    assert world.up("workers") == count
    return world


class TestOrder:
    def test_the_request_is_accepted_and_its_targets_recorded(self) -> None:
        world = World(CONTROLLER, LOGIN, workers(16, minimum=2))
        assert world.state.cluster.status is ClusterStatus.CREATING
        assert {g.name: Counts(g.minimum, g.target) for g in world.groups.values()} == {
            "controller": Counts(1, 1),
            "login": Counts(1, 1),
            "workers": Counts(2, 16),
        }
        assert world.provider.launches == []

    def test_nothing_but_the_controller_is_launched_until_it_is_up(self) -> None:
        world = World(CONTROLLER, LOGIN, workers(3))
        world.hold_scripts = lambda node: node.group == "controller"
        world.settle(20)
        assert {request.node for request in world.provider.launches} == {"controller-1"}
        assert world.phases("workers") == [Phase.WAITING] * 3

    def test_then_login_and_workers_are_launched_in_the_same_pass(self) -> None:
        world = World(CONTROLLER, LOGIN, workers(3))
        while world.up("controller") == 0:
            before = len(world.provider.launches)
            world.step(1.0)
        assert {request.node for request in world.provider.launches[before:]} == {
            "login-1",
            "workers-1",
            "workers-2",
            "workers-3",
        }

    def test_in_service_with_a_controller_and_a_login_node_and_without_any_worker(self) -> None:
        world = World(CONTROLLER, LOGIN, workers(3))
        world.hold_scripts = lambda node: node.group != "controller"
        world.settle(20)
        assert world.state.cluster.status is ClusterStatus.CREATING
        world.hold_scripts = lambda node: node.group == "workers"
        world.settle(3)
        assert world.state.cluster.status is IN_SERVICE
        assert world.up("workers") == 0

    def test_without_a_login_group_the_controller_is_enough(self) -> None:
        world = World(CONTROLLER, workers(3))
        world.hold_scripts = lambda node: node.group == "workers"
        world.settle(10)
        assert world.state.cluster.status is IN_SERVICE


class TestPartialCapacity:
    def test_what_there_is_works_and_the_rest_arrives_when_there_is_more(self) -> None:
        world = World(CONTROLLER, workers(10))
        world.provider.capacity = 7
        world.settle(30)
        assert (world.state.cluster.status, world.up("workers")) == (IN_SERVICE, 6)
        world.provider.capacity = None
        world.settle(400)
        assert world.up("workers") == 10

    def test_retries_back_off_and_every_one_has_a_token_of_its_own(self) -> None:
        world = World(CONTROLLER, workers(1))
        world.provider.errors["workers-1"] = [shortage() for _ in range(6)]
        world.settle(1500)
        tried = [r.token for r in world.provider.launches if r.node == "workers-1"]
        assert len(tried) == len(set(tried)) == 7
        assert world.up("workers") == 1
        assert world.node("workers-1").failures == 0
        assert len(world.told("Failed to provision EC2 Instance")) == 6

    def test_a_pause_doubles_up_to_its_ceiling(self) -> None:
        world = World(CONTROLLER, workers(1))
        world.provider.errors["workers-1"] = [shortage() for _ in range(12)]
        tries: list[float] = []
        for _ in range(3000):
            before = len(world.provider.launches)
            world.step(1.0)
            if any(r.node == "workers-1" for r in world.provider.launches[before:]):
                tries.append(world.now)
        waits = [b - a for a, b in itertools.pairwise(tries)]
        assert 8 <= waits[0] <= 13
        assert waits[4] > 100
        assert max(waits) <= 300 * 1.2 + 2

    def test_a_call_whose_answer_is_lost_is_made_again_with_the_same_token(self) -> None:
        world = World(CONTROLLER, workers(5))
        world.provider.lost_answers = 1.0
        world.settle(30)
        world.provider.lost_answers = 0.0
        world.settle(200)
        assert world.up("workers") == 5
        assert len(world.provider.alive) == 6
        assert {m.token for m in world.provider.alive} == {
            node.token for node in world.state.nodes.values()
        }

    def test_a_worker_whose_scripts_fail_gets_another_machine(self) -> None:
        world = World(CONTROLLER, workers(2))
        world.scripts = lambda node: "exit code 3" if node.name == "workers-1" else ""
        world.settle(5)
        assert (world.state.cluster.status, world.up("workers")) == (IN_SERVICE, 1)
        node = world.node("workers-1")
        assert node_status(node) in ("Failure", "Pending")
        assert "exit code 3" in node.message
        world.scripts = lambda node: ""
        world.settle(60)
        assert world.up("workers") == 2
        assert len({machine for key, machine in world.ran if key == node.logical_id}) >= 2
        assert len(world.provider.alive) == 3

    def test_a_machine_that_does_not_boot_is_replaced(self) -> None:
        world = World(CONTROLLER, workers(1))
        while not world.up("controller"):
            world.step(1.0)
        world.provider.boot_s = 1e9
        world.settle(40, 60.0)
        world.provider.boot_s = 0.0
        world.settle(10, 60.0)
        assert world.up("workers") == 1
        assert world.told("Instance creation")
        assert len(world.provider.alive) == 2

    def test_a_machine_whose_scripts_do_not_end_is_replaced(self) -> None:
        world = World(CONTROLLER, workers(1))
        world.hold_scripts = lambda node: node.group == "workers"
        world.settle(5)
        first = world.node("workers-1").machine_id
        world.settle(2, 3 * HOUR)
        world.hold_scripts = lambda node: False
        world.settle(60)
        assert world.up("workers") == 1
        assert world.node("workers-1").machine_id != first
        assert len(world.provider.alive) == 2

    def test_a_machine_that_vanishes_while_its_scripts_run_is_replaced(self) -> None:
        world = World(CONTROLLER, workers(1))
        world.hold_scripts = lambda node: node.group == "workers"
        world.settle(5)
        first = world.node("workers-1").machine_id
        world.provider.lose(first)
        world.settle(30)
        assert world.node("workers-1").machine_id not in ("", first)


class TestController:
    def test_a_fault_that_may_pass_is_tried_again_until_it_is_up(self) -> None:
        world = World(CONTROLLER, LOGIN, workers(1))
        world.provider.errors["controller-1"] = [ProviderTransientError("try later")] * 3
        world.settle(30)
        assert world.state.cluster.status is ClusterStatus.CREATING
        world.settle(200)
        assert world.state.cluster.status is IN_SERVICE

    @pytest.mark.parametrize(
        "error",
        [shortage(), ProviderRefusedError("no such instance type")],
        ids=["full", "refused"],
    )
    def test_no_capacity_for_the_controller_is_final(self, error: Exception) -> None:
        world = World(CONTROLLER, workers(1))
        world.provider.errors["controller-1"] = [error]  # type: ignore[list-item]
        world.settle(500)
        assert world.state.cluster.status is ClusterStatus.FAILED
        assert str(error) in world.state.cluster.failure
        assert len(world.provider.launches) == 1
        assert world.told("creation failed")
        assert cluster_record(world.state).failure_message == world.state.cluster.failure

    def test_failing_scripts_of_the_controller_are_final(self) -> None:
        world = World(CONTROLLER, workers(1))
        world.scripts = lambda node: "on_create.sh: exit code 1"
        world.settle(100)
        assert world.state.cluster.status is ClusterStatus.FAILED
        assert "exit code 1. Mend that and call UpdateCluster" in world.state.cluster.failure
        assert world.provider.alive == []

    def test_nodes_that_are_up_stay_when_the_creation_fails(self) -> None:
        world = World(CONTROLLER, LOGIN, workers(2))
        world.hold_scripts = lambda node: node.group == "login"
        world.settle(10)
        assert (world.state.cluster.status, world.up("workers")) == (ClusterStatus.CREATING, 2)
        world.provider.lose(world.node("controller-1").machine_id)
        world.provider.errors["controller-1"] = [shortage()]
        world.settle(100)
        assert world.state.cluster.status is ClusterStatus.FAILED
        assert world.up("workers") == 2

    def test_a_lost_controller_is_replaced_and_the_workers_are_kept(self) -> None:
        world = World(CONTROLLER, LOGIN, workers(2))
        world.hold_scripts = lambda node: node.group == "login"
        world.settle(10)
        kept = {node.machine_id for node in world.nodes("workers")}
        world.provider.lose(world.node("controller-1").machine_id)
        world.hold_scripts = lambda node: node.group == "controller"
        world.settle(10)
        assert world.state.cluster.status is ClusterStatus.CREATING
        world.hold_scripts = lambda node: False
        world.settle(10)
        assert world.state.cluster.status is IN_SERVICE
        assert {node.machine_id for node in world.nodes("workers")} == kept

    def test_other_types_mend_a_failed_creation_whichever_way_they_are_named(self) -> None:
        world = World(CONTROLLER, workers(1))
        types = {"InstanceTypes": ["ml.m5.large", "ml.m5.xlarge"]}
        for given, expected in (
            ({"InstanceType": None, "InstanceRequirements": types}, "ml.m5.large"),
            ({}, "ml.c5.xlarge"),
        ):
            world.update(group("controller", "Controller", 1, **given))
            assert world.groups["controller"].instance_type == expected
            named = {"InstanceType", "InstanceRequirements"} & set(world.groups["controller"].spec)
            assert len(named) == 1

    def test_an_update_mends_a_failed_creation(self) -> None:
        world = World(CONTROLLER, workers(1))
        world.provider.errors["controller-1"] = [shortage()]
        world.settle(50)
        other = group("controller", "Controller", 1, InstanceType="ml.m5.xlarge")
        world.update(other)
        assert world.state.cluster.status is ClusterStatus.CREATING
        world.settle(20)
        assert world.state.cluster.status is IN_SERVICE
        controllers = [r for r in world.provider.launches if r.node == "controller-1"]
        assert controllers[-1].instance_type == "ml.m5.xlarge"

    def test_once_in_service_a_shortage_for_the_controller_does_not_fail_the_cluster(self) -> None:
        world = running_world()
        world.provider.lose(world.node("controller-1").machine_id)
        world.provider.errors["controller-1"] = [shortage()] * 3
        world.settle(200)
        assert world.state.cluster.status is IN_SERVICE
        assert world.up("controller") == 1


class TestScaling:
    def test_several_groups_and_one_group_twice_without_waiting(self) -> None:
        world = World(CONTROLLER, workers(2), group("others", "Compute", 1, partition="p2"))
        world.settle(10)
        world.hold_scripts = lambda node: True
        first = world.update(workers(4))
        other = world.update(group("others", "Compute", 3, partition="p2"))
        world.settle(3)
        second = world.update(workers(6))
        world.settle(3)
        assert set(world.state.operations) == {other, second}
        assert len(world.nodes("workers")) == 6
        world.hold_scripts = lambda node: False
        world.settle(5)
        assert (world.up("workers"), world.up("others")) == (6, 3)
        assert world.state.operations == {}
        assert first != second
        ended = [
            (event.group, event.operation)
            for event in world.told("scaling in Cluster c1 completed successfully")
        ]
        assert ended == [("others", other), ("workers", second)]
        assert len(world.told("creation in Cluster c1 completed successfully")) == 3

    def test_the_cluster_stays_in_service_while_it_scales(self) -> None:
        world = running_world()
        world.hold_scripts = lambda node: True
        world.update(workers(8))
        world.settle(5)
        assert world.state.cluster.status is IN_SERVICE
        record = cluster_record(world.state).group("workers")
        assert record is not None
        assert (record.current_count, record.target_count, record.scaling_operations) == (4, 8, 1)

    def test_additions_add_up(self) -> None:
        world = running_world()
        world.hold_scripts = lambda node: True
        for _ in range(2):
            world.ask(lambda draft, op: requests.add(draft, [Addition("workers", 3, {})], op))
        assert world.groups["workers"].target == 10
        assert len(world.state.operations) == 2
        world.hold_scripts = lambda node: False
        world.settle(10)
        assert (world.up("workers"), world.state.operations) == (10, {})

    def test_scaling_down_takes_the_nodes_that_are_not_well_first_then_the_newest(self) -> None:
        world = running_world(3)
        world.settle(10)
        world.update(workers(5))
        world.settle(10)
        sick = world.node("workers-2")
        world.provider.lose(sick.machine_id)
        world.provider.errors["workers-2"] = [shortage()] * 50
        world.settle(5)
        world.update(workers(3))
        world.settle(10)
        assert sorted(node.name for node in world.nodes("workers")) == [
            "workers-1",
            "workers-3",
            "workers-4",
        ]

    def test_scaling_to_zero_and_back(self) -> None:
        world = running_world()
        world.update(workers(0))
        world.settle(10)
        assert world.nodes("workers") == []
        assert len(world.provider.alive) == 2
        world.update(workers(2))
        world.settle(10)
        assert sorted(node.name for node in world.nodes("workers")) == ["workers-1", "workers-2"]

    def test_scaling_down_during_the_launch_leaves_no_machine(self) -> None:
        world = running_world(1)
        world.provider.lost_answers = 1.0
        world.update(workers(6))
        world.step(1.0)
        assert world.phases("workers").count(Phase.LAUNCHING) == 5
        world.update(workers(1))
        world.provider.lost_answers = 0.0
        world.settle(60)
        assert len(world.nodes("workers")) == 1
        assert len(world.provider.alive) == 3

    def test_chosen_nodes_are_deleted_and_the_target_with_them(self) -> None:
        world = running_world(4, minimum=4)
        chosen = world.node("workers-2")
        world.ask(lambda d, op: requests.act(d, NodeAction.DELETE, [chosen], op))
        world.settle(10)
        assert (world.groups["workers"].target, world.groups["workers"].minimum) == (3, 3)
        assert "workers-2" not in {node.name for node in world.nodes("workers")}
        assert world.groups["workers"].status is GroupStatus.IN_SERVICE

    def test_the_controller_cannot_be_deleted(self) -> None:
        world = running_world()
        chosen = world.node("controller-1")
        with pytest.raises(RequestRefusedError, match="controller"):
            world.ask(lambda d, op: requests.act(d, NodeAction.DELETE, [chosen], op))

    def test_a_replaced_node_keeps_its_name_and_logical_id(self) -> None:
        world = running_world()
        before = world.node("workers-2")
        world.ask(lambda d, op: requests.act(d, NodeAction.REPLACE, [before], op))
        world.settle(10)
        after = world.node("workers-2")
        assert after.logical_id == before.logical_id
        assert after.machine_id != before.machine_id
        assert after.is_up
        assert [m for key, m in world.ran if key == after.logical_id] == [
            before.machine_id,
            after.machine_id,
        ]
        assert world.told(
            f"Instance {after.instance_id} creation completed successfully as part of instance "
            "replacement in Cluster c1 and IG workers"
        )

    def test_a_rebooted_node_keeps_its_machine_and_runs_no_scripts_again(self) -> None:
        world = running_world()
        before = world.node("workers-2")
        world.ask(lambda d, op: requests.act(d, NodeAction.REBOOT, [before], op))
        world.step(1.0)
        assert not world.node("workers-2").is_up
        world.settle(30)
        after = world.node("workers-2")
        assert (after.machine_id, after.is_up) == (before.machine_id, True)
        assert world.provider.reboots == [before.machine_id]
        where = f"{before.instance_id} in Cluster c1 and IG workers completed successfully"
        assert len(world.told(f"Instance reboot {where}")) == 1
        assert len(world.told(f"Instance creation {where}")) == 1
        assert [m for key, m in world.ran if key == after.logical_id] == [before.machine_id]

    def test_a_machine_that_vanishes_is_replaced(self) -> None:
        world = running_world()
        lost = world.node("workers-3")
        world.provider.lose(lost.machine_id)
        world.settle(10)
        assert world.node("workers-3").is_up
        assert world.node("workers-3").machine_id != lost.machine_id

    def test_a_list_that_lacks_a_machine_is_not_believed(self) -> None:
        world = running_world()
        seen = world.observed()
        machine = world.node("workers-1").machine_id
        machines = {key: m for key, m in (seen.machines or {}).items() if key != machine}
        world.observed = lambda: type(seen)(machines=machines, machines_at=world.now)  # type: ignore[method-assign]
        world.settle(5)
        assert world.node("workers-1").machine_id == machine
        assert world.up("workers") == 4


class TestRecovery:
    def test_a_node_in_the_hands_of_recovery_is_left_alone(self) -> None:
        world = running_world()
        world.held = frozenset({"workers-1"})
        world.provider.lose(world.node("workers-1").machine_id)
        world.settle(20)
        assert len(world.provider.alive) == 5
        assert world.node("workers-1").phase is Phase.RUNNING

    def test_what_recovery_replaced_is_taken_over_with_its_scripts_run(self) -> None:
        world = running_world()
        before = world.node("workers-1")
        world.held = frozenset({"workers-1"})
        machine = world.provider.replace_behind("workers-1")
        world.settle(5)
        world.held = frozenset()
        world.settle(5)
        after = world.node("workers-1")
        assert (after.machine_id, after.is_up) == (machine.machine_id, True)
        assert after.logical_id == before.logical_id
        assert (after.logical_id, machine.machine_id) in world.ran
        assert len(world.provider.alive) == 6

    def test_removal_waits_for_recovery(self) -> None:
        world = running_world()
        world.held = frozenset(node.name for node in world.nodes("workers"))
        world.update(workers(0))
        world.settle(10)
        assert len(world.provider.alive) == 6
        world.held = frozenset()
        world.settle(10)
        assert len(world.provider.alive) == 2


class TestMinCount:
    def test_a_new_group_is_creating_until_it_is_reached(self) -> None:
        world = World(CONTROLLER, workers(6, minimum=4))
        world.provider.capacity = 4
        world.settle(30)
        assert world.state.cluster.status is IN_SERVICE
        assert (world.groups["workers"].status, world.up("workers")) == (GroupStatus.CREATING, 3)
        world.provider.capacity = 5
        world.settle(400)
        assert (world.groups["workers"].status, world.up("workers")) == (GroupStatus.IN_SERVICE, 4)
        assert len(world.told("Minimum capacity reached: InstanceGroup workers")) == 1

    def test_the_rest_goes_on_after_it(self) -> None:
        world = World(CONTROLLER, workers(6, minimum=2))
        world.settle(20)
        assert world.up("workers") == 6

    def test_all_or_nothing_is_min_count_at_the_target(self) -> None:
        world = World(CONTROLLER, workers(3, minimum=3))
        world.provider.capacity = 3
        world.settle(30)
        assert world.groups["workers"].status is GroupStatus.CREATING

    def test_without_min_count_a_group_is_in_service_from_the_start(self) -> None:
        world = World(CONTROLLER, workers(6))
        assert world.groups["workers"].status is GroupStatus.IN_SERVICE
        assert world.told("Minimum capacity reached") == []

    def test_an_existing_group_is_updating_until_it_is_reached(self) -> None:
        world = running_world(2)
        world.provider.capacity = 5
        world.update(workers(6, minimum=4))
        world.settle(5)
        assert (world.groups["workers"].status, world.up("workers")) == (GroupStatus.UPDATING, 3)
        world.provider.capacity = 6
        world.settle(100)
        assert world.groups["workers"].status is GroupStatus.IN_SERVICE

    def test_a_min_count_that_is_met_changes_no_status(self) -> None:
        world = running_world(4)
        world.update(workers(6, minimum=4))
        assert world.groups["workers"].status is GroupStatus.IN_SERVICE

    def test_falling_below_it_later_changes_no_status(self) -> None:
        world = running_world(2, minimum=2)
        world.provider.lose(world.node("workers-1").machine_id)
        world.provider.errors["workers-1"] = [shortage()] * 99
        world.settle(20)
        assert (world.groups["workers"].status, world.up("workers")) == (GroupStatus.IN_SERVICE, 1)

    def test_additions_are_blocked_meanwhile(self) -> None:
        world = World(CONTROLLER, workers(6, minimum=6))
        world.provider.capacity = 3
        world.settle(20)
        with pytest.raises(RequestRefusedError, match="not InService"):
            world.ask(lambda d, op: requests.add(d, [Addition("workers", 1, {})], op))
        assert cluster_record(world.state).group("workers").awaits_min_count  # type: ignore[union-attr]

    def test_removals_are_blocked_meanwhile(self) -> None:
        world = World(CONTROLLER, workers(6, minimum=6))
        world.provider.capacity = 3
        world.settle(20)
        chosen = [node for node in world.nodes("workers") if node.is_up]
        with pytest.raises(RequestRefusedError, match="waits for its MinCount"):
            world.ask(lambda d, op: requests.act(d, NodeAction.DELETE, chosen, op))
        assert world.groups["workers"].target == 6

    def test_counts_can_be_mended_meanwhile(self) -> None:
        world = World(CONTROLLER, workers(6, minimum=6))
        world.provider.capacity = 3
        world.settle(20)
        world.update(workers(2, minimum=2))
        world.settle(5)
        assert (world.groups["workers"].status, world.up("workers")) == (GroupStatus.IN_SERVICE, 2)

    def test_groups_and_clusters_can_be_deleted_meanwhile(self) -> None:
        world = World(CONTROLLER, workers(6, minimum=6))
        world.provider.capacity = 3
        world.settle(20)
        world.update(delete=("workers",))
        world.settle(20)
        assert "workers" not in world.groups
        assert len(world.provider.alive) == 1


class TestRollback:
    def late(self, *, before: int | None) -> World:
        """A group that has 3 of the 6 it must have; ``before`` is its size before, if it was."""
        if before is None:
            world = World(CONTROLLER, workers(6, minimum=6))
        else:
            world = running_world(before)
            world.update(workers(6, minimum=6))
        world.provider.capacity = 3 + (1 if before is None else 2)
        world.settle(20)
        assert world.groups["workers"].in_flux
        return world

    def test_a_new_group_goes_back_to_nothing(self) -> None:
        world = self.late(before=None)
        world.settle(1, 3 * HOUR - 60)
        assert world.groups["workers"].status is GroupStatus.CREATING
        world.step(60.0)
        world.step()
        after = world.groups["workers"]
        assert (after.status, after.minimum, after.target) == (GroupStatus.IN_SERVICE, 0, 0)
        assert len(world.told("Rollback initiated")) == 1
        world.settle(10)
        assert world.nodes("workers") == []
        assert world.state.operations == {}

    def test_an_existing_group_goes_back_to_its_last_in_service_state(self) -> None:
        world = self.late(before=2)
        kept = {n.name for n in sorted(world.nodes("workers"), key=lambda n: n.index)[:2]}
        world.step(3 * HOUR)
        world.step()
        after = world.groups["workers"]
        assert (after.status, after.minimum, after.target) == (GroupStatus.IN_SERVICE, 0, 2)
        world.settle(10)
        assert {node.name for node in world.nodes("workers")} == kept

    def test_the_status_is_in_service_at_once_though_nodes_still_go(self) -> None:
        world = self.late(before=None)
        world.step(3 * HOUR)
        made = world.plan()
        group_after = made.change.groups["workers"]
        assert group_after is not None
        assert group_after.status is GroupStatus.IN_SERVICE
        assert world.up("workers") == 3

    def test_every_update_of_min_count_starts_the_timer_again(self) -> None:
        world = self.late(before=2)
        world.step(2 * HOUR)
        world.update(workers(6, minimum=5))
        world.step(2 * HOUR)
        world.step()
        assert world.groups["workers"].status is GroupStatus.UPDATING
        world.step(HOUR)
        world.step()
        after = world.groups["workers"]
        assert (after.status, after.minimum, after.target) == (GroupStatus.IN_SERVICE, 0, 2)

    def test_an_update_without_min_count_does_not(self) -> None:
        world = self.late(before=2)
        world.step(2 * HOUR)
        world.update(workers(7))
        world.step(HOUR)
        world.step()
        assert world.groups["workers"].target == 2

    def test_the_time_until_the_controller_is_up_does_not_count(self) -> None:
        world = World(CONTROLLER, workers(2, minimum=2))
        world.hold_scripts = lambda node: node.group == "controller"
        world.settle(5, HOUR)
        world.hold_scripts = lambda node: False
        world.settle(5)
        assert (world.groups["workers"].status, world.up("workers")) == (GroupStatus.IN_SERVICE, 2)

    def test_the_controller_group_has_no_rollback(self) -> None:
        world = World(CONTROLLER, workers(1))
        world.hold_scripts = lambda node: True
        world.settle(10, HOUR)
        assert world.groups["controller"].target == 1

    def test_operations_that_are_rolled_back_are_superseded(self) -> None:
        world = self.late(before=2)
        (operation,) = world.state.operations
        changes = []
        take = world.take
        world.take = lambda change: (changes.append(change), take(change))[1]  # type: ignore[method-assign,func-returns-value]
        world.step(3 * HOUR)
        world.step()
        ended = [op for change in changes for op in change.operations]
        assert [(op.operation_id, op.status) for op in ended] == [
            (operation, OperationStatus.SUPERSEDED)
        ]


class TestDeletion:
    @pytest.mark.parametrize("passes", range(8))
    def test_from_any_state_nothing_is_left(self, passes: int) -> None:
        world = World(CONTROLLER, LOGIN, workers(4, minimum=2), slurm=True)
        world.settle(passes)
        world.ask(lambda draft, _: requests.delete(draft))
        assert world.state.cluster.status is ClusterStatus.DELETING
        world.settle(40)
        assert world.is_gone
        assert world.provider.alive == []
        assert world.told("Cluster c1 deletion completed successfully")

    def test_it_is_known_until_slurm_conf_is_cleared(self) -> None:
        """Whoever is killed between the last machine and slurm.conf has to find it again."""
        world = World(CONTROLLER, workers(2), slurm=True)
        world.settle(20)
        world.ask(lambda draft, _: requests.delete(draft))
        world.slurm_answers = False
        world.settle(20)
        assert (world.state.nodes, world.provider.alive) == ({}, [])
        assert not world.is_gone
        world.slurm_answers = True
        world.settle(2)
        assert world.configured == {}
        assert world.is_gone

    def test_the_controller_goes_last(self) -> None:
        world = running_world()
        world.ask(lambda draft, _: requests.delete(draft))
        controller = world.of_type(NodeType.CONTROLLER)[0].machine_id
        world.settle(10)
        assert world.provider.terminated[-1] == controller
        assert len(world.provider.terminated) == 6

    def test_a_failed_cluster_can_be_deleted(self) -> None:
        world = World(CONTROLLER, workers(1))
        world.scripts = lambda node: "no"
        world.settle(10)
        assert world.state.cluster.status is ClusterStatus.FAILED
        world.ask(lambda draft, _: requests.delete(draft))
        world.settle(10)
        assert world.is_gone

    def test_twice_is_once_and_updates_are_refused(self) -> None:
        world = running_world()
        world.hold_scripts = lambda node: True
        world.ask(lambda draft, _: requests.delete(draft))
        world.ask(lambda draft, _: requests.delete(draft))
        assert len(world.told("deletion started")) == 1
        with pytest.raises(ConflictError, match="being deleted"):
            world.update(workers(9))

    def test_a_group_goes_with_its_nodes(self) -> None:
        world = running_world()
        world.update(delete=("workers",))
        assert world.groups["workers"].status is GroupStatus.DELETING
        with pytest.raises(ConflictError, match="being deleted"):
            world.update(workers(9))
        world.settle(10)
        assert "workers" not in world.groups
        assert len(world.provider.alive) == 2
        assert world.state.operations == {}

    def test_the_controller_group_is_not_deleted_by_itself(self) -> None:
        world = running_world()
        with pytest.raises(RequestRefusedError, match="Controller group"):
            world.update(delete=("controller",))


class TestRefused:
    @pytest.mark.parametrize("strategy", ["Overwrite", "Managed", "Merge"])
    def test_any_slurm_config_strategy(self, strategy: str) -> None:
        orchestrator = {"Slurm": {"SlurmConfigStrategy": strategy}}
        with pytest.raises(RequestRefusedError, match="SlurmConfigStrategy"):
            requests.create(
                spec(CONTROLLER, workers(1), Orchestrator=orchestrator), "c", "a", "o", 0.0
            )
        world = running_world()
        with pytest.raises(RequestRefusedError, match="SlurmConfigStrategy"):
            world.update(Orchestrator=orchestrator)

    def test_a_minimum_above_the_count(self) -> None:
        with pytest.raises(RequestRefusedError, match="MinInstanceCount 3"):
            World(CONTROLLER, workers(2, minimum=3))

    def test_two_controller_groups_and_none(self) -> None:
        with pytest.raises(RequestRefusedError, match="2 Controller Groups found"):
            World(CONTROLLER, group("more", "Controller", 1))
        with pytest.raises(RequestRefusedError, match="0 Controller Groups found"):
            World(workers(1))

    def test_another_type_under_running_nodes(self) -> None:
        world = running_world()
        with pytest.raises(RequestRefusedError, match="instance type"):
            world.update(workers(4, InstanceType="ml.m5.xlarge"))

    def test_names_that_differ_only_in_case(self) -> None:
        with pytest.raises(RequestRefusedError, match="more than case"):
            World(CONTROLLER, workers(1), group("Workers", "Compute", 1))


class TestSlurm:
    def world(self, count: int = 2) -> World:
        world = World(CONTROLLER, LOGIN, workers(count), slurm=True)
        world.settle(15)
        assert world.up("workers") == count
        return world

    def test_a_node_joins_before_it_counts(self) -> None:
        world = World(CONTROLLER, workers(2), slurm=True)
        world.unready = {"workers-1"}
        world.settle(15)
        assert set(world.configured) == {"workers-1", "workers-2"}
        assert world.up("workers") == 1
        world.unready = set()
        world.settle(2)
        assert world.up("workers") == 2

    def test_a_node_that_never_registers_is_replaced(self) -> None:
        world = World(CONTROLLER, workers(1), slurm=True)
        world.unready = {"workers-1"}
        world.settle(5)
        first = world.node("workers-1").machine_id
        world.settle(30, 60.0)
        world.unready = set()
        world.settle(30, 60.0)
        assert world.up("workers") == 1
        assert world.node("workers-1").machine_id != first

    def test_a_removed_node_drains_first_then_leaves_slurm_conf_then_its_machine_goes(self) -> None:
        world = self.world()
        world.busy = {"workers-2"}
        world.update(workers(1))
        world.settle(20)
        assert world.node("workers-2").phase is Phase.DRAINING
        assert len(world.provider.alive) == 4
        world.busy = set()
        world.step(1.0)
        assert len(world.provider.alive) == 4
        world.settle(5)
        assert set(world.configured) == {"workers-1"}
        assert len(world.provider.alive) == 3

    def test_a_job_that_does_not_end_holds_the_removal_only_so_long(self) -> None:
        world = self.world()
        world.busy = {"workers-2"}
        world.update(workers(1))
        world.settle(10)
        world.settle(3, HOUR)
        world.settle(5)
        assert len(world.provider.alive) == 3

    def test_a_replaced_node_stays_in_slurm_conf(self) -> None:
        world = self.world()
        chosen = world.node("workers-2")
        world.ask(lambda d, op: requests.act(d, NodeAction.REPLACE, [chosen], op))
        for _ in range(10):
            world.step(1.0)
            assert "workers-2" in world.configured
        assert world.configured["workers-2"] == world.node("workers-2").address != chosen.address
        assert world.up("workers") == 2
