"""slurmdbd on the controller: jobs get an index in its database.

Until 24.05 slurmctld lets a running job change its size only once without it: the
job waits for a new index from then on.
"""

from __future__ import annotations

import time
from pathlib import Path

from hpresume.devcluster import daemons
from hpresume.devcluster.database import DATABASE_NAME, start_database
from hpresume.devcluster.layout import Layout
from hpresume.devcluster.processes import ProcessId
from hpresume.devcluster.spec import CONTROLLER
from hpresume.errors import DevClusterError

SLURMDBD_PORT = 6819

_LISTEN = "0A"
_START_TIMEOUT = 30.0


def slurmdbd_conf(layout: Layout) -> str:
    """Text of slurmdbd.conf. StorageHost is the machine itself, so that the socket is used."""
    settings = (
        ("AuthType", "auth/munge"),
        ("AuthInfo", f"socket={layout.munge_socket}"),
        ("DbdHost", CONTROLLER),
        ("DbdPort", SLURMDBD_PORT),
        ("SlurmUser", "root"),
        ("PidFile", layout.pid_file(CONTROLLER, "slurmdbd")),
        ("LogFile", layout.slurm_log("slurmdbd", CONTROLLER)),
        ("StorageType", "accounting_storage/mysql"),
        ("StorageHost", "localhost"),
        ("StorageUser", "root"),
        ("StorageLoc", DATABASE_NAME),
    )
    return "".join(f"{key}={value}\n" for key, value in settings)


def start_accounting(layout: Layout, host: ProcessId) -> None:
    """Start slurmdbd on the controller, and the database first where it does not run.

    Waits until slurmdbd has made its tables and listens: where slurmctld finds nobody
    there when it starts for the first time, it ends at once. Raises DevClusterError
    where one of the two does not come up within 30 seconds.
    """
    start_database(layout, host)
    daemons.start_daemon("slurmdbd", CONTROLLER, host, layout)
    deadline = time.monotonic() + _START_TIMEOUT
    while not _listens(host, SLURMDBD_PORT):
        if time.monotonic() > deadline:
            log = layout.slurm_log("slurmdbd", CONTROLLER)
            raise DevClusterError(f"slurmdbd does not come up; see {log}")
        time.sleep(0.02)


def listening_ports(table: str) -> set[int]:
    """Ports that programs listen at, from the text of /proc/PID/net/tcp or tcp6."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return {
        int(local.rpartition(":")[2], 16) for _, local, _, state, *_ in rows if state == _LISTEN
    }


def _listens(host: ProcessId, port: int) -> bool:
    """Whether a program on the host listens at a TCP port."""
    tables = (Path(f"/proc/{host.pid}/net", name) for name in ("tcp", "tcp6"))
    return any(port in listening_ports(table.read_text()) for table in tables if table.exists())
