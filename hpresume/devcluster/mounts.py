"""The file systems of a host, as a table for mount(8).

A host sees the machine's files, except for directories that must be its own
(/tmp, /run, /dev/shm) and the few files of /etc that describe the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PRIVATE_DIRECTORIES = ("/tmp", "/run", "/dev/shm")  # noqa: S108 - mount points
"""Every host has an empty one of its own."""

ETC_FILES = ("hosts", "resolv.conf", "nsswitch.conf", "passwd", "group")
"""Files of the machine's /etc that hosts see another version of."""

_MUNGE_DIRECTORY = "/run/munge"
_CGROUPS = "/sys/fs/cgroup"


def mount_table(
    host: str,
    *,
    private: Path,
    etc: Path,
    munge: Path,
    visible: Iterable[Path],
    binds: Iterable[tuple[Path, Path]] = (),
) -> str:
    """fstab of ``host``.

    ``private`` is a directory for the sources of the private directories, ``etc``
    holds the files for /etc, ``munge`` the munge socket. Paths in ``visible`` are
    seen by the host even where they lie below a private directory. ``binds`` are
    directories below /sys/fs/cgroup and where the host sees them.
    """
    lines = [f"{etc / name} {_target(name)} none bind" for name in ETC_FILES if _target(name)]
    for directory in PRIVATE_DIRECTORIES:
        source = private / directory.strip("/").replace("/", "-")
        mode = "0755" if directory == "/run" else "1777"
        lines.append(f"hpresume-{host} {source} tmpfs mode={mode},nosuid,nodev,x-mount.mkdir")
        for path in _below(directory, visible):
            inside = source / path.relative_to(directory)
            lines.append(f"{path} {inside} none rbind,x-mount.mkdir")
        if directory == "/run":
            inside = source / Path(_MUNGE_DIRECTORY).relative_to(directory)
            lines.append(f"{munge} {inside} none bind,x-mount.mkdir")
        lines.append(f"{source} {directory} none rbind")
    # /sys is per network: it lists the host's own interfaces
    sys = private / "sys"
    lines.append(f"hpresume-{host}-sys {sys} sysfs nosuid,nodev,noexec,x-mount.mkdir")
    lines.append(f"{_CGROUPS} {sys / 'fs/cgroup'} none rbind")
    lines += [f"{source} {sys / target.relative_to('/sys')} none bind" for source, target in binds]
    lines.append(f"{sys} /sys none rbind")
    lines.append(f"hpresume-{host}-proc /proc proc nosuid,nodev,noexec")
    return "".join(f"{line}\n" for line in lines)


def _target(name: str) -> str:
    """Path to mount over, or nothing where a private directory hides the file anyway."""
    path = Path("/etc", name)
    real = path.resolve()
    hidden = any(real.is_relative_to(directory) for directory in PRIVATE_DIRECTORIES)
    return "" if hidden or not real.exists() else str(real)


def _below(directory: str, paths: Iterable[Path]) -> list[Path]:
    """The topmost of ``paths`` that lie below ``directory``."""
    candidates = sorted({path for path in paths if Path(directory) in path.parents})
    return [path for path in candidates if not any(up in path.parents for up in candidates)]
