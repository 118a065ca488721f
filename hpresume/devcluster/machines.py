"""Machines that come and go behind the names of hosts, as a cloud's would.

Every change is written down before it is made, with the client token: whoever
was killed in the middle finds the machine again by its token, and ends what was begun.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hpresume.devcluster import faults, files, lifecycle, network
from hpresume.devcluster.addresses import NUMBERS, generation_of
from hpresume.devcluster.processes import namespace_of, parents_into
from hpresume.devcluster.spec import CONTROLLER, MAX_GPUS_PER_NODE, MAX_NODES
from hpresume.devcluster.state import ClusterState, HostState, MachineRecord, new_machine
from hpresume.devcluster.store import Store
from hpresume.errors import DevClusterError, UsageError

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class HostMachine:
    """A machine as seen now: ``condition`` is that of its host, ``gone`` once it was given up."""

    record: MachineRecord
    condition: str
    address: str = ""


@dataclass(frozen=True)
class Wish:
    """What a launch asks for.

    ``address`` is kept where the plan of addresses gives it to this host; with
    ``new_address`` it gets one that it never had. ``gpus`` counts for hosts that the
    cluster was not made with (None: as its nodes have). Without ``slurmd`` it runs no
    daemon, as a login node. With ``report_boot`` slurmd tells slurmctld of the boot.
    """

    address: str = ""
    new_address: bool = False
    gpus: int | None = None
    slurmd: bool = True
    report_boot: bool = False


def machines(state: ClusterState) -> tuple[HostMachine, ...]:
    """All machines that are known, those that are gone too."""
    here = tuple(
        HostMachine(host.machine, host.condition, host.address)
        for host in state.hosts.values()
        if host.machine is not None
    )
    return (*here, *(HostMachine(record, "gone") for record in state.retired))


def launch(store: Store, name: str, token: str, wish: Wish) -> str:
    """Start a machine under a name that has none; returns its id.

    A token that has made a machine already gives that one. The host need not be one
    that the cluster was made with: its slurmd starts as soon as slurm.conf knows it.
    Raises UsageError where the name has a machine, or where the wish cannot be met.
    """
    state = store.running_state()
    known = [machine.record for machine in machines(state) if machine.record.token == token]
    for record in known:
        if record.node != name:
            raise UsageError(f"token {token} was for {record.node}, not for {name}: use a new one")
        if not record.booted and record not in state.retired:
            _start(store, state.hosts[name], wish)
        return record.machine_id
    host = _host_for(state, name, wish)
    machine = new_machine(name, token, booted=False)
    fresh = replace(host, machine=machine, init=None, frozen=False, connected=True)
    store.save(state.with_machine(fresh))
    _start(store, fresh, wish)
    return machine.machine_id


def terminate(store: Store, machine_id: str) -> None:
    """End a machine for good; its name and address stay known. Does nothing where it is gone."""
    host = _find(store.running_state(), machine_id)
    if host is None:
        return
    _power_off(store, host)
    state = store.state()
    store.save(state.with_machine(replace(state.hosts[host.name], machine=None)))


def reboot(store: Store, machine_id: str, *, report_boot: bool = False) -> None:
    """Power cycle: disks, name and address stay; raises UsageError where it is gone."""
    host = _find(store.running_state(), machine_id)
    if host is None:
        raise UsageError(f"there is no machine {machine_id}: it cannot be rebooted")
    _power_off(store, host)
    _boot(store, store.host(host.name), keep_disks=True, report_boot=report_boot)


def forget(store: Store, name: str) -> None:
    """Take a host out of the cluster that it was not made with, with its machine."""
    host = store.host(name)
    if host.number is None:
        raise UsageError(f"{name} is one of the hosts that cluster {store.name} was made with")
    if host.machine is not None:
        terminate(store, host.machine.machine_id)
    state = store.state()
    hosts = {other: known for other, known in state.hosts.items() if other != name}
    store.save(replace(state, hosts=hosts))
    files.rewrite_hosts_file(store.layout, store.state().addresses)
    files.add_gres(store.layout, name, 0)


def _host_for(state: ClusterState, name: str, wish: Wish) -> HostState:
    """The host that the machine will stand behind, with the address it will have."""
    host = state.hosts.get(name)
    if host is None:
        if not _HOST_NAME.fullmatch(name):
            raise UsageError(
                f"host name {name!r}: use at most 63 lower-case letters, digits and '-'"
            )
        gpus = state.spec.gpus_per_node if wish.gpus is None else wish.gpus
        if not 0 <= gpus <= MAX_GPUS_PER_NODE:
            raise UsageError(f"{name}: {gpus} GPUs: must be from 0 to {MAX_GPUS_PER_NODE}")
        host = HostState(name, number=_free_number(state, name), gpus=gpus, slurmd=wish.slurmd)
    elif host.machine is not None:
        raise UsageError(
            f"{name} has machine {host.machine.machine_id} already: terminate that first"
        )
    elif wish.new_address:
        host = replace(host, generation=host.generation + 1)
    if name != CONTROLLER and not wish.new_address:
        number = int(name.removeprefix("n")) if host.number is None else host.number
        kept = generation_of(wish.address, number)
        host = host if kept is None else replace(host, generation=kept)
    host.address  # noqa: B018 - raises where the plan has none left
    return host


def _free_number(state: ClusterState, name: str) -> int:
    """A place in the plan of addresses for a new host: beyond the nodes of any cluster."""
    taken = {host.number for host in state.hosts.values()}
    for number in NUMBERS[MAX_NODES:]:
        if number not in taken:
            return number
    raise UsageError(
        f"{name}: the cluster has no address left; it takes {len(NUMBERS) - MAX_NODES} added hosts"
    )


def _find(state: ClusterState, machine_id: str) -> HostState | None:
    for host in state.hosts.values():
        if host.machine is not None and host.machine.machine_id == machine_id:
            return host
    return None


def _start(store: Store, host: HostState, wish: Wish) -> None:
    """Boot a machine that is written down, whatever an earlier launch has left of it."""
    _power_off(store, host)
    files.rewrite_hosts_file(store.layout, store.state().addresses)
    if host.number is not None:
        files.add_gres(store.layout, host.name, host.gpus or 0)
    # a node that never had a machine has not been booted again
    again = any(record.node == host.name for record in store.state().retired)
    report_boot = wish.report_boot and again
    _boot(store, store.host(host.name), keep_disks=False, report_boot=report_boot)
    booted = store.host(host.name)
    if booted.machine is None:
        raise DevClusterError(f"{host.name} lost its machine while it was booting")
    store.save_host(replace(booted, machine=replace(booted.machine, booted=True)))


def _boot(store: Store, host: HostState, *, keep_disks: bool, report_boot: bool) -> None:
    options = ["-b"] if report_boot and host.name != CONTROLLER else []
    spec = store.state().spec
    lifecycle.boot_host(store, spec, host, options, keep_disks=keep_disks, patient=True)


def _power_off(store: Store, host: HostState) -> None:
    """End all processes of a host and unplug it, also one that is only half there."""
    if host.running and host.machine is not None and host.machine.booted:
        faults.crash(store, host.name)
        return
    if host.init is not None and host.running:
        lifecycle.kill_namespace(host.init, parents_into(namespace_of(host.init.pid, "pid")))
    network.remove_port(store.cluster_init(), host.name)
    store.save_host(replace(host, init=None, frozen=False, connected=True))
