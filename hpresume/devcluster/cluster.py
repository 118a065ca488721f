"""The development cluster as one object: bring it up, break its hosts, take it down."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpresume.devcluster import daemons, faults, lifecycle, machines, programs
from hpresume.devcluster.accounts import find_account
from hpresume.devcluster.layout import Layout, make_base_directory
from hpresume.devcluster.lifecycle import Progress
from hpresume.devcluster.machines import HostMachine, Wish
from hpresume.devcluster.requirements import require_root, require_tools
from hpresume.devcluster.spec import CONTROLLER, DEFAULT_NAME, ClusterSpec
from hpresume.devcluster.store import Store
from hpresume.errors import DevClusterError, UsageError

_UP_LOCK_TIMEOUT = 1.0
_STATUS_TIMEOUT = 3.0


@dataclass(frozen=True)
class HostStatus:
    """A host as seen now; ``slurm_state`` is empty for the controller or a silent slurmctld."""

    name: str
    address: str
    condition: str
    slurm_state: str


@dataclass(frozen=True)
class ClusterStatus:
    """A cluster as seen now."""

    name: str
    running: bool
    directory: Path
    slurm_conf: Path
    hosts: tuple[HostStatus, ...]


class DevCluster:
    """The cluster called ``name``, which may or may not exist.

    Methods raise UsageError for hosts, users or values that do not exist, and
    DevClusterError where the cluster or the host is not in a state for them. All
    but ``status`` and ``exists`` need root.
    """

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        self.name = name
        self._store = Store(name)

    @property
    def layout(self) -> Layout:
        """Where the cluster's files are."""
        return self._store.layout

    @property
    def spec(self) -> ClusterSpec:
        """What the cluster was made from."""
        return self._store.state().spec

    # The cluster as a whole

    @classmethod
    def up(
        cls, spec: ClusterSpec, *, timeout: float = 60.0, progress: Progress = lambda _: None
    ) -> DevCluster:
        """Make a cluster and wait up to ``timeout`` seconds for all its nodes to be idle.

        ``progress`` is called with a line for every stage. Remains of a cluster of
        that name whose processes are gone are removed first. Raises
        MissingDependencyError where the machine lacks a program or root is needed,
        DevClusterError where the cluster exists or does not come up; its logs stay
        then, its processes do not.
        """
        require_root()
        require_tools(accounting=spec.accounting)
        cluster = cls(spec.name)
        store = cluster._store
        make_base_directory()
        with store.locked(_UP_LOCK_TIMEOUT):
            state = store.find()
            if state is not None and state.running:
                raise DevClusterError(
                    f"cluster {spec.name} is running already: use it, take it down first, "
                    "or choose another --name"
                )
            lifecycle.remove(store)
            try:
                lifecycle.create(store, spec, time.monotonic() + timeout, progress)
            except BaseException:
                with suppress(DevClusterError):
                    lifecycle.end_processes(store)
                raise
        return cluster

    def down(self) -> bool:
        """End every process of the cluster and remove its files; False where there was none."""
        require_root()
        if not self.layout.root.exists():
            return False
        with self._store.locked():
            lifecycle.remove(self._store)
        return True

    def exists(self) -> bool:
        """Whether there is a cluster of this name, running or left over."""
        return self.layout.state_file.exists()

    def status(self) -> ClusterStatus:
        """What is known about the cluster now; asks slurmctld for at most 3 seconds."""
        state = self._store.state()
        slurm: dict[str, str] = {}
        controller = state.hosts[CONTROLLER]
        if state.running and controller.init is not None and controller.condition == "running":
            with suppress(DevClusterError):
                slurm = daemons.node_states(controller.init, self.layout, timeout=_STATUS_TIMEOUT)
        hosts = tuple(
            HostStatus(host.name, host.address, host.condition, slurm.get(host.name, ""))
            for host in state.hosts.values()
        )
        conf = self.layout.slurm_conf
        return ClusterStatus(self.name, state.running, self.layout.root, conf, hosts)

    def node_states(self) -> dict[str, str]:
        """Slurm's state of every node; raises DevClusterError where slurmctld does not answer."""
        return daemons.node_states(self._store.running_init(CONTROLLER), self.layout)

    def wait_idle(self, nodes: Sequence[str] = (), timeout: float = 30.0) -> None:
        """Wait up to ``timeout`` seconds until Slurm has ``nodes`` (default: all) idle.

        Raises DevClusterError that says which nodes are not.
        """
        wanted = tuple(nodes) or self.spec.node_names
        lifecycle.wait_idle(self._store, wanted, time.monotonic() + timeout)

    # What happens to hosts

    def crash(self, host: str) -> None:
        """Power loss: the link goes first, so that nobody hears of it, then all processes."""
        with self._store.locked():
            faults.crash(self._store, host)

    def hang(self, host: str) -> None:
        """Stop every process of the host; its kernel goes on and its address answers."""
        with self._store.locked():
            faults.hang(self._store, host)

    def thaw(self, host: str) -> None:
        """Let every process of a hanging host go on."""
        with self._store.locked():
            faults.thaw(self._store, host)

    def disconnect(self, host: str) -> None:
        """Pull the network cable; the host's processes go on."""
        with self._store.locked():
            faults.set_link(self._store, host, up=False)

    def reconnect(self, host: str) -> None:
        """Plug the network cable in again."""
        with self._store.locked():
            faults.set_link(self._store, host, up=True)

    def boot(self, host: str, *, new_address: bool = False, report_boot: bool = False) -> None:
        """Start a fresh machine under the name of a crashed host.

        With ``new_address`` it gets another IP address: /etc/hosts of all hosts and
        slurmctld's idea of the node follow. With ``report_boot`` slurmd tells
        slurmctld of the reboot, as it does on a real machine, and ReturnToService
        decides what becomes of the node and its jobs; without it slurmctld notices
        a silence at most. Returns when the daemon has written its pid file:
        ``wait_idle`` waits for Slurm.
        """
        with self._store.locked():
            faults.boot(self._store, host, new_address=new_address, report_boot=report_boot)

    # Machines behind the names of hosts

    def machines(self) -> tuple[HostMachine, ...]:
        """All machines of the cluster, also the last 1000 that are gone."""
        return machines.machines(self._store.running_state())

    def launch_machine(self, host: str, token: str, wish: Wish | None = None) -> str:
        """Start a machine under a name that has none, also a new one; returns its id.

        The same client token never makes a second one. Returns when the host has
        booted: its slurmd starts when slurm.conf knows its node.
        """
        with self._store.locked():
            return machines.launch(self._store, host, token, wish or Wish())

    def terminate_machine(self, machine_id: str) -> None:
        """Give a machine up; does nothing where it is gone."""
        with self._store.locked():
            machines.terminate(self._store, machine_id)

    def reboot_machine(self, machine_id: str, *, report_boot: bool = False) -> None:
        """Power a machine off and on; its disks, name and address stay."""
        with self._store.locked():
            machines.reboot(self._store, machine_id, report_boot=report_boot)

    def remove_host(self, host: str) -> None:
        """Take a host out of the cluster that it was not made with."""
        with self._store.locked():
            machines.forget(self._store, host)

    def restart_daemon(self, daemon: str, host: str | None = None) -> None:
        """Restart ``slurmctld``, ``slurmdbd``, or ``slurmd`` on ``host``; steps that run go on.

        Also starts a daemon that does not run. Returns when the new one has written
        its pid file.
        """
        with self._store.locked():
            faults.restart_daemon(self._store, daemon, host)

    # Programs on hosts

    def exec_argv(
        self,
        argv: Sequence[str],
        node: str | None = None,
        user: str = "root",
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        on_exit: str = "TERM",
    ) -> tuple[list[str], dict[str, str]]:
        """Command line and environment that run ``argv`` on a host (default: the controller).

        The working directory defaults to the user's home. Slurm's clients find slurm.conf
        by SLURM_CONF, on nodes of a configless cluster by themselves. The program gets signal
        ``on_exit`` when the process of the command line is killed.
        """
        require_root()
        if not argv:
            raise UsageError("no command given")
        account = find_account(user, self.layout.homes)
        init = self._store.running_init(node or CONTROLLER)
        line = programs.command_line(init, account, argv, Path(cwd) if cwd else None, on_exit)
        state = self._store.state()
        host = state.hosts[node or CONTROLLER]
        fetches = state.spec.configless and host.name != CONTROLLER and host.slurmd
        conf = None if fetches else self.layout.slurm_conf
        return line, programs.environment(account, conf, env or {})

    def exec(
        self,
        argv: Sequence[str],
        node: str | None = None,
        user: str = "root",
        *,
        timeout: float = 60.0,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` on a host (default: the controller) and return its output as text.

        After ``timeout`` seconds it is killed and subprocess.TimeoutExpired raised.
        With ``check`` a non-zero exit code raises DevClusterError with the output.
        """
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = self.popen(argv, node, user, env=env, cwd=cwd, on_exit="KILL", stdin=stdin)
        result = programs.finish(process, argv, input, timeout)
        if check and result.returncode != 0:
            said = result.stderr.strip() or result.stdout.strip()
            raise DevClusterError(f"{' '.join(argv)} ended with {result.returncode}: {said}")
        return result

    def popen(
        self,
        argv: Sequence[str],
        node: str | None = None,
        user: str = "root",
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        on_exit: str = "TERM",
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start ``argv`` on a host (default: the controller); ``options`` go to Popen.

        By default it has pipes, no input, and a process group of its own. The Popen
        is nsenter's: ``send_signal`` of this class reaches the program itself.
        """
        line, environment = self.exec_argv(argv, node, user, cwd=cwd, env=env, on_exit=on_exit)
        return programs.start(line, environment, options)

    def send_signal(self, process: subprocess.Popen[str], signal_number: int) -> None:
        """Send a signal to the program that ``popen`` started."""
        programs.send_signal(process, signal_number)
