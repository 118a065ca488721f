"""Continuous provisioning as the seed describes it, with a clock that stands still until told."""

from __future__ import annotations

import itertools

import pytest
from provision_world import CONTROLLER, LOGIN, World, group, running_world, shortage, spec, workers

from hpresume.errors import ProviderRefusedError, ProviderTransientError, RequestRefusedError
from hpresume.provision import requests
from hpresume.provision.model import ClusterStatus, Counts, Phase
from hpresume.provision.policy import HOUR
from hpresume.provision.service import NodeAction
from hpresume.provision.views import cluster_record, node_status

IN_SERVICE = ClusterStatus.IN_SERVICE


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
