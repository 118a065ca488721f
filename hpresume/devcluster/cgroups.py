"""A sub-hierarchy of the machine's cgroups for each host.

Slurm's cgroup plugins write below /sys/fs/cgroup. Each host sees directories of
its own there, so that clusters do not meet. They are all that a cluster has on the
machine outside its state directory, and they are removed with it.
"""

from __future__ import annotations

import os
import time
import zlib
from contextlib import suppress
from pathlib import Path

from hpresume.devcluster.layout import Layout
from hpresume.errors import DevClusterError, MissingDependencyError

CGROUP_ROOT = Path("/sys/fs/cgroup")
_NEEDED = ("cpuset", "freezer", "memory")
_REMOVE_TIMEOUT = 5.0

Bind = tuple[Path, Path]
"""A directory, and the place where a host sees it."""


def plugin_for_machine(mounts: str | None = None) -> str:
    """Slurm's cgroup plugin for this machine.

    ``mounts`` is the text of /proc/mounts. Raises MissingDependencyError where the
    machine has not the controllers Slurm needs in cgroups of version 1.
    """
    missing = [name for name in _NEEDED if name not in _controllers(mounts)]
    if missing:
        raise MissingDependencyError(
            f"--cgroup needs the cgroup v1 controllers {', '.join(_NEEDED)} below {CGROUP_ROOT}; "
            f"this machine has no {', '.join(missing)} there: leave --cgroup out"
        )
    return "cgroup/v1"


def make_host_cgroups(layout: Layout, host: str) -> list[Bind]:
    """Make fresh cgroups for a host; returns what it has to see where."""
    binds = []
    for controller, mounted in _controllers().items():
        cluster = mounted / _cluster_directory(layout)
        directory = cluster / host
        _remove_tree(directory)
        for path in (cluster, directory):
            path.mkdir(exist_ok=True)
            if controller == "cpuset":
                _inherit_cpuset(path)
        binds.append((directory, mounted))
    return binds


def remove_cluster_cgroups(layout: Layout) -> None:
    """Remove the cgroups of all hosts of a cluster, if it has any.

    Raises DevClusterError where processes are still in them.
    """
    for mounted in _controllers().values():
        _remove_tree(mounted / _cluster_directory(layout))


def _cluster_directory(layout: Layout) -> str:
    """Differs between clusters of one name in different state directories."""
    return f"hpresume-{layout.root.name}-{zlib.crc32(os.fsencode(layout.root)):08x}"


def _controllers(mounts: str | None = None) -> dict[str, Path]:
    """Mount points of the version 1 controllers."""
    text = Path("/proc/mounts").read_text() if mounts is None else mounts
    found = {}
    for line in text.splitlines():
        _, target, kind, options, *_ = line.split()
        path = Path(target)
        if kind == "cgroup" and path.parent == CGROUP_ROOT and "name=" not in options:
            found.update(dict.fromkeys(path.name.split(","), path))
    return found


def _inherit_cpuset(directory: Path) -> None:
    for name in ("cpuset.cpus", "cpuset.mems"):
        (directory / name).write_text((directory.parent / name).read_text())


def _remove_tree(top: Path) -> None:
    """Remove a cgroup and those below it; dead processes take a moment to leave."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT
    while top.exists():
        for directory, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()
        if time.monotonic() > deadline:
            raise DevClusterError(f"cannot remove {top}: processes are still in it")
        if top.exists():
            time.sleep(0.02)
