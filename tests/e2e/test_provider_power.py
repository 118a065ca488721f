"""Slurm's power saving as a provider, with programs that switch the dev cluster's hosts."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cluster import E2eCluster, wait_for
from provider_contract import ProviderContract, alive, new_token
from remote_gateway import RemoteGateway

from hpresume.errors import DevClusterError, ProviderRefusedError, ProviderTransientError
from hpresume.providers.model import LaunchRequest, MachineState
from hpresume.providers.power import PowerProvider

pytestmark = pytest.mark.e2e

PROGRAM = """#!/bin/sh
for node in $(scontrol show hostnames "${1:-$(hostname)}"); do echo VERB $node >> LOG; done
"""


class Switchboard:
    """Does what Slurm's programs write down: they run inside the cluster, its power is outside."""

    def __init__(self, cluster: E2eCluster, log: Path) -> None:
        self.cluster = cluster
        self.log = log
        self._done = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            for line in self.lines()[self._done :]:
                verb, node = line.split()
                self._done += 1
                if verb in ("suspend", "reboot"):
                    with suppress(DevClusterError):
                        self.cluster.crash(node)
                if verb == "reboot":
                    # slurmctld believes in a reboot only where it ended in a later second than
                    # it was asked for in; no real machine is that fast
                    self._over.wait(1.1)
                if verb in ("resume", "reboot"):
                    with suppress(DevClusterError):
                        self.cluster.boot(node, report_boot=True)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="hpresume-power-", dir="/var/tmp"))
    made.chmod(0o755)
    for verb in ("suspend", "resume", "reboot"):
        program = made / verb
        program.write_text(PROGRAM.replace("VERB", verb).replace("LOG", str(made / "log")))
        program.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def module_cluster(machine: None, folder: Path) -> Iterator[E2eCluster]:
    settings = {
        "SuspendProgram": folder / "suspend",
        "ResumeProgram": folder / "resume",
        "RebootProgram": folder / "reboot",
        "SuspendTime": 86400,
        "SuspendTimeout": 1,
        "ResumeTimeout": 30,
        "SuspendRate": 0,
        "ResumeRate": 0,
        "SlurmctldParameters": "power_save_interval=1",
        "ReturnToService": 2,
    }
    overrides = tuple((key, str(value)) for key, value in settings.items())
    cluster = E2eCluster.start(nodes=3, gpus_per_node=0, overrides=overrides)
    yield cluster
    cluster.down()


class PowerWorld:
    """Two nodes that are powered down, or on their way there."""

    nodes = ("n2", "n3")

    def __init__(self, cluster: E2eCluster, switchboard: Switchboard, gateway) -> None:
        self.cluster = cluster
        self.switchboard = switchboard
        self.gateway = gateway
        for machine in self.open().list():
            if machine.node in self.nodes:
                self.open().terminate(machine.machine_id)

    def open(self) -> PowerProvider:
        return PowerProvider(self.gateway)

    def settle(self, condition) -> None:
        try:
            wait_for(condition, time.monotonic() + 40, "the provider does not get there", poll=0.3)
        except DevClusterError as error:
            states = {node: sorted(self.states(node)) for node in self.nodes}
            raise DevClusterError(f"{error}: {states}, {self.switchboard.lines()[-4:]}") from error

    def states(self, node: str) -> frozenset[str]:
        return self.gateway.nodes([node])[node].states

    def powered_down(self, node: str) -> None:
        self.settle(lambda: "POWERED_DOWN" in self.states(node))


@pytest.fixture(scope="module")
def switchboard(module_cluster, folder) -> Iterator[Switchboard]:
    made = Switchboard(module_cluster, folder / "log")
    yield made
    made.close()


@pytest.fixture(scope="module")
def gateway(module_cluster) -> Iterator[RemoteGateway]:
    made = RemoteGateway(module_cluster, user="root")
    yield made
    made.close()


@pytest.fixture
def world(module_cluster, switchboard, gateway) -> PowerWorld:
    return PowerWorld(module_cluster, switchboard, gateway)


