"""The development cluster: what each of its verbs does to real Slurm daemons."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import E2eCluster, wait_for

from hpresume.devcluster.cgroups import CGROUP_ROOT, plugin_for_machine
from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.processes import all_pids, command_of, namespace_of
from hpresume.devcluster.spec import ClusterSpec
from hpresume.errors import DevClusterError, MissingDependencyError, UsageError

pytestmark = pytest.mark.e2e

SLURMD_PORT = 6818

# Connects to a host's port and says how the connection fares within some seconds.
PEER = """
import socket, sys
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with socket.create_connection((host, port), timeout=seconds) as peer:
    print("connected", flush=True)
    try:
        print("closed" if peer.recv(1) == b"" else "answer")
    except TimeoutError:
        print("silence")
    except OSError as error:
        print(type(error).__name__)
"""

# Accepts one connection and says nothing to it.
LISTENER = """
import socket, time
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    peer, _ = server.accept()
    time.sleep(60)
"""


def hostnames(cluster: E2eCluster, *srun_options: str, timeout: float = 30.0) -> list[str]:
    """Run hostname as trainer by srun; returns the hosts it ran on."""
    argv = ["srun", *srun_options, "hostname"]
    result = cluster.exec(argv, user="trainer", timeout=timeout)
    assert result.returncode == 0, result.stderr
    return sorted(result.stdout.split())


def talk(cluster: E2eCluster, source: str, target: str, port: int, seconds: float):
    """Start PEER on ``source``, and wait until it is connected."""
    argv = [sys.executable, "-c", PEER, target, str(port), str(seconds)]
    peer = cluster.popen(argv, source)
    assert peer.stdout.readline() == "connected\n", peer.communicate()
    return peer


def traces(name: str, directory: Path) -> dict[str, list[str]]:
    """What a cluster has on the machine: processes, mounts, cgroups, files."""
    commands = {pid: command_of(pid) for pid in all_pids()}
    inside = [f"{pid} {command}" for pid, command in commands.items() if str(directory) in command]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line for line in mounts if str(directory) in line]
    groups = [str(path) for path in CGROUP_ROOT.glob(f"*/hpresume-{name}-*")]
    files = [str(path) for path in directory.parent.glob(f"*{name}*")]
    return {"processes": inside, "mounts": mounts, "cgroups": groups, "files": files}


def network_namespaces() -> dict[str, int]:
    """Network namespaces in use, each with one of its processes."""
    return {namespace_of(pid, "net"): pid for pid in all_pids()}


def test_comes_up_in_time_and_runs_a_job(make_cluster):
    start = time.monotonic()
    cluster = make_cluster()
    assert time.monotonic() - start < 10
    assert set(cluster.node_states().values()) == {"idle"}
    assert hostnames(cluster, "-N4", "--gres=gpu:4") == ["n1", "n2", "n3", "n4"]


def test_many_nodes(make_cluster):
    cluster = make_cluster(nodes=16, gpus_per_node=8, cpus_per_node=4)
    assert len(hostnames(cluster, "-N16", "--gres=gpu:8", "-c4")) == 16


def test_clusters_side_by_side_have_equal_addresses_and_do_not_meet(cluster, make_cluster):
    other = make_cluster(nodes=2)
    assert cluster.status().hosts[1].address == other.status().hosts[1].address
    cluster.crash("n1")
    assert hostnames(other, "-N2") == ["n1", "n2"]
    other.down()
    assert hostnames(cluster, "-N1", "-wn2") == ["n2"]


def test_up_of_a_running_cluster_is_refused(cluster):
    with pytest.raises(DevClusterError, match="is running already"):
        DevCluster.up(ClusterSpec(name=cluster.name))
    assert hostnames(cluster, "-N1") != []


def test_slurm_conf_lines_can_be_replaced(make_cluster):
    cluster = make_cluster(nodes=2, overrides=(("KillWait", "7"), ("ReturnToService", "2")))
    shown = cluster.exec(["scontrol", "show", "config"], check=True).stdout
    assert re.search(r"KillWait\s+= 7 sec", shown)
    assert re.search(r"ReturnToService\s+= 2", shown)


def test_a_slurmd_that_does_not_start_says_why(make_cluster):
    said = "slurmd on n[12] does not start: .*cannot find task plugin for task/nosuch"
    with pytest.raises(DevClusterError, match=said):
        make_cluster(nodes=2, overrides=(("TaskPlugin", "task/nosuch"),))


def test_hosts_have_their_own_names_files_and_network(cluster):
    cluster.exec(["touch", "/tmp/mine", "/run/mine", "/dev/shm/mine"], "n1", check=True)
    for directory in ("/tmp", "/run", "/dev/shm"):
        assert "mine" not in cluster.exec(["ls", directory], "n2").stdout.split()
        assert not Path(directory, "mine").exists()
    assert cluster.exec(["hostname"], "n2").stdout == "n2\n"
    assert set(cluster.exec(["ls", "/sys/class/net"], "n2").stdout.split()) == {"lo", "eth0"}
    assert cluster.exec(["cat", "/proc/1/comm"], "n2").stdout != Path("/proc/1/comm").read_text()


def test_host_reaps_orphans(cluster):
    cluster.exec(["setsid", "--fork", "true"], "n1", check=True)

    def no_zombies() -> bool:
        return "Z" not in cluster.exec(["ps", "-e", "-o", "state="], "n1").stdout

    wait_for(no_zombies, time.monotonic() + 5, "zombies stay")


class TestExec:
    def test_passes_input_output_and_exit_code(self, cluster):
        script = "cat; echo problem >&2; exit 7"
        result = cluster.exec(["bash", "-c", script], "n1", input="hello")
        assert (result.stdout, result.stderr, result.returncode) == ("hello", "problem\n", 7)

    def test_command_line_passes_input_output_and_exit_code(self, cluster):
        argv = [sys.executable, "-m", "hpresume", "devcluster", "exec", "n2"]
        argv += ["--name", cluster.name, "--user", "trainer", "--cwd", "/tmp", "--"]
        script = "cat; hostname; pwd; exit 3"
        result = subprocess.run(
            [*argv, "bash", "-c", script], input="x\n", capture_output=True, text=True, check=False
        )
        assert (result.returncode, result.stdout) == (3, "x\nn2\n/tmp\n"), result.stderr

    def test_user_has_no_rights_of_root(self, cluster):
        status = cluster.exec(["cat", "/proc/self/status"], user="trainer").stdout
        assert re.search(r"^Uid:\s+20001\s+20001\s+20001\s+20001$", status, re.MULTILINE)
        assert re.search(r"^Gid:\s+20001\s+20001\s+20001\s+20001$", status, re.MULTILINE)
        assert re.search(r"^Groups:\s*$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)

    def test_environment(self, cluster, monkeypatch):
        monkeypatch.setenv("HPRESUME_SETTING", "kept")
        monkeypatch.setenv("SLURM_JOB_ID", "dropped")
        shown = cluster.exec(["env"], user="trainer", env={"EXTRA": "1"}).stdout.splitlines()
        assert {"HPRESUME_SETTING=kept", "EXTRA=1", f"HOME={cluster.home()}"} <= set(shown)
        assert f"SLURM_CONF={cluster.layout.slurm_conf}" in shown
        assert not any(line.startswith("SLURM_JOB_ID") for line in shown)
        assert cluster.exec(["hpresume", "devcluster", "--help"], user="trainer").returncode == 0

    def test_home_is_the_same_on_all_hosts(self, cluster):
        cluster.exec(["bash", "-c", "pwd; echo 5 > mark"], "n1", "trainer", check=True)
        assert cluster.exec(["cat", "mark"], "n2", "trainer").stdout == "5\n"
        assert cluster.exec(["cat", cluster.home() / "mark"], "n2", "other").stdout == "5\n"
        assert cluster.exec(["touch", cluster.home() / "mark"], "n2", "other").returncode != 0

    def test_timeout_kills_the_whole_program(self, cluster):
        with pytest.raises(subprocess.TimeoutExpired):
            cluster.exec(["bash", "-c", "sleep 4321; true"], "n1", timeout=0.5)
        assert "4321" not in cluster.exec(["ps", "-e", "-o", "args="], "n1").stdout

    def test_signal_reaches_the_program(self, cluster):
        script = "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.05; done"
        process = cluster.popen(["bash", "-c", script], "n1")
        assert process.stdout.readline() == "ready\n"
        cluster.send_signal(process, signal.SIGUSR1)
        assert process.communicate(timeout=10)[0] == "got\n"
        assert process.returncode == 5

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"node": "n9"}, "unknown node 'n9'.*n1 to n4"),
            ({"user": "nobody"}, "unknown user 'nobody': use one of root, trainer, other"),
        ],
    )
    def test_names_what_is_allowed(self, cluster, arguments, said):
        with pytest.raises(UsageError, match=said):
            cluster.exec(["true"], **arguments)


class TestCrash:
    def test_other_hosts_see_silence(self, cluster):
        listener = cluster.popen([sys.executable, "-c", LISTENER], "n2")
        assert listener.stdout.readline() == "listening\n"
        peer = talk(cluster, "n1", "n2", 5000, 3)
        cluster.crash("n2")
        assert peer.communicate(timeout=10)[0] == "silence\n"
        assert listener.wait(timeout=5) == -signal.SIGKILL

    def test_control_a_killed_process_is_heard(self, cluster):
        """Without the power loss the same peer sees the end of its connection."""
        listener = cluster.popen([sys.executable, "-c", LISTENER], "n2")
        assert listener.stdout.readline() == "listening\n"
        peer = talk(cluster, "n1", "n2", 5000, 3)
        cluster.send_signal(listener, signal.SIGKILL)
        assert peer.communicate(timeout=10)[0] in ("closed\n", "ConnectionResetError\n")

    def test_slurmctld_does_not_notice_at_once(self, cluster):
        cluster.crash("n2")
        assert cluster.node_states()["n2"] == "idle"
        assert {h.name: h.condition for h in cluster.status().hosts}["n2"] == "crashed"

    @pytest.mark.parametrize("verb", ["crash", "hang", "thaw", "disconnect", "reconnect"])
    def test_nothing_else_can_happen_to_it(self, cluster, verb):
        cluster.crash("n3")
        with pytest.raises(DevClusterError, match="n3 is crashed: boot it first"):
            getattr(cluster, verb)("n3")
        with pytest.raises(DevClusterError, match="n3 is crashed: boot it first"):
            cluster.exec(["true"], "n3")

    def test_unknown_node(self, cluster):
        with pytest.raises(UsageError, match=r"unknown node 'n5'.*has ctl and n1 to n4"):
            cluster.crash("n5")


class TestBoot:
    @pytest.mark.parametrize("new_address", [False, True], ids=["same address", "new address"])
    def test_node_is_back_and_runs_a_job(self, cluster, new_address):
        cluster.exec(["touch", "/tmp/old"], "n2", check=True)
        before = {host.name: host.address for host in cluster.status().hosts}
        cluster.crash("n2")
        start = time.monotonic()
        cluster.boot("n2", new_address=new_address)
        cluster.wait_idle(timeout=10)
        assert hostnames(cluster, "-N4", "--gres=gpu:4") == ["n1", "n2", "n3", "n4"]
        assert time.monotonic() - start < 10
        after = {host.name: host.address for host in cluster.status().hosts}
        assert (before["n2"] != after.pop("n2")) == new_address
        assert before.items() >= after.items()
        assert "old" not in cluster.exec(["ls", "/tmp"], "n2").stdout
        seen = cluster.exec(["getent", "hosts", "n2"], "n4").stdout.split()[0]
        assert seen == {h.name: h.address for h in cluster.status().hosts}["n2"]

    def test_batch_host_at_a_new_address(self, cluster):
        cluster.crash("n1")
        cluster.boot("n1", new_address=True)
        script = "#!/bin/bash\n#SBATCH -N4 -wn1 -o done\nsrun hostname\n"
        cluster.exec(["sbatch"], user="trainer", input=script, check=True)
        output = cluster.home() / "done"

        def complete() -> bool:
            return output.exists() and len(output.read_text().split()) == 4

        wait_for(complete, time.monotonic() + 20, "the batch job does not run")

    def test_after_slurm_has_given_the_node_up(self, make_cluster):
        cluster = make_cluster(nodes=2)
        cluster.crash("n2")
        cluster.exec(["scontrol", "update", "nodename=n2", "state=down", "reason=x"], check=True)
        cluster.boot("n2", new_address=True)
        cluster.exec(["scontrol", "update", "nodename=n2", "state=resume"], check=True)
        cluster.wait_idle(timeout=20)
        assert hostnames(cluster, "-N2") == ["n1", "n2"]

    def test_controller(self, make_cluster):
        # a cluster without a past: slurmctld forgets its last seconds in a crash, and so
        # would take jobs of an earlier test for running
        cluster = make_cluster()
        cluster.crash("ctl")
        with pytest.raises(DevClusterError, match="ctl is crashed"):
            cluster.node_states()
        cluster.boot("ctl")
        cluster.wait_idle(timeout=30)
        assert hostnames(cluster, "-N4") == ["n1", "n2", "n3", "n4"]

    def test_running_host_is_refused(self, cluster):
        with pytest.raises(DevClusterError, match="n1 is running: crash it before"):
            cluster.boot("n1")


class TestHang:
    def test_address_answers_but_nobody_speaks(self, cluster):
        cluster.hang("n2")
        peer = talk(cluster, "ctl", "n2", SLURMD_PORT, 2)
        assert peer.communicate(timeout=10)[0] == "silence\n"

    def test_programs_go_on_after_thaw(self, cluster):
        process = cluster.popen(["bash", "-c", "for i in 1 2 3 4; do sleep 0.2; done"], "n2")
        cluster.hang("n2")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        cluster.thaw("n2")
        assert process.wait(timeout=10) == 0
        assert hostnames(cluster, "-N4") == ["n1", "n2", "n3", "n4"]

    def test_hanging_host_can_crash(self, cluster):
        process = cluster.popen(["sleep", "60"], "n2")
        cluster.hang("n2")
        cluster.crash("n2")
        assert process.wait(timeout=10) != 0

    def test_states_are_checked(self, cluster):
        with pytest.raises(DevClusterError, match="n1 does not hang: it is running"):
            cluster.thaw("n1")
        cluster.hang("n1")
        with pytest.raises(DevClusterError, match="n1 hangs already"):
            cluster.hang("n1")
        with pytest.raises(DevClusterError, match="n1 hangs: thaw it before"):
            cluster.restart_daemon("slurmd", "n1")


class TestDisconnect:
    def test_processes_go_on_in_silence(self, cluster):
        listener = cluster.popen([sys.executable, "-c", LISTENER], "n3")
        assert listener.stdout.readline() == "listening\n"
        peer = talk(cluster, "n1", "n3", 5000, 2)
        cluster.disconnect("n3")
        assert peer.communicate(timeout=10)[0] == "silence\n"
        assert listener.poll() is None
        assert cluster.exec(["hostname"], "n3").stdout == "n3\n"
        cluster.reconnect("n3")
        assert hostnames(cluster, "-N1", "-wn3") == ["n3"]

    def test_states_are_checked(self, cluster):
        with pytest.raises(DevClusterError, match="n1 is connected already"):
            cluster.reconnect("n1")
        cluster.disconnect("n1")
        with pytest.raises(DevClusterError, match="n1 is disconnected already"):
            cluster.disconnect("n1")


class TestRestart:
    @pytest.mark.parametrize(
        ("daemon", "host"), [("slurmctld", None), ("slurmd", "n2")], ids=["slurmctld", "slurmd"]
    )
    def test_running_step_goes_on(self, cluster, daemon, host):
        script = "echo started; sleep 4; hostname"
        argv = ["srun", "-N2", "-wn[1-2]", "bash", "-c", script]
        step = cluster.popen(argv, user="trainer")
        assert [step.stdout.readline() for _ in range(2)] == ["started\n"] * 2
        cluster.restart_daemon(daemon, host)
        stdout, stderr = step.communicate(timeout=30)
        assert (step.returncode, sorted(stdout.split())) == (0, ["n1", "n2"]), stderr

    def test_starts_a_daemon_that_was_killed(self, cluster):
        cluster.exec(["pkill", "-KILL", "slurmd"], "n2", check=True)
        cluster.restart_daemon("slurmd", "n2")
        assert hostnames(cluster, "-N1", "-wn2") == ["n2"]

    @pytest.mark.parametrize(("daemon", "host"), [("slurmctld", "ctl"), ("slurmd", "n2")])
    def test_one_that_has_started_itself_anew_is_replaced(self, cluster, daemon, host):
        """From 24.11 on that is how they reconfigure; their process gets another name."""
        cluster.exec(["scontrol", "reconfigure"], check=True)
        assert hostnames(cluster, "-N1", "-wn2") == ["n2"]
        cluster.restart_daemon(daemon, host)
        running = cluster.exec(["pgrep", "-c", f"^{daemon}(-wlm)?$"], host, check=True).stdout
        assert running == "1\n"
        assert hostnames(cluster, "-N1", "-wn2") == ["n2"]

    @pytest.mark.parametrize(
        ("daemon", "host", "said"),
        [
            ("munged", None, "unknown daemon 'munged': use slurmctld, slurmdbd or slurmd"),
            ("slurmdbd", None, "has no slurmdbd: bring it up with --accounting"),
            ("slurmd", None, "name the node"),
            ("slurmd", "ctl", "slurmd does not run on ctl"),
        ],
    )
    def test_names_what_is_allowed(self, cluster, daemon, host, said):
        with pytest.raises(UsageError, match=said):
            cluster.restart_daemon(daemon, host)


class TestTraces:
    def test_down_leaves_nothing(self, make_cluster):
        cluster = make_cluster(nodes=3)
        pids = [cluster._store.cluster_init().pid]
        pids += [pid for host in ("ctl", "n1", "n2", "n3") for pid in cluster.pids_on(host)]
        networks = {namespace_of(pid, "net") for pid in pids}
        assert len(networks) == 5
        cluster.popen(["sleep", "600"], "n1", stdout=None, stderr=None)
        cluster.hang("n1")
        cluster.disconnect("n2")
        cluster.crash("n3")
        cluster.down()
        none = {"processes": [], "mounts": [], "cgroups": [], "files": []}
        assert traces(cluster.name, cluster.layout.root) == none
        assert not networks & network_namespaces().keys()
        assert cluster.down() is False

    def test_up_after_everything_was_killed(self, make_cluster):
        cluster = make_cluster(nodes=2)
        init = cluster._store.cluster_init()
        init.kill()
        assert init.wait_gone(10)
        assert cluster.status().running is False
        with pytest.raises(DevClusterError, match="does not run any more"):
            cluster.exec(["true"])
        DevCluster.up(ClusterSpec(name=cluster.name, nodes=2))
        assert hostnames(cluster, "-N2") == ["n1", "n2"]

    def test_machine_sees_no_mounts_links_or_accounts(self, cluster):
        assert traces(cluster.name, cluster.layout.root)["mounts"] == []
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
        assert "to-n1" not in links.stdout
        assert str(cluster.layout.root) not in Path("/etc/passwd").read_text()
        assert not Path("/run/munge/munge.socket.2").exists() or os.path.ismount("/run")

    def test_killed_while_coming_up(self, machine):
        """A command killed at any moment leaves nothing that the next one cannot clean."""
        name = f"t{os.getpid()}-kill"
        argv = [sys.executable, "-m", "hpresume", "devcluster"]
        cluster = E2eCluster(name)
        try:
            for milliseconds in range(250, 750, 50):
                victim = subprocess.Popen(
                    [*argv, "up", "--name", name, "--nodes", "2"], stderr=subprocess.DEVNULL
                )
                time.sleep(milliseconds / 1000)
                victim.kill()
                victim.wait()
                cluster.down()
                time.sleep(0.1)
                assert traces(name, cluster.layout.root)["processes"] == []
        finally:
            cluster.down()

    def test_unreadable_state_can_be_taken_down(self, make_cluster):
        cluster = make_cluster(nodes=2)
        cluster.layout.state_file.write_text("{")
        cluster.down()
        assert traces(cluster.name, cluster.layout.root)["processes"] == []

    def test_cgroups_are_removed(self, make_cluster):
        try:
            plugin_for_machine()
        except MissingDependencyError as error:
            pytest.skip(str(error))
        cluster = make_cluster(nodes=2, cgroup=True)
        shown = cluster.exec(
            ["srun", "-N2", "cat", "/proc/self/cgroup"], user="trainer", check=True
        ).stdout
        assert re.search(rf"freezer:/hpresume-{cluster.name}-\w+/n1/.*step_0", shown)
        step = cluster.popen(["srun", "-N2", "sleep", "60"], user="trainer")
        wait_for(lambda: bool(cluster.jobs()), time.monotonic() + 10, "no job")
        cluster.crash("n2")
        cluster.boot("n2")
        cluster.down()
        step.wait(timeout=10)
        assert traces(cluster.name, cluster.layout.root)["cgroups"] == []


class TestReset:
    def test_undoes_everything(self, cluster):
        cluster.exec(["sbatch", "-N2", "--wrap", "sleep 300"], user="trainer", check=True)
        cluster.exec(["sbatch", "-N4", "--wrap", "sleep 300"], user="trainer", check=True)
        cluster.exec(
            ["scontrol", "create", "reservation", "user=root", "starttime=now", "duration=60",
             "nodes=n3", "flags=ignore_jobs", "reservationname=kept"], check=True,
        )  # fmt: skip
        cluster.exec(["scontrol", "update", "nodename=n2", "state=fail", "reason=x"], check=True)
        cluster.exec(["scontrol", "update", "nodename=n1", "state=drain", "reason=x"], check=True)
        cluster.exec(["pkill", "-KILL", "slurmd"], "n4", check=True)
        stray = cluster.popen(["sleep", "600"], user="trainer")
        cluster.hang("n1")
        cluster.disconnect("n2")
        cluster.crash("n3")
        cluster.reset()
        assert hostnames(cluster, "-N4") == ["n1", "n2", "n3", "n4"]
        assert stray.wait(timeout=5) != 0
        assert "kept" not in cluster.exec(["scontrol", "show", "reservation"]).stdout


def test_status_for_programs(cluster):
    argv = [sys.executable, "-m", "hpresume", "devcluster", "status", "--json"]
    cluster.crash("n2")
    result = subprocess.run(
        [*argv, "--name", cluster.name], capture_output=True, text=True, check=True
    )
    seen = json.loads(result.stdout)
    assert seen["running"] is True
    assert [host["condition"] for host in seen["hosts"]] == ["running"] * 2 + ["crashed"] + [
        "running"
    ] * 2
