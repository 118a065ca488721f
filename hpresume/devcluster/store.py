"""Access to the recorded state of one cluster by name, with the errors users see."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hpresume.devcluster.layout import Layout, base_directory, layout_of
from hpresume.devcluster.processes import ProcessId
from hpresume.devcluster.requirements import require_root
from hpresume.devcluster.spec import CONTROLLER
from hpresume.devcluster.state import ClusterState, HostState, load_state, locked, save_state
from hpresume.errors import DevClusterError, UsageError

_LOCK_TIMEOUT = 60.0


class Store:
    """State of the cluster called ``name``, which may or may not exist."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.layout: Layout = layout_of(name)
        self._thread_lock = threading.Lock()

    @contextmanager
    def locked(self, timeout: float = _LOCK_TIMEOUT) -> Iterator[None]:
        """Keep other commands from changing the cluster; needs root.

        Raises DevClusterError where one is at work for ``timeout`` seconds, or where
        no cluster was ever made.
        """
        require_root()
        base = base_directory()
        if not base.exists():
            raise DevClusterError(self._unknown())
        with locked(base / f".{self.name}.lock", timeout):
            yield

    def find(self) -> ClusterState | None:
        """The recorded state, or None where there is no such cluster."""
        return load_state(self.layout.state_file)

    def state(self) -> ClusterState:
        """The recorded state; raises DevClusterError where there is no such cluster."""
        state = self.find()
        if state is None:
            raise DevClusterError(self._unknown())
        return state

    def running_state(self) -> ClusterState:
        """The state of a cluster that runs; raises DevClusterError where it does not."""
        state = self.state()
        if not state.running:
            raise DevClusterError(
                f"cluster {self.name} does not run any more; bring it up again, or take it down"
            )
        return state

    def host(self, name: str) -> HostState:
        """A host of the running cluster; raises UsageError where it has none of that name."""
        state = self.running_state()
        if name not in state.hosts:
            of_up = state.spec.node_names
            later = sorted(host for host in state.hosts if host not in (CONTROLLER, *of_up))
            raise UsageError(
                f"unknown node {name!r}: cluster {self.name} has {CONTROLLER} and "
                f"{of_up[0]} to {of_up[-1]}{', and ' if later else ''}{', '.join(later)}"
            )
        return state.hosts[name]

    def running_init(self, name: str) -> ProcessId:
        """PID 1 of a host; raises DevClusterError where it is powered off."""
        host = self.host(name)
        if host.init is None or not host.running:
            raise DevClusterError(f"{name} is crashed: boot it first")
        return host.init

    def cluster_init(self) -> ProcessId:
        """The process everything of the running cluster hangs below."""
        init = self.running_state().init
        assert init is not None  # noqa: S101 - a running state has one
        return init

    def save(self, state: ClusterState) -> None:
        """Record a whole state."""
        save_state(self.layout.state_file, state)

    def save_host(self, host: HostState) -> None:
        """Record one host; hosts may be recorded by several threads at once."""
        with self._thread_lock:
            self.save(self.state().with_host(host))

    def _unknown(self) -> str:
        known = ", ".join(cluster_names()) or "none"
        return f"there is no cluster {self.name!r} (existing: {known}); bring it up first"


def cluster_names() -> list[str]:
    """Names of all clusters that exist, running or left over."""
    return sorted(path.parent.name for path in base_directory().glob("*/state.json"))
