"""Where a cluster keeps its files.

Everything lies below one directory, so that taking a cluster down is removing
that directory. Paths stay short: Unix sockets below it have 107 bytes at most.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hpresume.devcluster.spec import check_name
from hpresume.errors import DevClusterError, UsageError

DIRECTORY_VARIABLE = "HPRESUME_DEVCLUSTER_DIR"
DEFAULT_DIRECTORY = Path("/var/tmp/hpresume-devcluster")  # noqa: S108 - made and checked below
_LONGEST_BASE = 60


@dataclass(frozen=True)
class Layout:
    """Paths of the cluster whose files lie in ``root``."""

    root: Path

    @property
    def state_file(self) -> Path:
        """What the commands know about the cluster."""
        return self.root / "state.json"

    @property
    def slurm_conf(self) -> Path:
        """Value of SLURM_CONF inside the cluster."""
        return self.root / "slurm.conf"

    @property
    def plugstack_conf(self) -> Path:
        """List of SPANK plugins."""
        return self.root / "plugstack.conf"

    @property
    def etc(self) -> Path:
        """Files that cover those of the machine's /etc on every host."""
        return self.root / "etc"

    @property
    def homes(self) -> Path:
        """Home directories, shared by all hosts."""
        return self.root / "home"

    @property
    def logs(self) -> Path:
        """Logs of the daemons and of the hosts' init processes."""
        return self.root / "log"

    @property
    def munge(self) -> Path:
        """Key, socket and pid file of the cluster's munged."""
        return self.root / "munge"

    @property
    def munge_socket(self) -> Path:
        """Socket through which all hosts authenticate."""
        return self.munge / "munge.socket.2"

    @property
    def controller_state(self) -> Path:
        """StateSaveLocation: outlives the controller host."""
        return self.root / "ctld"

    @property
    def slurmdbd_conf(self) -> Path:
        """Configuration of slurmdbd, which looks for it beside slurm.conf."""
        return self.root / "slurmdbd.conf"

    @property
    def database(self) -> Path:
        """MariaDB's tables and socket: outlives the controller host."""
        return self.root / "mariadb"

    @property
    def database_socket(self) -> Path:
        """Where slurmdbd finds MariaDB."""
        return self.database / "socket"

    @property
    def database_conf(self) -> Path:
        """Option file of MariaDB."""
        return self.root / "mariadbd.cnf"

    def host(self, name: str) -> Path:
        """Private files of one host; emptied at every boot."""
        return self.root / "host" / name

    def spool(self, name: str) -> Path:
        """SlurmdSpoolDir of a node."""
        return self.host(name) / "spool"

    def pid_file(self, name: str, daemon: str) -> Path:
        """Pid file of a Slurm daemon; the pid is the one inside the host."""
        return self.host(name) / f"{daemon}.pid"

    def gpus(self, name: str) -> Path:
        """Device files that stand for a node's GPUs."""
        return self.host(name) / "gpu"

    def slurm_log(self, daemon: str, name: str) -> Path:
        """Log of slurmctld, of slurmdbd or of a node's slurmd."""
        return self.logs / (f"slurmd-{name}.log" if daemon == "slurmd" else f"{daemon}.log")


def base_directory() -> Path:
    """Directory that holds all clusters; raises UsageError where its path cannot be used."""
    base = Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)
    if not base.is_absolute():
        raise UsageError(f"{DIRECTORY_VARIABLE}={base}: must be an absolute path")
    if len(str(base)) > _LONGEST_BASE or any(c.isspace() or c in "#[]," for c in str(base)):
        raise UsageError(
            f"{DIRECTORY_VARIABLE}={base}: use at most {_LONGEST_BASE} characters, "
            "without white space, '#', ',' and brackets"
        )
    return base


def layout_of(name: str) -> Layout:
    """Paths of the cluster called ``name``."""
    return Layout(base_directory() / check_name(name))


def make_base_directory() -> Path:
    """Create the directory of all clusters; raises DevClusterError where it is not root's own."""
    base = base_directory()
    base.mkdir(mode=0o755, parents=True, exist_ok=True)
    info = base.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != 0 or info.st_mode & 0o022:
        raise DevClusterError(
            f"{base} must be a directory that belongs to root and that only root can write to; "
            f"remove it, or set {DIRECTORY_VARIABLE} to another one"
        )
    return base
