"""What is known about a cluster between two commands: a file, and a lock around it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpresume.devcluster.addresses import address_of
from hpresume.devcluster.processes import ProcessId
from hpresume.devcluster.spec import ClusterSpec
from hpresume.errors import DevClusterError

_LOCK_POLL = 0.02
_REMEMBERED = 1000


@dataclass(frozen=True)
class MachineRecord:
    """What stands behind a host's name for a while.

    ``token`` is the client token it was launched with (empty: none), ``launched_at``
    Unix time (s). ``booted`` is False until its launch has come to its end.
    """

    machine_id: str
    node: str
    token: str = ""
    launched_at: float = 0.0
    booted: bool = True


@dataclass(frozen=True)
class HostState:
    """One host as the commands left it.

    ``init`` is its PID 1 (None: powered off), ``generation`` counts its changes of
    address. ``machine`` is None once it has been given up. Hosts that were added
    later have a ``number`` for their address, and say how many ``gpus`` they have and
    whether they run ``slurmd``.
    """

    name: str
    init: ProcessId | None = None
    generation: int = 0
    frozen: bool = False
    connected: bool = True
    machine: MachineRecord | None = None
    number: int | None = None
    gpus: int | None = None
    slurmd: bool = True

    @property
    def address(self) -> str:
        """IPv4 address in the cluster's network."""
        return address_of(self.name, self.generation, self.number)

    @property
    def running(self) -> bool:
        """Whether the host is powered on."""
        return self.init is not None and self.init.alive()

    @property
    def condition(self) -> str:
        """One word, or two: running, crashed, hung, disconnected, terminated."""
        if not self.running:
            return "crashed" if self.machine is not None else "terminated"
        words = [
            w for w, true in (("hung", self.frozen), ("disconnected", not self.connected)) if true
        ]
        return ", ".join(words) or "running"


@dataclass(frozen=True)
class ClusterState:
    """A cluster as the commands left it; ``retired`` are its last machines that are gone."""

    spec: ClusterSpec
    boot_id: str
    init: ProcessId | None
    hosts: dict[str, HostState]
    retired: tuple[MachineRecord, ...] = ()

    @property
    def running(self) -> bool:
        """Whether the cluster's init lives, and with it the cluster."""
        return self.init is not None and self.boot_id == boot_id() and self.init.alive()

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses of all hosts by name."""
        return {host.name: host.address for host in self.hosts.values()}

    def with_host(self, host: HostState) -> ClusterState:
        """This state with ``host`` in the place of the one of that name."""
        return replace(self, hosts={**self.hosts, host.name: host})

    def with_machine(self, host: HostState) -> ClusterState:
        """This state with ``host``, whose machine takes the place of the one it had."""
        old = self.hosts[host.name].machine if host.name in self.hosts else None
        gone = old is not None and (
            host.machine is None or host.machine.machine_id != old.machine_id
        )
        retired = (*self.retired, old)[-_REMEMBERED:] if old is not None and gone else self.retired
        return replace(self.with_host(host), retired=retired)


def new_state(spec: ClusterSpec) -> ClusterState:
    """State of a cluster of which nothing runs yet."""
    hosts = {name: HostState(name, machine=new_machine(name)) for name in spec.host_names}
    return ClusterState(spec, boot_id(), None, hosts)


def new_machine(node: str, token: str = "", *, booted: bool = True) -> MachineRecord:
    """A machine that was not there before, of now."""
    return MachineRecord(f"m-{secrets.token_hex(6)}", node, token, time.time(), booted)


def boot_id() -> str:
    """Changes when the machine boots: pids of before mean nothing then."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def save_state(path: Path, state: ClusterState) -> None:
    """Write ``state`` so that a reader sees the old or the new one, never a part."""
    text = json.dumps(asdict(state), indent=1, default=str)
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


def load_state(path: Path) -> ClusterState | None:
    """Read a state; None where there is none. Raises DevClusterError where it is unreadable."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DevClusterError(f"cannot read {path}: {error}") from error
    try:
        hosts = {name: _host(fields) for name, fields in data["hosts"].items()}
        retired = tuple(MachineRecord(**fields) for fields in data["retired"])
        init = _process(data["init"])
        return ClusterState(_spec(data["spec"]), data["boot_id"], init, hosts, retired)
    except (KeyError, TypeError) as error:
        raise DevClusterError(f"{path} was written by another version of hpresume") from error


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock file ``path``, which is removed afterwards.

    Raises DevClusterError where another command holds it for ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same_file(descriptor, path):
                break
        except BlockingIOError:
            pass
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise DevClusterError(f"another command is at work on this cluster (it holds {path})")
        time.sleep(_LOCK_POLL)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    """Whether ``path`` is still the file that was opened: its last holder removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _spec(data: dict[str, Any]) -> ClusterSpec:
    paths = {key: Path(data[key]) if data[key] else None for key in ("plugin", "supervisor")}
    overrides = tuple((key, value) for key, value in data["overrides"])
    # a plugin that has been deleted since must not make the cluster unmanageable
    paths = {key: path if path and path.is_file() else None for key, path in paths.items()}
    if paths["plugin"] is None:
        paths["supervisor"] = None
    return ClusterSpec(**{**data, **paths, "overrides": overrides})


def _host(data: dict[str, Any]) -> HostState:
    machine = MachineRecord(**data["machine"]) if data["machine"] else None
    return HostState(**{**data, "init": _process(data["init"]), "machine": machine})


def _process(data: dict[str, int] | None) -> ProcessId | None:
    return ProcessId(**data) if data else None
