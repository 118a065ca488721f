"""A provider that outlives its callers, for tests in which they are killed.

Its machines are rows of an SQLite file of its own. A launch waits a moment before and after
it makes the machine, so that a kill hits every place. Every call is written down.
"""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from hpresume.providers.model import LaunchRequest, Machine, MachineState


class DurableProvider:
    """``moment_s`` is the longest wait before and after a machine is made."""

    name = "durable"

    def __init__(self, path: Path, moment_s: float = 0.02) -> None:
        self._path = path
        self._moment_s = moment_s
        self._random = random.Random()
        with closing(self._open()) as db:
            db.executescript(
                """
                CREATE TABLE IF NOT EXISTS machines (
                    number INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT UNIQUE, node TEXT,
                    launched_at REAL, is_gone INTEGER DEFAULT 0, most INTEGER);
                CREATE TABLE IF NOT EXISTS calls (what TEXT, subject TEXT, at REAL);
                """
            )

    def launch(self, request: LaunchRequest) -> Machine:
        self._call("launch", request.token)
        self._wait()
        with closing(self._open()) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(
                "INSERT OR IGNORE INTO machines (token, node, launched_at, most) VALUES "
                "(?, ?, ?, 1 + (SELECT count(*) FROM machines WHERE node = ? AND NOT is_gone))",
                (request.token, request.node, time.time(), request.node),
            )
            db.execute("COMMIT")
            row = db.execute(_SELECT + "WHERE token = ?", (request.token,)).fetchone()
        self._wait()
        return _machine(row)

    def terminate(self, machine_id: str) -> None:
        self._call("terminate", machine_id)
        self._wait()
        with closing(self._open()) as db:
            db.execute("UPDATE machines SET is_gone = 1 WHERE number = ?", (_number(machine_id),))
        self._wait()

    def reboot(self, machine_id: str) -> None:
        self._call("reboot", machine_id)

    def describe(self, machine_id: str) -> Machine | None:
        with closing(self._open()) as db:
            row = db.execute(_SELECT + "WHERE number = ?", (_number(machine_id),)).fetchone()
        return _machine(row) if row else None

    def list(self) -> tuple[Machine, ...]:
        with closing(self._open()) as db:
            return tuple(map(_machine, db.execute(_SELECT + "WHERE NOT is_gone").fetchall()))

    def calls(self, what: str = "%") -> int:
        """How many calls there were."""
        with closing(self._open()) as db:
            found = db.execute("SELECT count(*) FROM calls WHERE what LIKE ?", (what,))
            return int(found.fetchone()[0])

    def made(self) -> int:
        """How many machines there ever were."""
        with closing(self._open()) as db:
            return int(db.execute("SELECT count(*) FROM machines").fetchone()[0])

    def most_behind_one_name(self) -> int:
        """The largest number of machines that were behind one name at the same time."""
        with closing(self._open()) as db:
            return int(db.execute("SELECT max(most) FROM machines").fetchone()[0])

    def _call(self, what: str, subject: str) -> None:
        with closing(self._open()) as db:
            db.execute("INSERT INTO calls VALUES (?, ?, ?)", (what, subject, time.time()))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)

    def _wait(self) -> None:
        time.sleep(self._random.uniform(0.0, self._moment_s))


_SELECT = "SELECT number, node, token, is_gone, launched_at FROM machines "


def _machine(row: tuple[int, str, str, int, float]) -> Machine:
    state = MachineState.TERMINATED if row[3] else MachineState.RUNNING
    return Machine(f"i-{row[0]:017x}", row[1], row[2], state, f"10.0.0.{row[0] % 256}", row[4])


def _number(machine_id: str) -> int:
    return int(machine_id.removeprefix("i-"), 16)
