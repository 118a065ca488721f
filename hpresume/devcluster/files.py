"""Writing the files of a cluster and of its hosts below the state directory."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import hpresume
from hpresume.devcluster.accounting import slurmdbd_conf
from hpresume.devcluster.accounts import accounts, group_text, passwd_text
from hpresume.devcluster.addresses import hosts_file
from hpresume.devcluster.database import DATABASE_UID, mariadbd_conf
from hpresume.devcluster.layout import Layout
from hpresume.devcluster.mounts import mount_table
from hpresume.devcluster.slurm_conf import (
    Version,
    cgroup_conf,
    gres_conf,
    gres_line,
    plugstack_conf,
    slurm_conf,
)
from hpresume.devcluster.spec import ClusterSpec

_NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
_NULL_DEVICE = os.makedev(1, 3)
_MUNGE_KEY_BYTES = 128


def write_cluster_files(
    spec: ClusterSpec,
    layout: Layout,
    version: Version,
    addresses: Mapping[str, str],
    cgroup_plugin: str | None,
) -> None:
    """Create the directories and files that all hosts share."""
    for directory in (layout.etc, layout.homes, layout.logs, layout.root / "host"):
        directory.mkdir(mode=0o755)
    layout.controller_state.mkdir(mode=0o700)
    layout.munge.mkdir(mode=0o755)
    key = layout.munge / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(_MUNGE_KEY_BYTES))
    users = accounts(layout.homes).values()
    for user in users:
        if user.uid != 0:
            user.home.mkdir(mode=0o755)
            os.chown(user.home, user.uid, user.gid)
    texts = {
        layout.slurm_conf: slurm_conf(spec, layout, version),
        layout.root / "gres.conf": gres_conf(spec, layout),
        layout.root / "cgroup.conf": cgroup_conf(version, cgroup_plugin),
        layout.plugstack_conf: plugstack_conf(spec),
        layout.etc / "hosts": hosts_file(addresses),
        layout.etc / "resolv.conf": "",
        layout.etc / "nsswitch.conf": _NSSWITCH,
        layout.etc / "passwd": passwd_text(Path("/etc/passwd").read_text(), users),
        layout.etc / "group": group_text(Path("/etc/group").read_text(), users),
    }
    for path, text in texts.items():
        path.write_text(text)
        path.chmod(0o644)
    if spec.accounting:
        _write_accounting_files(layout)


def _write_accounting_files(layout: Layout) -> None:
    layout.database.mkdir(mode=0o700)
    os.chown(layout.database, DATABASE_UID, DATABASE_UID)
    layout.database_conf.write_text(mariadbd_conf(layout))
    layout.database_conf.chmod(0o644)
    # slurmdbd refuses a file that others can read
    layout.slurmdbd_conf.touch(mode=0o600)
    layout.slurmdbd_conf.write_text(slurmdbd_conf(layout))


def rewrite_hosts_file(layout: Layout, addresses: Mapping[str, str]) -> None:
    """Change addresses on all hosts at once.

    The file is written in place, as it is mounted on every host, in one write of
    its old length or more, so that nobody reads a part of it.
    """
    descriptor = os.open(layout.etc / "hosts", os.O_WRONLY)
    try:
        text = hosts_file(addresses).encode()
        os.pwrite(descriptor, text.ljust(os.fstat(descriptor).st_size, b"\n"), 0)
    finally:
        os.close(descriptor)


def add_gres(layout: Layout, name: str, gpus: int) -> None:
    """Let gres.conf say what a host has that was added; lines of other hosts stay as they are."""
    path = layout.root / "gres.conf"
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(f"NodeName={name} ")]
    draft = path.with_suffix(".new")
    draft.write_text("".join(kept) + gres_line(layout, name, gpus))
    draft.chmod(0o644)
    draft.replace(path)


def write_host_files(
    spec: ClusterSpec,
    layout: Layout,
    name: str,
    binds: Iterable[tuple[Path, Path]],
    *,
    gpus: int,
    keep_disks: bool = False,
) -> Path:
    """Give a host empty disks and its devices; returns the path of its mount table.

    ``binds`` are further directories and where the host sees them. With ``keep_disks``
    its disks stay as they are: /tmp, /run and /dev/shm are none, and begin empty.
    """
    directory = layout.host(name)
    if not keep_disks:
        shutil.rmtree(directory, ignore_errors=True)
    for path in (directory, layout.spool(name), layout.gpus(name), directory / "private"):
        path.mkdir(mode=0o755, exist_ok=True)
    for daemon in ("slurmctld", "slurmd"):
        # one of before the reboot: its pid means nothing now
        layout.pid_file(name, daemon).unlink(missing_ok=True)
    for number in range(gpus):
        device = layout.gpus(name) / f"gpu{number}"
        if not device.exists():
            os.mknod(device, stat.S_IFCHR | 0o666, _NULL_DEVICE)
            device.chmod(0o666)
    fstab = directory / "fstab"
    fstab.write_text(
        mount_table(
            name,
            private=directory / "private",
            etc=layout.etc,
            munge=layout.munge,
            visible=_visible(spec, layout),
            binds=binds,
        )
    )
    return fstab


def _visible(spec: ClusterSpec, layout: Layout) -> list[Path]:
    """What hosts must see wherever it lies: state, this package, its Python, the plugin."""
    paths = [layout.root, Path(hpresume.__file__).parent.parent, Path(sys.prefix)]
    paths += [path.parent for path in (spec.plugin, spec.supervisor) if path is not None]
    return paths
