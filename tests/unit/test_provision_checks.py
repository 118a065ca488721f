"""StartClusterHealthCheck: what is checked, what is left out, and what becomes of the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from provision_world import CONTROLLER, LOGIN, World, group, workers

from hpresume.errors import ConflictError, RequestRefusedError, SlurmTransientError
from hpresume.provision.checking import CONNECTIVITY, STRESS, Finding, Run, Verdict, ended
from hpresume.provision.deep_checks import CommandDeepChecks, finding_of
from hpresume.provision.views import cluster_record, node_status, operation_record
from hpresume.slurm.runner import Runner

IN_PROGRESS = "DeepHealthCheckInProgress"
PASSED, FAILED, SKIPPED, UNKNOWN = Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED, Verdict.UNKNOWN


def asked(name: str = "workers", *ids: str, checks: tuple[str, ...] = (STRESS,)) -> dict[str, Any]:
    document: dict[str, Any] = {"InstanceGroupName": name, "DeepHealthChecks": list(checks)}
    return {**document, "InstanceIds": list(ids)} if ids else document


def world(count: int = 3) -> World:
    made = World(CONTROLLER, LOGIN, workers(count), group("others", "Compute", 1), slurm=True)
    made.settle(20)
    assert made.up("workers") == count
    return made


def all_pass(run: Run) -> dict[str, Finding]:
    return {name: Finding(PASSED) for name in run.nodes}


def statuses(made: World) -> dict[str, str]:
    return {node.name: node_status(node) for node in made.nodes("workers")}


class TestOperation:
    def test_from_the_request_to_the_results(self) -> None:
        made = world()
        runs: list[Run] = []

        def checks(run: Run) -> dict[str, Finding]:
            runs.append(run)
            return {
                "workers-1": Finding(PASSED),
                "workers-2": Finding(FAILED, "cpu-stress: 3 cores stood still"),
                "workers-3": Finding(SKIPPED, "it is allocated"),
            }

        operation = made.check_health(asked(checks=(STRESS, CONNECTIVITY)))
        assert set(statuses(made).values()) == {IN_PROGRESS}
        assert cluster_record(made.state).health_check_active
        assert cluster_record(made.state).status == "InService"
        made.checks = checks
        made.settle(3)
        (run,) = runs
        assert run.checks == (STRESS, CONNECTIVITY)
        assert run.nodes == ("workers-1", "workers-2", "workers-3")
        assert set(statuses(made).values()) == {"Running"}
        said = "Deep health check failed: cpu-stress: 3 cores stood still"
        assert made.node("workers-2").message == said
        assert not cluster_record(made.state).health_check_active
        told = {
            (event.level, event.description.rpartition("workers ")[2], event.operation)
            for event in made.told("Deep health check of EC2 Instance")
        }
        assert told == {
            ("Info", "has passed", operation),
            ("Error", "has failed", operation),
            ("Warn", "was skipped", operation),
        }

    def test_one_group_after_the_other(self) -> None:
        made = world(1)
        runs: list[tuple[str, tuple[str, ...]]] = []

        def checks(run: Run) -> dict[str, Finding]:
            runs.append((run.group, run.checks))
            return all_pass(run)

        made.checks = checks
        made.check_health(asked(), asked("others", checks=(CONNECTIVITY,)))
        made.settle(4)
        assert runs == [("workers", (STRESS,)), ("others", (CONNECTIVITY,))]

    def test_only_the_instances_that_are_named(self) -> None:
        made = world()
        instance = made.node("workers-2").instance_id
        made.check_health(asked("workers", instance))
        chosen = [name for name, status in statuses(made).items() if status == IN_PROGRESS]
        assert chosen == ["workers-2"]
        (operation,) = (op for op in made.state.operations.values() if op.checks)
        assert operation_record(operation).details == {
            "DeepHealthCheckDetails": [asked("workers", instance)]
        }

    def test_a_run_that_came_to_nothing_is_tried_again_but_not_for_ever(self) -> None:
        made = world(1)
        made.check_health(asked())
        made.settle(30, 10.0)
        assert statuses(made) == {"workers-1": IN_PROGRESS}
        made.step(made.policy.check_limit_s)
        made.settle(3)
        assert statuses(made) == {"workers-1": "Running"}
        (event,) = made.told("was skipped")
        assert event.metadata["Instance"]["FailureMessage"] == "another deep check"

    @pytest.mark.parametrize("how", ["lost", "held", "removed"])
    def test_a_node_that_cannot_be_checked_any_more_is_left_out(self, how: str) -> None:
        made = world(2)
        made.check_health(asked())
        if how == "lost":
            made.provider.lose(made.node("workers-1").machine_id)
            made.step(1.0)
        elif how == "held":
            made.held = frozenset({"workers-1"})
        else:
            made.update(workers(1))
            made.step(1.0)
        made.step(1.0)
        assert len([n for n in made.nodes("workers") if n.checking]) == 1
        assert len(made.told("was skipped")) == 1
        made.checks = all_pass
        made.settle(400)
        assert not any(op.checks for op in made.state.operations.values())
        assert len(made.told("has passed")) == 1

    def test_late_results_change_nothing(self) -> None:
        made = world(1)
        made.check_health(asked())
        runs: list[Run] = []
        made.checks = lambda run: runs.append(run)  # type: ignore[func-returns-value]
        made.step(1.0)
        made.held = frozenset({"workers-1"})
        made.step(1.0)
        events = len(made.events)
        made.do(ended(runs[0], {"workers-1": Finding(FAILED, "x")}))
        assert (len(made.events), made.node("workers-1").message) == (events, "")

    def test_a_software_update_waits_for_the_check(self) -> None:
        made = world(1)
        made.check_health(asked())
        made.update_software(InstanceGroups=[{"InstanceGroupName": "workers"}])
        made.settle(10)
        assert (made.node("workers-1").revision, made.up("workers")) == (0, 1)
        made.checks = all_pass
        made.settle(400)
        assert (made.node("workers-1").revision, made.up("workers")) == (1, 1)


class TestRefused:
    @pytest.mark.parametrize(
        ("configuration", "said"),
        [
            (asked("nobody"), "no such group"),
            (asked("login"), "only Compute"),
            (asked("workers", "i-0123456789abcdef0"), "no instance i-0123456789abcdef0"),
            (asked(checks=("MultiNodeTrainingValidation",)), "use InstanceStress"),
        ],
    )
    def test_what_cannot_be_checked(self, configuration: dict[str, Any], said: str) -> None:
        made = world(1)
        with pytest.raises(RequestRefusedError, match=said):
            made.check_health(configuration)
        assert statuses(made) == {"workers-1": "Running"}

    def test_a_group_without_a_running_node(self) -> None:
        made = World(CONTROLLER, workers(1))
        made.hold_scripts = lambda node: node.group == "workers"
        made.settle(20)
        with pytest.raises(RequestRefusedError, match="none of the nodes is Running"):
            made.check_health(asked())

    def test_one_at_a_time_and_only_in_service(self) -> None:
        made = world(1)
        made.check_health(asked())
        with pytest.raises(ConflictError, match="has an active health check"):
            made.check_health(asked("others"))
        made = world(1)
        made.update_software()
        with pytest.raises(ConflictError, match="is SystemUpdating"):
            made.check_health(asked())


def result(status: str = "pass", action: str = "none", *, hold: bool = False) -> dict[str, Any]:
    return {"check": "c", "status": status, "action": action, "hold": hold, "evidence": "why"}


@pytest.mark.parametrize(
    ("results", "finding"),
    [
        ([result(), result("skipped")], Finding(PASSED)),
        ([result(), result("fail")], Finding(PASSED)),  # a warning
        ([result(), result("unknown")], Finding(PASSED)),
        ([result(), result("fail", "replace")], Finding(FAILED, "c: why")),
        ([result("fail", hold=True)], Finding(FAILED, "c: why")),
        ([result("unknown")], Finding(UNKNOWN, "c: why")),
    ],
)
def test_the_verdict_of_a_node(results: list[dict[str, Any]], finding: Finding) -> None:
    assert finding_of({"nodes": {"n1": {"results": results}}}, "n1") == finding


def test_a_node_without_results_was_left_out() -> None:
    assert finding_of({"nodes": {}, "left_out": {"n1": "busy"}}, "n1") == Finding(SKIPPED, "busy")
    assert finding_of({"nodes": {}, "left_out": {}}, "n1") == Finding(SKIPPED, "it was left out")


class TestCommand:
    """A script in the place of ``hpresume deep-check`` writes down how it was called."""

    def run(self, tmp_path: Path, *checks: str, said: str, code: int) -> Any:
        program, self.called = tmp_path / "check", tmp_path / "called"
        program.write_text(f'#!/bin/sh\necho "$@" > {self.called}\n{said}\nexit {code}\n')
        program.chmod(0o755)
        command = CommandDeepChecks(Runner(), (str(program), "--policy", "p"), wait_s=5, limit_s=9)
        return command.run(Run("op", "workers", checks, ("w-1", "w-2")))

    @pytest.mark.parametrize(
        ("checks", "words"),
        [
            ((STRESS,), "--skip pair-network "),
            ((CONNECTIVITY,), "--only pair-network "),
            ((STRESS, CONNECTIVITY), ""),
        ],
    )
    def test_what_it_is_asked(self, tmp_path: Path, checks: tuple[str, ...], words: str) -> None:
        report = json.dumps({"nodes": {"w-1": {"results": [result()]}}, "left_out": {"w-2": "x"}})
        found = self.run(tmp_path, *checks, said=f"echo '{report}'", code=1)
        assert found == {"w-1": Finding(PASSED), "w-2": Finding(SKIPPED, "x")}
        assert self.called.read_text() == f"--policy p --json --wait 5 {words}w-1 w-2\n"

    def test_no_node_could_be_had(self, tmp_path: Path) -> None:
        found = self.run(tmp_path, STRESS, said="echo hpresume: all are busy >&2", code=1)
        assert found == dict.fromkeys(("w-1", "w-2"), Finding(SKIPPED, "hpresume: all are busy"))

    @pytest.mark.parametrize("code", [2, 130, 137])
    def test_what_has_to_be_tried_again(self, tmp_path: Path, code: int) -> None:
        with pytest.raises(SlurmTransientError, match="wait for it"):
            self.run(tmp_path, STRESS, said="echo wait for it >&2", code=code)
