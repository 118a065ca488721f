"""Starting and stopping munged, slurmctld, slurmdbd and slurmd inside the cluster."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpresume.devcluster import slurmd_start
from hpresume.devcluster.layout import Layout
from hpresume.devcluster.namespaces import enter_cluster, enter_host
from hpresume.devcluster.processes import (
    ProcessId,
    members,
    name_of,
    namespace_of,
    pid_inside,
    run,
)
from hpresume.devcluster.requirements import TOOL_PATH
from hpresume.devcluster.spec import CONTROLLER
from hpresume.errors import DevClusterError

_STOP_TIMEOUT = 30.0
_UP_TIMEOUT = 60.0
_MOST_ERRORS = 3
_POLL = 0.02


def start_munged(cluster: ProcessId, layout: Layout) -> None:
    """Start the munged that all hosts share; it belongs to none of them."""
    files = {
        "key-file": layout.munge / "munge.key",
        "socket": layout.munge_socket,
        "pid-file": layout.munge / "munged.pid",
        "seed-file": layout.munge / "munged.seed",
        "log-file": layout.logs / "munged.log",
    }
    options = [f"--{option}={path}" for option, path in files.items()]
    run([*enter_cluster(cluster), "munged", "--force", "--num-threads=4", *options])


def start_daemon(
    daemon: str,
    name: str,
    host: ProcessId,
    layout: Layout,
    *options: str,
    configless: bool = False,
) -> None:
    """Start slurmctld, slurmdbd or slurmd on a host; it goes into the background by itself.

    Returns when it has written its pid file. Raises DevClusterError with the last errors in
    its log where it does not start, or takes more than a minute.
    """
    environment = _environment(layout)
    argv = [daemon]
    if daemon == "slurmdbd":
        environment["MYSQL_UNIX_PORT"] = str(layout.database_socket)
    elif daemon == "slurmd":
        argv, environment = _slurmd(name, layout, configless)
    else:
        argv += ["-f", str(layout.slurm_conf)]
    log = layout.slurm_log(daemon, name)
    before = log.stat().st_size if log.exists() else 0
    try:
        run([*enter_host(host), *argv, *options], env=environment)
        _wait_until_up(daemon, name, host, layout)
    except DevClusterError as error:
        said = _errors_in(log, before)
        if not said:
            raise
        raise DevClusterError(
            f"{daemon} on {name} does not start: {'; '.join(said)}; see {log}"
        ) from error


def start_slurmd_when_configured(
    name: str, host: ProcessId, layout: Layout, option: str, *, configless: bool = False
) -> None:
    """Start slurmd as soon as slurm.conf knows its node; does not wait for that.

    It gets ``option`` (empty: none) only where slurm.conf knows the node already.
    """
    log = layout.logs / f"slurmd-start-{name}.log"
    conf = str(layout.slurm_conf)
    starter = [sys.executable, "-I", "-S", slurmd_start.__file__, str(log), conf, option or "-"]
    slurmd, environment = _slurmd(name, layout, configless)
    run([*enter_host(host), *starter, *slurmd], env=environment)


def stop_daemon(daemon: str, name: str, host: ProcessId, layout: Layout) -> None:
    """End slurmctld, slurmdbd or slurmd in the orderly way; does nothing where it does not run.

    Raises DevClusterError where it does not end within 30 seconds.
    """
    process = find_daemon(daemon, name, host, layout)
    if process is None:
        return
    process.kill(signal.SIGTERM)
    if not process.wait_gone(_STOP_TIMEOUT):
        raise DevClusterError(f"{daemon} on {name} does not end; see its log in {layout.logs}")


def find_daemon(daemon: str, name: str, host: ProcessId, layout: Layout) -> ProcessId | None:
    """The running daemon named by its pid file, or None."""
    try:
        inside = int(layout.pid_file(name, daemon).read_text())
    except (OSError, ValueError):
        return None
    for pid in members(namespace_of(host.pid, "pid")):
        try:
            if pid_inside(pid) == inside and _is(daemon, pid):
                return ProcessId.of(pid)
        except ProcessLookupError:
            continue
    return None


def run_on_controller(
    controller: ProcessId, layout: Layout, argv: Sequence[str], timeout: float = 10.0
) -> str:
    """Run one of Slurm's tools as root on the controller and return its output.

    Raises DevClusterError where it fails or takes more than ``timeout`` seconds.
    """
    return run([*enter_host(controller), *argv], timeout=timeout, env=_environment(layout))


def node_states(controller: ProcessId, layout: Layout, timeout: float = 10.0) -> dict[str, str]:
    """Slurm's state of every node, such as ``idle`` or ``down*``.

    Raises DevClusterError where slurmctld does not answer within ``timeout`` seconds.
    """
    argv = ["sinfo", "--noheader", "--Node", "--format=%N %T"]
    output = run_on_controller(controller, layout, argv, timeout)
    return dict(line.split(None, 1) for line in output.splitlines() if line.strip())


def _wait_until_up(daemon: str, name: str, host: ProcessId, layout: Layout) -> None:
    """Wait until a daemon in the background has written its pid file.

    Slurm 24.11's go there with code 0 before they have read their configuration, and may end then.
    """
    deadline = time.monotonic() + _UP_TIMEOUT
    while find_daemon(daemon, name, host, layout) is None:
        late = time.monotonic() > deadline
        if late or not any(_is(daemon, pid) for pid in members(namespace_of(host.pid, "pid"))):
            what = "does not come up" if late else "has ended"
            raise DevClusterError(
                f"{daemon} on {name} {what}; see {layout.slurm_log(daemon, name)}"
            )
        time.sleep(_POLL)


def _is(daemon: str, pid: int) -> bool:
    """Whether a process is this daemon.

    24.11 starts itself anew to reconfigure, by the name its file has in Debian's packages.
    """
    return name_of(pid) in (daemon, f"{daemon}-wlm")


def _slurmd(name: str, layout: Layout, configless: bool) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of a node's slurmd."""
    if configless:
        return ["slurmd", "--conf-server", CONTROLLER, "-N", name], {"PATH": TOOL_PATH}
    return ["slurmd", "-f", str(layout.slurm_conf), "-N", name], _environment(layout)


def _errors_in(log: Path, start: int) -> list[str]:
    """The last errors that a daemon has written to its log after ``start`` bytes."""
    try:
        text = log.read_bytes()[start:].decode(errors="replace")
    except OSError:
        return []
    found = re.findall(r"^\[[^]]*\] (?:error|fatal): +(.*)$", text, re.MULTILINE)
    return found[-_MOST_ERRORS:]


def _environment(layout: Layout) -> dict[str, str]:
    """All that daemons and root's tools get: nothing of the caller's leaks into jobs."""
    return {"PATH": TOOL_PATH, "SLURM_CONF": str(layout.slurm_conf)}
