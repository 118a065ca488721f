"""UpdateClusterSoftware: whole updates with a clock that is told."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from provision_world import CONTROLLER, LOGIN, World, group, workers
from provision_world import deployment_config as config

from hpresume.errors import CapacityError, ConflictError, RequestRefusedError
from hpresume.provision import requests
from hpresume.provision.model import ClusterStatus, GroupStatus, Leave, Phase
from hpresume.provision.service import NodeAction
from hpresume.provision.software import Stage
from hpresume.provision.updating import _CALLED_OFF_S
from hpresume.provision.views import cluster_record, node_record, node_status

NEW, BAD = "ami-0123456789abcdef0", "ami-0badbadbad"


def world(count: int = 4, *, slurm: bool = True) -> World:
    made = World(CONTROLLER, LOGIN, workers(count), slurm=slurm)
    made.settle(20)
    assert made.up("workers") == count
    return made


def stage(made: World, name: str = "workers") -> Stage | None:
    last = made.groups[name].update
    return last.stage if last else None


def only(name: str = "workers", **more: Any) -> dict[str, Any]:
    return {"InstanceGroups": [{"InstanceGroupName": name}], **more}


class TestUpdate:
    def test_one_batch_at_a_time_under_the_same_names(self) -> None:
        made = world()
        before = {n.logical_id: (n.name, n.machine_id) for n in made.nodes("workers")}
        made.update_software(**only(ImageId=NEW, DeploymentConfig=config(1)))
        least = 4
        while made.state.cluster.status is ClusterStatus.SYSTEM_UPDATING:
            made.step(1.0)
            least = min(least, made.up("workers"))
            assert len({m.node for m in made.provider.alive}) == len(made.provider.alive)
        assert (least, stage(made)) == (3, Stage.SUCCEEDED)
        after = {n.logical_id: (n.name, n.machine_id) for n in made.nodes("workers")}
        assert {k: v[0] for k, v in after.items()} == {k: v[0] for k, v in before.items()}
        assert not {v[1] for v in after.values()} & {v[1] for v in before.values()}
        launched = [r for r in made.provider.launches if r.image == NEW]
        assert sorted(r.node for r in launched) == [f"workers-{n}" for n in (1, 2, 3, 4)]
        assert len(made.told("updated successfully")) == 4
        assert len(made.told("completed successfully for IG workers")) == 1
        assert made.groups["workers"].status is GroupStatus.IN_SERVICE

    def test_in_the_order_of_numbers_also_where_a_lower_one_came_later(self) -> None:
        made = world(2)
        first = made.node("workers-1")
        made.ask(lambda draft, ref: requests.act(draft, NodeAction.DELETE, [first], ref))
        made.settle(20)
        made.update(workers(2))
        made.settle(20)
        assert [n.name for n in made.nodes("workers")] == ["workers-2", "workers-1"]
        made.update_software(**only(ImageId=NEW, DeploymentConfig=config(1)))
        made.settle(60)
        launched = [r.node for r in made.provider.launches if r.image == NEW]
        assert launched == ["workers-1", "workers-2"]

    def test_scripts_run_on_the_new_machines(self) -> None:
        made = world(2)
        made.ran.clear()
        made.update_software(**only())
        made.settle(30)
        machines = {n.machine_id for n in made.nodes("workers")}
        assert {machine for _, machine in made.ran} == machines

    def test_jobs_are_waited_for_as_long_as_they_run(self) -> None:
        made = world(2)
        made.busy = {"workers-1"}
        first = made.node("workers-1").machine_id
        made.update_software(**only(DeploymentConfig=config(1)))
        made.settle(50, 4000.0)
        node = made.node("workers-1")
        assert (node.phase, node.leave, node.machine_id) == (Phase.DRAINING, Leave.UPDATE, first)
        assert made.up("workers") == 1
        made.busy = set()
        made.settle(60)
        assert made.node("workers-1").machine_id != first
        assert stage(made) is Stage.SUCCEEDED

    def test_statuses_while_it_runs(self) -> None:
        made = world()
        made.update_software(ImageId=NEW, DeploymentConfig=config(50, percent=True))
        made.step(1.0)
        record = cluster_record(made.state)
        assert record.status == "SystemUpdating"
        assert {g.spec.name: g.status for g in record.groups} == dict.fromkeys(
            ("controller", "login", "workers"), "SystemUpdating"
        )
        told = {g.spec.name: g.details for g in record.groups}
        assert told["workers"]["SoftwareUpdateStatus"] == "InProgress"
        assert told["controller"]["SoftwareUpdateStatus"] == "Pending"
        assert told["workers"]["DesiredImageId"] == NEW
        assert told["workers"]["TargetStateCount"] == 0
        assert told["workers"]["ActiveSoftwareUpdateConfig"] == config(50, percent=True)
        seen = [node_status(node) for node in made.nodes("workers")]
        assert sorted(seen) == ["Running", "Running", "SystemUpdating", "SystemUpdating"]
        made.settle(80)
        told = {g.spec.name: g.details for g in cluster_record(made.state).groups}
        assert told["workers"] == {
            "CurrentImageId": NEW, "DesiredImageId": NEW, "SoftwareUpdateStatus": "Succeeded",
            "TargetStateCount": 4,
        }  # fmt: skip
        one = node_record(made.state, made.node("workers-1"))
        assert one.details["CurrentImageId"] == NEW
        assert one.updated_at > 0

    def test_the_controller_goes_last_and_one_group_at_a_time(self) -> None:
        made = world(2)
        before = len(made.provider.launches)
        made.update_software()
        made.settle(80)
        launched = [r.node for r in made.provider.launches[before:]]
        assert sorted(launched[:2]) == ["workers-1", "workers-2"]
        assert launched[2:] == ["login-1", "controller-1"]
        assert made.state.cluster.status is ClusterStatus.IN_SERVICE

    def test_the_pause_lies_between_batches_and_groups(self) -> None:
        made = world(2)
        made.update_software(DeploymentConfig=config(1, 300))
        begun: list[float] = []
        for _ in range(1500):
            chosen = {n.name for n in made.state.nodes.values() if n.updating}
            made.step(1.0)
            now = {n.name for n in made.state.nodes.values() if n.updating}
            if now and not chosen:
                begun.append(made.now)
        assert len(begun) == 4
        assert all(b - a > 300 for a, b in itertools.pairwise(begun))

    def test_a_release_is_set_for_each_group(self) -> None:
        made = world(1)
        named = {"InstanceGroupName": "workers", "ImageReleaseVersion": "1.2.3"}
        made.update_software(InstanceGroups=[named])
        made.settle(30)
        (record,) = (g for g in cluster_record(made.state).groups if g.spec.name == "workers")
        assert record.details["CurrentImageReleaseVersion"] == "1.2.3"
        assert made.node("login-1").image == ""

    def test_capacity_that_is_not_there_is_no_fault_of_the_image(self) -> None:
        made = world(2)
        made.provider.errors["workers-1"] = [CapacityError("none")] * 5
        made.update_software(**only(DeploymentConfig=config(1)))
        made.settle(40)
        assert (made.up("workers"), stage(made)) == (1, Stage.IN_PROGRESS)
        made.settle(600)
        assert (made.up("workers"), stage(made)) == (2, Stage.SUCCEEDED)

    def test_nodes_that_have_no_machine_get_the_new_software_when_they_have_one(self) -> None:
        made = World(CONTROLLER, workers(4))
        made.provider.capacity = 3
        made.settle(20)
        assert made.up("workers") == 2
        made.update_software(**only(ImageId=NEW))
        made.settle(40)
        assert stage(made) is Stage.SUCCEEDED
        made.provider.capacity = None
        made.settle(400)
        assert {n.image for n in made.nodes("workers")} == {NEW}
        assert made.up("workers") == 4

    def test_node_recovery_keeps_its_node(self) -> None:
        made = world(2)
        made.held = frozenset({"workers-1"})
        made.update_software(**only())
        made.settle(40)
        assert {n.name: n.revision for n in made.nodes("workers")} == {
            "workers-1": 0, "workers-2": 1,
        }  # fmt: skip
        made.held = frozenset()
        made.settle(40)
        assert stage(made) is Stage.SUCCEEDED


class TestRollback:
    def test_an_image_that_the_provider_refuses(self) -> None:
        made = world()
        made.provider.refused_images = {BAD}
        made.update_software(ImageId=BAD, DeploymentConfig=config(1))
        made.settle(60)
        assert [stage(made, n) for n in ("workers", "login", "controller")] == (
            [Stage.ROLLBACK_COMPLETE] * 3
        )
        assert made.state.cluster.status is ClusterStatus.IN_SERVICE
        assert {n.image for n in made.state.nodes.values()} == {""}
        assert made.up("workers") == 4
        # one machine was given up, no other node was touched
        assert len([r for r in made.provider.launches if r.image == BAD]) == 1
        assert len(made.told("UpdateClusterSoftware failed for IG workers")) == 1
        assert len(made.told("rolled back successfully")) == 1
        assert made.told("software update failed")

    def test_one_bad_machine_is_not_the_image(self) -> None:
        made = world(2)
        bad = iter([True, False, False, False])
        made.scripts = lambda node: "exit code 3" if node.image == NEW and next(bad) else ""
        made.update_software(**only(ImageId=NEW, DeploymentConfig=config(1)))
        made.settle(120)
        assert (made.up("workers"), stage(made)) == (2, Stage.SUCCEEDED)

    def test_the_second_one_is(self) -> None:
        made = world()
        seen: list[str] = []

        def scripts(node: Any) -> str:
            # the first batch works, the second does not
            if node.image != NEW or node.name in ("workers-1", "workers-2"):
                return ""
            seen.append(node.name)
            return "exit code 3"

        made.scripts = scripts
        made.update_software(**only(ImageId=NEW, DeploymentConfig=config(2, back=1)))
        statuses = set()
        for _ in range(200):
            made.step(1.0)
            statuses.add(made.state.cluster.status.value)
        assert {"SystemUpdating", "RollingBack", "InService"} == statuses
        assert stage(made) is Stage.ROLLBACK_COMPLETE
        assert {n.image for n in made.nodes("workers")} == {""}
        assert made.up("workers") == 4
        assert 2 <= len(seen) <= 4
        (event,) = made.told("UpdateClusterSoftware failed")
        assert "exit code 3" in event.metadata["InstanceGroupScaling"]["FailureMessage"]

    def test_a_rollback_that_fails_ends_and_the_nodes_are_tried_on(self) -> None:
        made = world(2)
        made.update_software(**only(ImageId=NEW, DeploymentConfig=config(1)))
        made.scripts = lambda node: "exit code 3"
        made.settle(200)
        assert stage(made) is Stage.FAILED
        assert made.state.cluster.status is ClusterStatus.IN_SERVICE
        made.scripts = lambda node: ""
        made.settle(60, 60.0)
        assert made.up("workers") == 2
        assert {n.image for n in made.nodes("workers")} == {""}

    def test_an_alarm_calls_the_drain_of_a_batch_off(self) -> None:
        made = world(2)
        made.busy = {"workers-1"}
        first = made.node("workers-1").machine_id
        alarm = {"AutoRollbackConfiguration": [{"AlarmName": "errors"}]}
        made.update_software(**only(ImageId=NEW, DeploymentConfig=config(1, **alarm)))
        made.settle(10)
        assert made.node("workers-1").phase is Phase.DRAINING
        made.alarms = frozenset({"errors"})
        made.settle(int(_CALLED_OFF_S) + 30)
        assert stage(made) is Stage.ROLLBACK_COMPLETE
        assert made.up("workers") == 2
        assert made.node("workers-1").machine_id == first
        assert made.drained == set()

    def test_the_next_update_begins_anew(self) -> None:
        made = world(2)
        made.provider.refused_images = {BAD}
        made.update_software(**only(ImageId=BAD))
        made.settle(60)
        made.update_software(**only(ImageId=NEW))
        made.settle(60)
        assert stage(made) is Stage.SUCCEEDED
        assert {n.image for n in made.nodes("workers")} == {NEW}


class TestMeanwhile:
    def test_the_group_grows_and_shrinks(self) -> None:
        made = world(3)
        made.update_software(**only(ImageId=NEW, DeploymentConfig=config(1)))
        made.step(1.0)
        made.update(workers(5))
        made.settle(4)
        made.update(workers(2))
        made.settle(120)
        assert stage(made) is Stage.SUCCEEDED
        assert (made.up("workers"), len(made.nodes("workers"))) == (2, 2)
        assert {n.image for n in made.nodes("workers")} == {NEW}

    def test_a_node_that_drains_and_is_removed_then_has_its_full_time(self) -> None:
        made = world(2)
        made.busy = {"workers-1", "workers-2"}
        made.update_software(**only())
        made.settle(5, 3000.0)
        made.update(workers(0))
        made.step(1.0)
        assert made.phases("workers") == [Phase.DRAINING] * 2
        made.step(made.policy.drain_timeout_s - 10)
        assert made.phases("workers") == [Phase.DRAINING] * 2

    def test_what_is_refused(self) -> None:
        made = world(2)
        made.update_software(**only())
        with pytest.raises(ConflictError, match="is SystemUpdating"):
            made.update_software()
        with pytest.raises(ConflictError, match="MinInstanceCount cannot change"):
            made.update(workers(2, minimum=2))
        made.settle(60)
        with pytest.raises(RequestRefusedError, match="no such group"):
            made.update_software(**only("nobody"))

    def test_a_group_that_waits_for_its_min_count(self) -> None:
        made = World(CONTROLLER, workers(2, minimum=2))
        made.provider.capacity = 2
        made.settle(20)
        with pytest.raises(ConflictError, match="workers is Creating"):
            made.update_software()

    def test_the_group_or_the_cluster_is_deleted(self) -> None:
        made = world(2)
        made.update_software(**only())
        made.step(1.0)
        made.update(delete=("workers",))
        made.settle(60)
        assert made.state.cluster.status is ClusterStatus.IN_SERVICE
        made.update_software()
        made.step(1.0)
        made.ask(lambda draft, _: requests.delete(draft))
        made.settle(60)
        assert made.is_gone
        assert made.provider.alive == []

    def test_a_node_of_the_batch_is_not_replaced_twice(self) -> None:
        made = world(2)
        made.busy = {"workers-1"}
        made.update_software(**only())
        made.settle(5)
        nodes = [made.node("workers-1")]
        made.ask(lambda draft, op: requests.act(draft, NodeAction.REPLACE, nodes, op))
        made.settle(5)
        assert made.node("workers-1").phase is Phase.DRAINING

    def test_the_image_of_a_group_changes_by_a_software_update_only(self) -> None:
        made = World(CONTROLLER, group("workers", "Compute", 1, ImageId=NEW))
        made.settle(20)
        assert made.node("workers-1").image == NEW
        made.update(group("workers", "Compute", 2, ImageId=NEW))
        with pytest.raises(RequestRefusedError, match="UpdateClusterSoftware changes it"):
            made.update(group("workers", "Compute", 2, ImageId=BAD))

    def test_a_new_group_has_the_image_of_the_earliest(self) -> None:
        made = World(group("controller", "Controller", 1, ImageId=NEW), workers(1))
        made.settle(20)
        assert made.node("workers-1").image == ""
        made.update(group("others", "Compute", 1), group("third", "Compute", 1, ImageId=BAD))
        made.settle(20)
        assert made.node("others-1").image == NEW
        assert made.node("third-1").image == BAD
