"""The dev cluster as a provider: what its machines do to real Slurm daemons."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest
from cluster import E2eCluster, wait_for
from provider_contract import ProviderContract, new_token

from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.processes import all_pids, command_of
from hpresume.errors import ProviderRefusedError, ProviderTransientError
from hpresume.providers.config import open_provider
from hpresume.providers.devcluster import DevClusterProvider
from hpresume.providers.model import LaunchRequest, MachineState

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 3, "gpus_per_node": 2}


class DevWorld:
    """Two nodes of the cluster whose machines were given up."""

    nodes = ("n2", "n3")

    def __init__(self, cluster: E2eCluster) -> None:
        self.cluster = cluster
        for machine in self.open().list():
            if machine.node in self.nodes:
                self.open().terminate(machine.machine_id)

    def open(self) -> DevClusterProvider:
        return open_provider("dev", {"type": "devcluster", "cluster": self.cluster.name})

    def settle(self, condition) -> None:
        assert condition(), "every call of this provider is done when it returns"


@pytest.fixture
def world(module_cluster) -> DevWorld:
    return DevWorld(module_cluster)


class TestContract(ProviderContract):
    """The contract of all providers."""


def state_of(cluster, node: str) -> str:
    return cluster.node_states()[node]


def time_of(cluster, node: str, event: str) -> int:
    """When slurmctld believes that it happened on a node (Unix time, s; 0: never)."""
    environment = {"SLURM_TIME_FORMAT": "%s"}
    shown = cluster.exec(["scontrol", "show", "node", node], env=environment, check=True).stdout
    match = re.search(rf"{event}=(\d+)", shown)
    return int(match[1]) if match else 0


def machine_of(provider, node: str):
    (machine,) = [machine for machine in provider.list() if machine.node == node]
    return machine


def test_a_crashed_node_is_replaced_and_runs_jobs_again(cluster):
    provider = DevClusterProvider(cluster)
    old = machine_of(provider, "n2")
    assert old.token == ""
    (cluster.layout.spool("n2") / "left-behind").touch()
    cluster.crash("n2")
    assert provider.describe(old.machine_id).state is MachineState.STOPPED
    cluster.exec(["scontrol", "update", "nodename=n2", "state=down", "reason=x"], check=True)

    provider.terminate(old.machine_id)
    new = provider.launch(LaunchRequest(new_token(), "n2", address=old.address))

    assert new.machine_id != old.machine_id
    assert new.address == old.address
    assert not (cluster.layout.spool("n2") / "left-behind").exists()
    wait_until_slurm_has(cluster, "n2")
    cluster.exec(["scontrol", "update", "nodename=n2", "state=resume"], check=True)
    cluster.wait_idle(["n2"])
    assert cluster.exec(["srun", "-wn2", "hostname"], user="trainer").stdout == "n2\n"


def test_a_replacement_at_a_new_address(cluster):
    provider = DevClusterProvider(cluster, new_address=True)
    old = machine_of(provider, "n2")
    provider.terminate(old.machine_id)
    new = provider.launch(LaunchRequest(new_token(), "n2", address=old.address))
    assert new.address != old.address
    assert new.address in cluster.exec(["getent", "hosts", "n2"], "n1").stdout
    assert f"{new.address}/" in cluster.exec(["ip", "-o", "addr"], "n2").stdout
    # who launches tells Slurm: the provider does not
    shown = cluster.exec(["scontrol", "show", "node", "n2"]).stdout
    assert new.address not in shown


def test_a_reboot_keeps_disks_and_tells_slurm(cluster):
    provider = DevClusterProvider(cluster, report_boot=True)
    machine = machine_of(provider, "n3")
    (cluster.layout.spool("n3") / "kept").touch()
    cluster.exec(["touch", "/tmp/lost"], "n3", check=True)
    before = int(time.time())
    assert time_of(cluster, "n3", "BootTime") < before

    provider.reboot(machine.machine_id)

    assert (cluster.layout.spool("n3") / "kept").exists()
    assert cluster.exec(["ls", "/tmp/lost"], "n3").returncode != 0
    assert machine_of(provider, "n3") == machine
    deadline = time.monotonic() + 20
    wait_for(
        lambda: time_of(cluster, "n3", "BootTime") >= before, deadline, "slurmctld heard of no boot"
    )


def test_a_hanging_machine_can_be_rebooted_and_given_up(cluster):
    provider = DevClusterProvider(cluster)
    machine = machine_of(provider, "n3")
    cluster.hang("n3")
    assert provider.describe(machine.machine_id).state is MachineState.RUNNING
    provider.reboot(machine.machine_id)
    assert cluster.exec(["hostname"], "n3").stdout == "n3\n"
    cluster.hang("n3")
    provider.terminate(machine.machine_id)
    assert cluster.status().hosts[-1].condition == "terminated"


def test_a_node_has_one_machine(cluster):
    provider = DevClusterProvider(cluster)
    before = provider.list()
    with pytest.raises(ProviderRefusedError, match=r"n1 has machine m-\w+ already"):
        provider.launch(LaunchRequest(new_token(), "n1"))
    assert provider.list() == before


def test_a_token_is_for_one_node(cluster):
    provider = DevClusterProvider(cluster)
    provider.terminate(machine_of(provider, "n2").machine_id)
    machine = provider.launch(LaunchRequest(new_token(), "n2"))
    with pytest.raises(ProviderRefusedError, match="was for n2, not for n3"):
        provider.launch(LaunchRequest(machine.token, "n3"))


@pytest.mark.parametrize(
    ("node", "attributes", "message"),
    [
        ("x1", {"gpus": "two"}, "gpus = 'two'"),
        ("x1", {"gpus": "9"}, "from 0 to 8"),
        ("x1", {"slurmd": "maybe"}, "yes or no"),
        ("x1", {"disk": "1"}, "attribute 'disk'"),
        ("X1", {}, "lower-case"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(cluster, node, attributes, message):
    provider = DevClusterProvider(cluster)
    with pytest.raises(ProviderRefusedError, match=message):
        provider.launch(LaunchRequest(new_token(), node, attributes=attributes))
    assert node not in [machine.node for machine in provider.list()]


def test_a_cluster_that_is_not_there_is_worth_another_try():
    with pytest.raises(ProviderTransientError, match="there is no cluster"):
        DevClusterProvider(DevCluster("none-such")).list()


def test_a_new_node_joins_the_cluster_and_leaves_it(make_cluster):
    cluster = make_cluster(nodes=2, gpus_per_node=2)
    provider = DevClusterProvider(cluster)
    name = "research-workers-17"
    machine = provider.launch(LaunchRequest(new_token(), name, attributes={"gpus": "4"}))
    assert machine.state is MachineState.RUNNING
    assert cluster.exec(["hostname"], name).stdout == f"{name}\n"
    reached = cluster.exec([sys.executable, "-c", KNOCK, name], "n1")
    assert reached.stdout == "refused\n", reached.stderr  # by the host: it has no slurmd yet
    login = provider.launch(LaunchRequest(new_token(), "login", attributes={"slurmd": "no"}))
    assert cluster.exec(["sinfo", "-h", "-o", "%D"], "login").stdout == "2\n"

    configure(cluster, f"NodeName={name} CPUs=2 RealMemory=1000 Gres=gpu:4 State=UNKNOWN\n")
    cluster.wait_idle([name, "n1", "n2"])
    argv = ["srun", f"-w{name}", "-N3", "--gres=gpu:2", "hostname"]
    ran = cluster.exec(argv, user="trainer")
    assert sorted(ran.stdout.split()) == ["n1", "n2", name], ran.stderr
    argv = ["srun", f"-w{name}", "--gres=gpu:4", "hostname"]
    assert cluster.exec(argv, user="trainer").stdout == f"{name}\n"

    provider.reboot(machine.machine_id)
    wait_until_slurm_has(cluster, name)
    for each in (machine, login):
        provider.terminate(each.machine_id)
    assert {machine.node for machine in provider.list()} == {"ctl", "n1", "n2"}
    assert cluster.exec(["getent", "hosts", name], "n1").returncode == 0  # the name stays
    cluster.remove_host(name)
    assert cluster.exec(["getent", "hosts", name], "n1").returncode != 0
    assert name not in (cluster.layout.root / "gres.conf").read_text()


def test_a_launch_that_was_killed_anywhere_is_found_by_its_token(cluster):
    """kill -9 of the caller at eight instants of a launch, and once after it."""
    provider = DevClusterProvider(cluster)
    started = time.monotonic()
    provider.terminate(machine_of(provider, "n3").machine_id)
    launch(cluster, new_token(), "n3").wait(timeout=30)
    span = time.monotonic() - started
    for instant in range(9):
        for machine in provider.list():
            if machine.node == "n3":
                provider.terminate(machine.machine_id)
        token = new_token()
        caller = launch(cluster, token, "n3")
        begun = time.monotonic()
        while caller.poll() is None and time.monotonic() - begun < span * instant / 8:
            pass
        caller.send_signal(signal.SIGKILL)
        caller.wait()
        found = alive_of(provider, token)
        assert len(found) <= 1
        machine = provider.launch(LaunchRequest(token, "n3"))
        assert found in ([], [machine.machine_id])
        assert machine.state is MachineState.RUNNING
        assert alive_of(provider, token) == [machine.machine_id]
        assert cluster.exec(["hostname"], "n3").stdout == "n3\n"
        assert len(inits_of(cluster, "n3")) == 1


KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 6818), timeout=5)
except ConnectionRefusedError:
    print("refused")
"""

