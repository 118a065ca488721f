"""What can happen to a host: power loss, a freeze, a pulled cable, a new machine."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import replace

from hpresume.devcluster import accounting, daemons, files, lifecycle, network
from hpresume.devcluster.processes import ProcessId, namespace_of, parents_into, run
from hpresume.devcluster.spec import CONTROLLER
from hpresume.devcluster.state import new_machine
from hpresume.devcluster.store import Store
from hpresume.errors import DevClusterError, UsageError


def crash(store: Store, name: str) -> None:
    """Power loss. The link goes first, so that no FIN and no RST tells of the death."""
    cluster, init, host = store.cluster_init(), store.running_init(name), store.host(name)
    network.set_link(cluster, name, up=False)
    store.save_host(replace(host, connected=False))
    lifecycle.kill_namespace(init, parents_into(namespace_of(init.pid, "pid")))
    network.remove_port(cluster, name)
    store.save_host(replace(host, init=None, frozen=False, connected=True))


def hang(store: Store, name: str) -> None:
    """Stop every process; the kernel goes on answering for them."""
    init, host = store.running_init(name), store.host(name)
    if host.frozen:
        raise DevClusterError(f"{name} hangs already: thaw it, or crash it")
    store.save_host(replace(host, frozen=True))
    _signal_all(init, signal.SIGSTOP)


def thaw(store: Store, name: str) -> None:
    """Let every process of a hanging host go on."""
    init, host = store.running_init(name), store.host(name)
    if not host.frozen:
        raise DevClusterError(f"{name} does not hang: it is {host.condition}")
    _signal_all(init, signal.SIGCONT)
    for process in parents_into(namespace_of(init.pid, "pid")):
        process.kill(signal.SIGCONT)  # nsenter stops itself together with its child
    store.save_host(replace(host, frozen=False))


def set_link(store: Store, name: str, *, up: bool) -> None:
    """Plug a host's network cable in, or pull it."""
    store.running_init(name)
    host = store.host(name)
    if host.connected == up:
        raise DevClusterError(f"{name} is {'connected' if up else 'disconnected'} already")
    network.set_link(store.cluster_init(), name, up=up)
    store.save_host(replace(host, connected=up))


def boot(store: Store, name: str, *, new_address: bool, report_boot: bool) -> None:
    """Start a fresh machine under the name of a crashed one."""
    host = store.host(name)
    if host.running:
        raise DevClusterError(f"{name} is {host.condition}: crash it before booting it")
    fresh = replace(
        host,
        init=None,
        frozen=False,
        connected=True,
        generation=host.generation + (1 if new_address else 0),
        machine=new_machine(name),
    )
    address = fresh.address
    store.save(store.running_state().with_machine(fresh))
    state = store.running_state()
    files.rewrite_hosts_file(store.layout, state.addresses)
    network.remove_port(store.cluster_init(), name)
    if new_address and name != CONTROLLER:
        _tell_slurm(store, name, address)
    added = host.number is not None  # slurm.conf may not know it
    lifecycle.boot_host(store, state.spec, fresh, ["-b"] if report_boot else [], patient=added)


def restart_daemon(store: Store, daemon: str, name: str | None) -> None:
    """Restart slurmctld, slurmdbd or a node's slurmd; running steps are not theirs and go on."""
    if daemon not in ("slurmctld", "slurmdbd", "slurmd"):
        raise UsageError(f"unknown daemon {daemon!r}: use slurmctld, slurmdbd or slurmd")
    if daemon == "slurmdbd" and not store.state().spec.accounting:
        raise UsageError(f"cluster {store.name} has no slurmdbd: bring it up with --accounting")
    if name is None and daemon == "slurmd":
        raise UsageError("restart slurmd: name the node")
    name = name or CONTROLLER
    init, host, layout = store.running_init(name), store.host(name), store.layout
    if (name == CONTROLLER) != (daemon != "slurmd"):
        raise UsageError(f"{daemon} does not run on {name}")
    if host.frozen:
        raise DevClusterError(f"{name} hangs: thaw it before restarting its {daemon}")
    daemons.stop_daemon(daemon, name, init, layout)
    if daemon == "slurmdbd":
        accounting.start_accounting(layout, init)
    else:
        configless = store.state().spec.configless
        daemons.start_daemon(daemon, name, init, layout, configless=configless)


def _tell_slurm(store: Store, node: str, address: str) -> None:
    """Make slurmctld talk to the new address: it would ping the old one until it gives up.

    A slurmctld that is not there reads the hosts file when it starts.
    """
    controller = store.host(CONTROLLER)
    if controller.init is None or controller.condition != "running":
        return
    argv = ["scontrol", "update", f"nodename={node}", f"nodeaddr={address}"]
    daemons.run_on_controller(controller.init, store.layout, argv)


def _signal_all(init: ProcessId, number: signal.Signals) -> None:
    """Send a signal to all processes of a host at once, its PID 1 last."""
    code = f"import os; os.kill(-1, {int(number)})"
    python = [sys.executable, "-I", "-S", "-c", code]
    with suppress(DevClusterError):  # where there is nothing but PID 1
        run(["nsenter", f"--target={init.pid}", "--pid", "--", *python])
    init.kill(number)
