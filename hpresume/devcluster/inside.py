"""Slurm's tools and slurmd's ports of a development cluster, from outside of it.

The controller needs both: the cluster's Slurm, and this machine's namespaces to start
machines in. On a real cluster it runs beside slurmctld and needs none of this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.spec import CONTROLLER
from hpresume.devcluster.store import Store
from hpresume.errors import DevClusterError, SlurmTransientError
from hpresume.slurm.models import Node
from hpresume.slurm.runner import Runner

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000


class InsideRunner(Runner):
    """Runs Slurm's tools on the controller host of a development cluster."""

    def __init__(self, cluster: DevCluster) -> None:
        super().__init__({})
        self._cluster = cluster
        self._own = self._environment

    @contextlib.contextmanager
    def started(
        self, argv: Sequence[str], cwd: str | None = None, *, stdin: int = subprocess.DEVNULL
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A running tool on the controller host."""
        try:
            # A folder of this machine is none of that host's.
            line, environ = self._cluster.exec_argv(
                argv, cwd=cwd and "/", env={**self._own}, on_exit="KILL"
            )
        except DevClusterError as error:
            raise SlurmTransientError(str(error)) from error
        self._environment = environ
        with super().started(line, None, stdin=stdin) as process:
            yield process


def with_addresses(cluster: DevCluster, nodes: Mapping[str, Node]) -> dict[str, Node]:
    """The nodes with the addresses of their hosts, whose names mean nothing out here."""
    hosts = Store(cluster.name).state().hosts
    return {
        name: replace(node, address=hosts[name].address) if name in hosts else node
        for name, node in nodes.items()
    }


def in_network(cluster: DevCluster, call: Callable[[], T]) -> T:
    """``call()`` in a thread inside the network of the controller host.

    Raises DevClusterError where the host is not running.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    pid = Store(cluster.name).running_init(CONTROLLER).pid

    def work() -> None:
        try:
            _enter(f"/proc/{pid}/ns/net")
            results.append(call())
        except BaseException as error:  # handed over to the caller
            errors.append(error)

    thread = threading.Thread(target=work, name="devcluster-network")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(path: str) -> None:
    """Move this thread, and no other, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise DevClusterError(f"{path}: cannot be entered: {os.strerror(number)}")
    finally:
        os.close(fd)
