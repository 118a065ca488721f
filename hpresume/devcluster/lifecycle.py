"""Making a cluster, starting its hosts, and ending all of it."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hpresume.devcluster import accounting, cgroups, daemons, files, namespaces, network
from hpresume.devcluster.processes import (
    ProcessId,
    all_pids,
    command_of,
    namespace_of,
    parents_into,
    run,
)
from hpresume.devcluster.slurm_conf import Version, parse_version
from hpresume.devcluster.spec import CONTROLLER, ClusterSpec
from hpresume.devcluster.state import ClusterState, HostState, new_state
from hpresume.devcluster.store import Store
from hpresume.errors import DevClusterError

Progress = Callable[[str], None]

_KILL_TIMEOUT = 15.0
_PARALLEL_BOOTS = 8
_POLL = 0.05


def create(store: Store, spec: ClusterSpec, deadline: float, progress: Progress) -> None:
    """Make the cluster and wait until ``deadline`` (monotonic clock) for idle nodes.

    Raises DevClusterError where something does not start or is late.
    """
    layout = store.layout
    version = slurm_version()
    plugin = cgroups.plugin_for_machine() if spec.cgroup else None
    state = new_state(spec)
    layout.root.mkdir(mode=0o755)
    files.write_cluster_files(spec, layout, version, state.addresses, plugin)
    store.save(state)
    progress(f"Slurm {version[0]}.{version[1]:02}, {spec.nodes} nodes, files in {layout.root}")
    init = namespaces.start_cluster_init(
        _label(store),
        layout.logs / "init.log",
        lambda process: store.save(replace(state, init=process)),
    )
    network.create_bridge(init)
    daemons.start_munged(init, layout)
    progress("network and munge are up")
    with ThreadPoolExecutor(_PARALLEL_BOOTS) as pool:
        boots = [pool.submit(boot_host, store, spec, host) for host in state.hosts.values()]
    for boot in boots:
        boot.result()
    plugin_said = f", plugin {spec.plugin}" if spec.plugin else ", no SPANK plugin"
    progress(f"slurmctld and all slurmd are started{plugin_said}")
    wait_idle(store, spec.node_names, deadline)
    progress("all nodes are idle")


def boot_host(
    store: Store,
    spec: ClusterSpec,
    host: HostState,
    daemon_options: Sequence[str] = (),
    *,
    keep_disks: bool = False,
    patient: bool = False,
) -> None:
    """Start a host, its network and its Slurm daemon, with empty disks unless told otherwise.

    With ``patient``, a slurmd that slurm.conf does not know yet starts when it does.
    """
    layout, cluster = store.layout, store.cluster_init()
    binds = cgroups.make_host_cgroups(layout, host.name) if spec.cgroup else []
    gpus = host.gpus
    if gpus is None:
        gpus = spec.gpus_per_node if host.name in spec.node_names else 0
    fstab = files.write_host_files(spec, layout, host.name, binds, gpus=gpus, keep_disks=keep_disks)
    init = namespaces.start_host_init(
        cluster,
        f"{_label(store)} {host.name}",
        host.name,
        fstab,
        layout.logs / f"init-{host.name}.log",
        lambda process: store.save_host(replace(host, init=process)),
    )
    network.connect_host(cluster, init, host.name, host.address)
    if host.name == CONTROLLER and spec.accounting:
        accounting.start_accounting(layout, init)
    if host.name == CONTROLLER:
        daemons.start_daemon("slurmctld", host.name, init, layout, *daemon_options)
    elif host.slurmd and patient:
        option = "".join(daemon_options[:1])
        daemons.start_slurmd_when_configured(
            host.name, init, layout, option, configless=spec.configless
        )
    elif host.slurmd:
        daemons.start_daemon(
            "slurmd", host.name, init, layout, *daemon_options, configless=spec.configless
        )


def wait_idle(store: Store, nodes: Sequence[str], deadline: float) -> None:
    """Wait until ``deadline`` (monotonic clock) for Slurm to have ``nodes`` idle.

    Raises DevClusterError that says which nodes are not.
    """
    controller = store.running_init(CONTROLLER)
    while True:
        try:
            states = daemons.node_states(controller, store.layout)
            late = [(node, states.get(node, "unknown")) for node in nodes]
            said = ", ".join(f"{node} {state}" for node, state in late if state != "idle")
        except DevClusterError as error:
            said = str(error)
        if not said:
            return
        if time.monotonic() > deadline:
            raise DevClusterError(
                f"cluster {store.name}: not all nodes became idle ({said}); "
                f"see the logs in {store.layout.logs}"
            )
        time.sleep(_POLL)


def remove(store: Store) -> None:
    """End every process of a cluster and remove everything it left on the machine."""
    end_processes(store)
    cgroups.remove_cluster_cgroups(store.layout)
    if store.layout.root.exists():
        shutil.rmtree(store.layout.root)


def end_processes(store: Store) -> None:
    """End every process of a cluster: the kernel does it once the cluster's init is dead."""
    for init in _find_inits(store):
        spaces = {namespace_of(init.pid, "pid")}
        inside = [pid for pid in all_pids() if command_of(pid).startswith(f"{_label(store)} ")]
        spaces |= {namespace_of(pid, "pid") for pid in inside}
        waiting = [process for space in spaces - {""} for process in parents_into(space)]
        kill_namespace(init, waiting)


def kill_namespace(init: ProcessId, waiting: Sequence[ProcessId]) -> None:
    """Kill a PID 1 and with it its namespace.

    ``waiting`` are outside parents of what is in it; they may be stopped together
    with their children, and go on. Raises DevClusterError where it does not die.
    """
    init.kill(signal.SIGKILL)
    for process in waiting:
        process.kill(signal.SIGCONT)
    if not init.wait_gone(_KILL_TIMEOUT):
        raise DevClusterError(f"process {init.pid} of the cluster does not die")


def slurm_version() -> Version:
    """Major and minor version of the installed Slurm."""
    return parse_version(run(["slurmctld", "-V"]))


def _find_inits(store: Store) -> list[ProcessId]:
    """The cluster's init: as recorded, or by its title where the record cannot be read."""
    try:
        state: ClusterState | None = store.find()
    except DevClusterError:
        found = [pid for pid in all_pids() if command_of(pid) == f"{_label(store)} infinity"]
        return [ProcessId.of(pid) for pid in found]
    return [state.init] if state is not None and state.init is not None and state.running else []


def _label(store: Store) -> str:
    """Title of the init processes in process lists."""
    return f"hpresume-devcluster {store.layout.root}"