class TestContract(ProviderContract):
    """The contract of all providers."""

    unknown = "n9:some-token"
    settled_s = 0.0

    def launch(self, world, place=0, **fields):
        """As for all, and its slurmd has run for ``settled_s`` seconds."""
        machine = super().launch(world, place, **fields)
        node = machine.node
        world.settle(
            lambda: (
                time.time() - world.gateway.nodes([node])[node].slurmd_start_time >= self.settled_s
            )
        )
        return machine

    def test_a_reboot_keeps_the_machine(self, world):
        # slurmctld (22.05) may never see the end of a reboot that was asked for while it
        # still greeted a new slurmd
        self.settled_s = 4.0
        super().test_a_reboot_keeps_the_machine(world)


def test_a_node_that_is_down_is_replaced(world):
    provider = world.open()
    machine = TestContract().launch(world)
    world.cluster.crash("n2")
    mark = ["scontrol", "update", "nodename=n2", "state=down", "reason=Action:Replace"]
    world.cluster.exec(mark, check=True)
    before = len(world.switchboard.lines())

    provider.terminate(machine.machine_id)
    assert alive(world, machine.token) == []
    request = LaunchRequest(new_token(), "n2")
    with pytest.raises(ProviderTransientError, match="n2 is still being powered down"):
        provider.launch(request)
    world.powered_down("n2")
    new = provider.launch(request)
    world.settle(lambda: provider.describe(new.machine_id).state is MachineState.RUNNING)

    assert world.switchboard.lines()[before:] == ["suspend n2", "resume n2"]
    world.cluster.wait_idle(["n2"])
    assert world.cluster.exec(["srun", "-wn2", "hostname"], user="trainer").stdout == "n2\n"


def test_a_launch_that_was_killed_before_power_up_is_ended_by_its_token(world):
    world.powered_down("n2")
    token = new_token()
    world.gateway.update_node("n2", extra=f"hpresume:{token}:launching")
    (begun,) = alive(world, token)
    assert begun.state is MachineState.PENDING
    machine = world.open().launch(LaunchRequest(token, "n2"))
    assert machine.machine_id == begun.machine_id
    world.settle(lambda: world.open().describe(machine.machine_id).state is MachineState.RUNNING)


def test_machines_that_slurm_woke_itself(world):
    """They have no token, and are given up and refused as any other."""
    provider = world.open()
    (own,) = [machine for machine in provider.list() if machine.node == "n1"]
    assert (own.machine_id, own.token, own.state) == ("n1", "", MachineState.RUNNING)
    with pytest.raises(ProviderRefusedError, match="n1 is powered up: terminate its machine first"):
        provider.launch(LaunchRequest(new_token(), "n1"))
    world.powered_down("n3")
    world.cluster.exec(["scontrol", "update", "nodename=n3", "state=power_up"], check=True)
    world.settle(lambda: "n3" in [machine.machine_id for machine in provider.list()])
    provider.terminate("n3")
    world.powered_down("n3")
    assert "n3" not in [machine.node for machine in provider.list()]


def test_what_slurm_put_to_sleep_is_stopped(world):
    provider = world.open()
    machine = TestContract().launch(world)
    world.cluster.exec(["scontrol", "update", "nodename=n2", "state=power_down"], check=True)
    world.powered_down("n2")
    assert provider.describe(machine.machine_id).state is MachineState.STOPPED
    provider.reboot(machine.machine_id)
    world.settle(lambda: provider.describe(machine.machine_id).state is MachineState.RUNNING)


def test_what_cannot_be(world):
    with pytest.raises(ProviderRefusedError, match="Slurm knows no node n9"):
        world.open().launch(LaunchRequest(new_token(), "n9"))
    with pytest.raises(ProviderRefusedError, match="attribute 'gpus'"):
        world.open().launch(LaunchRequest(new_token(), "n2", attributes={"gpus": "1"}))
    with pytest.raises(ProviderRefusedError, match="knows no images"):
        world.open().launch(LaunchRequest(new_token(), "n2", image="1.2.3"))
