"""A PostgreSQL server of the tests' own, from Debian's packages, as an ordinary account."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: Debian keeps the server's programs here, one folder a release.
_PROGRAMS = Path("/usr/lib/postgresql")


def programs() -> Path | None:
    """Where initdb and pg_ctl of the newest release are."""
    found = [path.parent for path in _PROGRAMS.glob("*/bin/initdb")]
    return max(found, key=lambda path: float(path.parent.name), default=None)


@contextmanager
def server() -> Iterator[str]:
    """The URL of a database on a new server, which only a socket in a scratch folder reaches.

    The server refuses to run as root, so it runs as ``nobody`` then. Skips the test where
    Debian's package postgresql is not installed.
    """
    folder = programs()
    if folder is None:
        pytest.skip("the package postgresql is not installed")
    account = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    # not pytest's folder: only its owner enters that
    home = Path(tempfile.mkdtemp(prefix="hpresume-pg-"))
    os.chown(home, account.pw_uid, account.pw_gid)
    options: dict[str, object] = {"cwd": home, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}}
    if os.geteuid() == 0:
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def run(*argv: str) -> None:
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
            **options,  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stdout

    data, log = str(home / "data"), str(home / "log")
    run(
        str(folder / "initdb"),
        "-D",
        data,
        "-U",
        "hpresume",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
    )
    settings = f"-c listen_addresses= -c unix_socket_directories={home} -c fsync=off"
    run(str(folder / "pg_ctl"), "-D", data, "-l", log, "-o", settings, "-w", "start")
    try:
        yield f"postgresql+psycopg://hpresume@/postgres?host={home}"
    finally:
        run(str(folder / "pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(home, ignore_errors=True)
