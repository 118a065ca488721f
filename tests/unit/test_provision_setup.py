"""Provisioning from the controller's file, and programs by a command of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from provision_service import PACE, until
from provision_world import CONTROLLER, group, spec
from simulated_provider import SimulatedProvider

from hpresume.errors import ConfigError, ProviderTransientError
from hpresume.providers.model import LaunchRequest
from hpresume.provision.jobs import NO_SCRIPTS
from hpresume.provision.ports import Hardware
from hpresume.provision.remote import RemotePrograms
from hpresume.provision.setup import ProvisionConfig, open_provisioning, parse
from hpresume.store import open_store


def test_an_empty_table_is_the_default() -> None:
    assert parse({}) == ProvisionConfig()


def test_a_whole_table() -> None:
    config = parse(
        {
            "region": "eu-central-1",
            "account": "111122223333",
            "slurm_conf": "/etc/slurm/slurm.conf",
            "restart_slurmctld": ["systemctl", "restart", "slurmctld"],
            "run_on": ["ssh", "root@{address}"],
            "drain_timeout": 60,
            "instance_types": {
                "ml.p5.48xlarge": {"parameters": "Gres=gpu:8", "gres": ["Name=gpu File=/dev/x"]}
            },
        }
    )
    assert config.policy.drain_timeout_s == 60.0
    assert config.hardware == {"ml.p5.48xlarge": Hardware("Gres=gpu:8", ("Name=gpu File=/dev/x",))}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"slurmconf": "x"}, "unknown key 'slurmconf'"),
        ({"account": "12"}, "twelve digits"),
        ({"region": "US East"}, "write a region as ARNs have it"),
        ({"run_on": "ssh"}, "list of texts"),
        ({"alarm_command": "x"}, "list of texts"),
        ({"drain_timeout": -1}, "number of seconds from 0"),
        ({"instance_types": "x"}, "write tables"),
        ({"instance_types": {"a": 1}}, "write tables"),
        ({"instance_types": {"a": {"gpus": 1}}}, "unknown key 'gpus'"),
        ({"instance_types": {"a": {"gres": "x"}}}, "list of texts"),
    ],
)
def test_what_cannot_be_is_one_line(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parse(values)
    assert "\n" not in str(caught.value)


def test_without_a_way_to_run_scripts_a_group_that_has_some_fails(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    service, engine = open_provisioning(ProvisionConfig(), store, SimulatedProvider(), pace=PACE)
    service.create_cluster(spec(CONTROLLER))
    try:
        until(lambda: engine.step() or service.cluster("c1").status == "Failed")
    finally:
        engine.close()
    assert NO_SCRIPTS in service.cluster("c1").failure_message
    store.close()


def test_a_group_without_scripts_needs_no_way(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    service, engine = open_provisioning(ProvisionConfig(), store, SimulatedProvider(), pace=PACE)
    service.create_cluster(spec(group("controller", "Controller", 1, LifeCycleConfig=None)))
    try:
        until(lambda: engine.step() or service.cluster("c1").status == "InService", 30)
    finally:
        engine.close()
    store.close()


@pytest.mark.parametrize(
    ("exit_code", "stage"), [("0", "Succeeded"), ("1", "RollbackComplete"), ("7", "InProgress")]
)
def test_an_alarm_of_the_sites_program_rolls_an_update_back(
    tmp_path: Path, exit_code: str, stage: str
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    state, asked = tmp_path / "state", tmp_path / "asked"
    state.write_text("0")
    asked.touch()
    program = tmp_path / "alarm"
    program.write_text(f'#!/bin/sh\necho "$1" >> {asked}\nexit "$(cat {state})"\n')
    program.chmod(0o755)
    config = parse({"alarm_command": [str(program), "name={alarm}"]})
    service, engine = open_provisioning(config, store, SimulatedProvider(), pace=PACE)
    workers = group("workers", "Compute", 2, LifeCycleConfig=None)
    service.create_cluster(
        spec(group("controller", "Controller", 1, LifeCycleConfig=None), workers)
    )

    def update() -> dict[str, Any]:
        return dict(service.cluster("c1").groups[1].details)

    policy = {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1}}
    alarms = [{"AlarmName": "too many errors"}]
    request = {
        "InstanceGroups": [{"InstanceGroupName": "workers"}],
        "DeploymentConfig": {"RollingUpdatePolicy": policy, "AutoRollbackConfiguration": alarms},
    }
    try:
        until(lambda: engine.step() or service.cluster("c1").groups[1].current_count == 2, 30)
        state.write_text(exit_code)
        service.update_software("c1", request, lambda record: None)
        until(lambda: engine.step() or update()["SoftwareUpdateStatus"] == stage, 30)
        if stage == "InProgress":
            # what is not known holds the next batch back, however often it is asked
            until(lambda: engine.step() or len(asked.read_text().splitlines()) > 3, 30)
        assert set(asked.read_text().splitlines()) == {"name=too many errors"}
        assert update()["SoftwareUpdateStatus"] == stage
        assert update()["TargetStateCount"] == (2 if stage == "Succeeded" else 0)
    finally:
        engine.close()
    store.close()


class TestRemote:
    """``env`` stands in for ssh: it takes a program and its words, and needs no other host."""

    @pytest.fixture
    def machine(self) -> tuple[SimulatedProvider, str]:
        provider = SimulatedProvider()
        return provider, provider.launch(LaunchRequest("t1", "workers-1")).machine_id

    def test_a_program_with_its_input_output_and_exit_code(self, machine: Any) -> None:
        provider, machine_id = machine
        programs = RemotePrograms(["env", "WHERE={node}"], provider)
        ran = programs.run(machine_id, ["cat"], b"in", 10.0)
        assert (ran.exit_code, ran.output) == (0, b"in")
        ran = programs.run(machine_id, ["printenv", "WHERE"], b"", 10.0)
        assert (ran.exit_code, ran.output) == (0, b"workers-1\n")
        assert programs.run(machine_id, ["false"], b"", 10.0).exit_code == 1

    def test_words_are_quoted_for_the_other_side(self, machine: Any) -> None:
        provider, machine_id = machine
        ran = RemotePrograms(["echo"], provider).run(machine_id, ["a b", "c$d"], b"", 10.0)
        assert ran.output == b"'a b' 'c$d'\n"

    @pytest.mark.parametrize(
        ("command", "argv"),
        [
            (["sh", "-c", "exit 255"], []),
            (["/no/such/program"], ["true"]),
            (["sleep"], ["60"]),
        ],
        ids=["no connection", "no program", "no end"],
    )
    def test_what_cannot_be_told_is_transient(
        self, machine: Any, command: list[str], argv: list[str]
    ) -> None:
        provider, machine_id = machine
        with pytest.raises(ProviderTransientError):
            RemotePrograms(command, provider).run(machine_id, argv, b"", 0.5)

    def test_a_machine_that_is_gone(self, machine: Any) -> None:
        provider, machine_id = machine
        provider.terminate(machine_id)
        with pytest.raises(ProviderTransientError, match="no such machine"):
            RemotePrograms(["env"], provider).run(machine_id, ["true"], b"", 1.0)
