"""Other counts, MinCount with its rollback, and deletion; the clock stands still until told."""

from __future__ import annotations

import pytest
from provision_world import CONTROLLER, LOGIN, World, group, running_world, shortage, workers

from hpresume.errors import ConflictError, RequestRefusedError
from hpresume.provision import requests
from hpresume.provision.model import ClusterStatus, GroupStatus, NodeType, OperationStatus, Phase
from hpresume.provision.policy import HOUR
from hpresume.provision.service import Addition, NodeAction
from hpresume.provision.views import cluster_record

IN_SERVICE = ClusterStatus.IN_SERVICE


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

    def test_a_login_node_that_is_powered_off_is_started_again(self) -> None:
        """No slurmd runs there: node recovery does not see it."""
        world = running_world()
        off = world.node("login-1")
        world.now += world.policy.retry_max_s
        world.provider.power_off(off.machine_id)
        world.step(1.0)
        assert not world.node("login-1").is_up
        world.settle(10)
        assert world.node("login-1").is_up
        assert world.node("login-1").machine_id == off.machine_id
        assert world.provider.reboots == [off.machine_id]
        assert len(world.told("is powered off")) == 1
        world.provider.power_off(off.machine_id)  # it does not last: not again and again
        world.settle(10)
        assert world.provider.reboots == [off.machine_id]
        world.now += world.policy.retry_max_s
        world.settle(10)
        assert world.provider.reboots == [off.machine_id] * 2

    def test_a_node_that_is_powered_off_is_left_to_others(self) -> None:
        """Workers to node recovery; all to people where NodeRecovery is None."""
        world = running_world()
        world.now += world.policy.retry_max_s
        world.provider.power_off(world.node("workers-1").machine_id)
        world.settle(5)
        assert world.provider.reboots == []
        world.update(NodeRecovery="None")
        world.provider.power_off(world.node("login-1").machine_id)
        world.settle(5)
        assert world.provider.reboots == []

    def test_a_list_that_lacks_a_machine_is_not_believed(self) -> None:
        world = running_world()
        seen = world.observed()
        machine = world.node("workers-1").machine_id
        machines = {key: m for key, m in (seen.machines or {}).items() if key != machine}
        world.observed = lambda: type(seen)(machines=machines, machines_at=world.now)  # type: ignore[method-assign]
        world.settle(5)
        assert world.node("workers-1").machine_id == machine
        assert world.up("workers") == 4


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
