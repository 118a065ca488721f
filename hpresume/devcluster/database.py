"""MariaDB for a cluster's accounting: private to the cluster, and gone with it.

It runs on the controller as an account of its own, listens on a socket that only
root can get at, and lets root in because it is root: there is no password. What
it commits survives the death of the controller, not that of the machine.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from hpresume.devcluster.layout import Layout
from hpresume.devcluster.namespaces import enter_host
from hpresume.devcluster.processes import ProcessId, run
from hpresume.devcluster.requirements import TOOL_PATH
from hpresume.errors import DevClusterError

DATABASE_UID = 20003
"""Who mariadbd runs as; nobody else of the cluster or, by habit, of the machine."""
DATABASE_NAME = "slurm_acct_db"

_START_TIMEOUT = 30.0
_SQL_FILES = ("system_tables.sql", "system_tables_data.sql")
_SHARE = (Path("/usr/share/mariadb"), Path("/usr/share/mysql"), Path("/usr/local/share/mysql"))
# The client library 11.8.9 of Debian 13 forgets its limits when a connection fails, as
# slurmdbd's first one does where it has to make its database itself: so that one is there.
_PREPARE = f"""\
create database {DATABASE_NAME};
create database if not exists mysql;
use mysql;
set @auth_root_socket='root';
set @skip_auth_anonymous=1;
"""


def mariadbd_conf(layout: Layout) -> str:
    """Text of mariadbd's option file: small, quick to start, and silent on the network.

    Options that not every version has are loose: unknown ones are passed over.
    """
    options = (
        ("datadir", layout.database / "data"),
        ("socket", layout.database_socket),
        ("pid-file", layout.database / "mariadbd.pid"),
        ("skip-networking", 1),
        ("skip-log-bin", 1),
        ("innodb-data-file-path", "ibdata1:5M:autoextend"),
        ("innodb-temp-data-file-path", "ibtmp1:1M:autoextend"),
        ("innodb-autoextend-increment", 1),
        ("innodb-log-file-size", "4M"),
        ("innodb-buffer-pool-size", "16M"),
        ("innodb-lock-wait-timeout", 900),
        # written to the kernel at every commit, forced to the disk never
        ("innodb-flush-log-at-trx-commit", 2),
        ("loose-innodb-flush-method", "nosync"),
        ("loose-debug-no-sync", 1),
        ("loose-innodb-doublewrite", 0),
        ("loose-innodb-undo-tablespaces", 0),
        ("loose-innodb-use-native-aio", 0),
        ("key-buffer-size", "1M"),
        ("aria-pagecache-buffer-size", "1M"),
        ("max-allowed-packet", "16M"),
        ("performance-schema", 0),
    )
    return "[mariadbd]\n" + "".join(f"{key}={value}\n" for key, value in options)


def start_database(layout: Layout, host: ProcessId) -> None:
    """Start mariadbd on the controller, with the tables of the last time or fresh ones.

    Does nothing where it runs. Raises DevClusterError where it does not come up within 30 seconds.
    """
    if _answers(layout.database_socket):
        return
    data = layout.database / "data"
    log = layout.logs / "mariadbd.log"
    if not data.exists():
        _prepare(layout, host, data)
    # it stays in the foreground: give it a session, its log, and not our pipes
    detach = ["setsid", "--fork", "sh", "-c", 'exec "$@" >>"$0" 2>&1 </dev/null', str(log)]
    run([*enter_host(host), *detach, *_mariadbd(layout)], env={"PATH": TOOL_PATH})
    deadline = time.monotonic() + _START_TIMEOUT
    while not _answers(layout.database_socket):
        if time.monotonic() > deadline:
            raise DevClusterError(f"mariadbd does not come up; see {log}")
        time.sleep(0.02)


def _prepare(layout: Layout, host: ProcessId, data: Path) -> None:
    """Make the system tables, as mariadb-install-db does, which needs a client installed."""
    draft = data.with_suffix(".new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    os.chown(draft, DATABASE_UID, DATABASE_UID)
    sql = _PREPARE + "".join(_sql_file(name).read_text() for name in _SQL_FILES)
    argv = _mariadbd(layout, f"--datadir={draft}", "--bootstrap", "--skip-grant-tables")
    run([*enter_host(host), *argv], stdin=sql, env={"PATH": TOOL_PATH})
    draft.rename(data)


def _mariadbd(layout: Layout, *options: str) -> Sequence[str]:
    identity = [f"--reuid={DATABASE_UID}", f"--regid={DATABASE_UID}", "--clear-groups"]
    defaults = f"--defaults-file={layout.database_conf}"
    return ["setpriv", *identity, "mariadbd", defaults, *options]


def _sql_file(name: str) -> Path:
    """A file of the server's package; its prefix is mysql_ or mariadb_."""
    for directory in _SHARE:
        for prefix in ("mariadb_", "mysql_"):
            path = directory / (prefix + name)
            if path.exists():
                return path
    places = ", ".join(map(str, _SHARE))
    raise DevClusterError(f"no mariadb_{name} in {places}: is mariadbd installed completely?")


def _answers(path: Path) -> bool:
    """Whether a server greets at the socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5.0)
        try:
            client.connect(str(path))
            return bool(client.recv(1))
        except OSError:
            return False