LAUNCH = """
import sys
from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.processes import all_pids, command_of
from hpresume.providers.devcluster import DevClusterProvider
from hpresume.providers.model import LaunchRequest
DevClusterProvider(DevCluster(sys.argv[1])).launch(LaunchRequest(*sys.argv[2:]))
"""


def launch(cluster, token: str, node: str) -> subprocess.Popen:
    """A process that launches a machine; returns when it has been started."""
    return subprocess.Popen([sys.executable, "-c", LAUNCH, cluster.name, token, node])


def alive_of(provider, token: str) -> list[str]:
    return [machine.machine_id for machine in provider.list() if machine.token == token]


def inits_of(cluster, host: str) -> list[int]:
    title = f"hpresume-devcluster {cluster.layout.root} {host} infinity"
    return [pid for pid in all_pids() if command_of(pid) == title]


def configure(cluster, line: str) -> None:
    """Merge a node into slurm.conf, and wait until all daemons have read it.

    They are restarted: slurmctld before 23.11 dies of a reconfiguration that changes
    the number of nodes ("MaxNodeCount has changed (2->3) during reconfig", 22.05), and
    steps that are launched while slurmd reconfigures itself fail there.
    """
    nodes = ("n1", "n2", re.search(r"NodeName=(\S+)", line)[1])
    before = int(time.time())
    conf = cluster.layout.slurm_conf
    text = conf.read_text()
    at = text.index("PartitionName=")
    draft = conf.with_suffix(".new")
    draft.write_text(text[:at] + line + text[at:])
    draft.replace(conf)
    cluster.restart_daemon("slurmctld")
    for node in ("n1", "n2"):
        cluster.restart_daemon("slurmd", node)
    wait_for(
        lambda: all(time_of(cluster, node, "SlurmdStartTime") >= before for node in nodes),
        time.monotonic() + 20,
        "not all slurmd are there again",
    )


def wait_until_slurm_has(cluster, node: str, seconds: float = 20.0) -> None:
    """Wait until slurmctld can talk to the node's slurmd, whatever it thinks of the node."""
    wait_for(
        lambda: not state_of(cluster, node).endswith("*"),
        time.monotonic() + seconds,
        f"slurmd of {node} does not answer",
    )
