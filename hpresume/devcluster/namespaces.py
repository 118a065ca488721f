"""Making the namespaces of a cluster and of its hosts, and going into them.

The cluster's init holds the network with the bridge. Every host's init is a
descendant of it in a pid namespace of its own. util-linux does the work.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from hpresume.devcluster import init
from hpresume.devcluster.processes import ProcessId
from hpresume.errors import DevClusterError

_CLUSTER = ("--mount", "--net", "--ipc", "--pid")
_HOST = ("--mount", "--net", "--ipc", "--uts", "--pid")


def enter_cluster(cluster: ProcessId) -> list[str]:
    """Start of a command line that runs a command in the cluster's own namespaces."""
    return ["nsenter", f"--target={cluster.pid}", *_CLUSTER, "--"]


def enter_network(process: ProcessId) -> list[str]:
    """Start of a command line that runs a command in a network only."""
    return ["nsenter", f"--target={process.pid}", "--net", "--"]


def enter_host(host: ProcessId) -> list[str]:
    """Start of a command line that runs a command on a host."""
    return ["nsenter", f"--target={host.pid}", *_HOST, "--"]


def start_cluster_init(label: str, log: Path, record: Callable[[ProcessId], None]) -> ProcessId:
    """Start the process that everything of the cluster hangs below.

    ``record`` is called with it before it does anything, so that it can be found
    again even if this command is killed. Raises DevClusterError where it does
    not start.
    """
    argv = ["setsid", "--fork", "unshare", *_CLUSTER, "--fork", "--"]
    return _start([*argv, *_init_argv(label, "-", "-")], log, record)


def start_host_init(
    cluster: ProcessId,
    label: str,
    host: str,
    fstab: Path,
    log: Path,
    record: Callable[[ProcessId], None],
) -> ProcessId:
    """Start a host of the cluster; it has no network interface yet.

    Parameters and errors as for ``start_cluster_init``; ``fstab`` is mounted by it.
    """
    argv = [*enter_cluster(cluster), "setsid", "--fork", "unshare", *_HOST, "--fork", "--"]
    return _start([*argv, *_init_argv(label, host, str(fstab))], log, record)


def _init_argv(label: str, hostname: str, fstab: str) -> list[str]:
    return [sys.executable, "-I", "-S", init.__file__, label, hostname, fstab]


def _start(argv: Sequence[str], log: Path, record: Callable[[ProcessId], None]) -> ProcessId:
    with log.open("ab") as errors:
        starter = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd="/"
        )
    stdin, stdout = starter.stdin, starter.stdout
    assert stdin is not None  # noqa: S101 - for the type checker
    assert stdout is not None  # noqa: S101
    with stdin, stdout:
        try:
            process = ProcessId.of(int(_line(stdout)))
            record(process)
            stdin.write(b"go\n")
            stdin.flush()
            if _line(stdout) == "ready":
                return process
        except (ValueError, OSError):
            pass
        finally:
            stdin.close()
            starter.wait()
    raise DevClusterError(f"cannot start a namespace: {_last_line(log)}")


def _line(stream: IO[bytes]) -> str:
    return stream.readline().decode().strip()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"no message in {log}"
