"""A controller that looks after auto-resume jobs on a dev cluster, and what it says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import E2eCluster, wait_for

from hpresume.devcluster.layout import base_directory
from hpresume.jobs import table  # its tables, before a store is opened
from hpresume.store import Event, Store, events, open_store

#: Where supervisors on the cluster find it.
URL = "http://ctl:6830"

_CHECK = """#!/bin/bash
# A FAKE of a health check: finds a fault where a test has put one.
if [ -e "{folder}/sick-$(hostname)" ]; then echo "FAIL gpu-count: 3 of 4 GPUs"; exit 1; fi
echo good
"""


class Guardian:
    """``hpresume controller`` with its database; node recovery itself is off."""

    def __init__(self, cluster: E2eCluster, folder: Path, **jobs: Any) -> None:
        self.cluster = cluster
        self.folder = folder
        self.database = f"sqlite:///{folder}/controller.db"
        self.sick = cluster.home() / f"sick{time.monotonic_ns()}"
        self.sick.mkdir()
        check = self.sick / "check.sh"
        check.write_text(_CHECK.format(folder=self.sick))
        check.chmod(0o755)
        tables: dict[str, dict[str, Any]] = {
            "controller": {
                "database": self.database, "devcluster": cluster.name, "interval": 0.5,
                "lease": 3.0, "reports": "0.0.0.0:6830",
            },
            "recovery": {"node_recovery": "None", "check_command": [str(check)]},
            "jobs": jobs,
            "provider": {"type": "devcluster", "cluster": cluster.name},
        }  # fmt: skip
        lines = []
        for name, values in tables.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.config = folder / "controller.toml"
        self.config.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None
        self._store: Store | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with open(self.folder / "controller.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hpresume", "controller", "--config", str(self.config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "HPRESUME_DEVCLUSTER_DIR": str(base_directory())},
            )  # fmt: skip
        self.wait(lambda: self.post(b"{}", "MUNGE:no:")[0] == 401, "it does not answer")
        self.wait(lambda: "this instance leads" in self.log(), "it does not lead")

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """End it in good order."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=20)

    def log(self) -> str:
        """What it has said."""
        return (self.folder / "controller.log").read_text()

    # -- speaking to it --------------------------------------------------------------

    def credential(
        self, body: bytes, user: str = "trainer", *, payload: str = "", ttl: int = 60
    ) -> str:
        """A credential of a user for a message, made as the supervisor makes it.

        With ``payload``, one of MUNGE for that instead.
        """
        if payload:
            argv = ["munge", "--restrict-uid=0", f"--ttl={ttl}", f"--string={payload}"]
        else:
            code = "import sys; from hpresume.slurm.credential import sign; "
            code += "print(sign(bytes.fromhex(sys.argv[1])))"
            argv = [sys.executable, "-c", code, body.hex()]
        done = self.cluster.exec(argv, "n1", user=user, check=True)
        return str(done.stdout.strip())

    def post(self, body: bytes, credential: str, path: str = "/v1/reports") -> tuple[int, str]:
        """Send a message from a node; status and words (0 where nobody answers)."""
        code = (
            "import sys, http.client as h\n"
            "c = h.HTTPConnection('ctl', 6830, timeout=10)\n"
            "c.request('POST', sys.argv[1], bytes.fromhex(sys.argv[2]),"
            " {'Authorization': 'MUNGE ' + sys.argv[3]})\n"
            "a = c.getresponse(); print(a.status, a.read().decode())"
        )
        argv = [sys.executable, "-I", "-c", code, path, body.hex(), credential]
        done = self.cluster.exec(argv, "ctl", user="other")
        match = re.match(r"(\d+) (.*)", done.stdout, re.DOTALL)
        return (int(match[1]), match[2]) if match else (0, done.stderr)

    def say(self, message: dict[str, Any], user: str = "trainer") -> tuple[int, str]:
        """Send a message as a user would."""
        body = json.dumps({"version": 1, **message}).encode()
        return self.post(body, self.credential(body, user))

    # -- seeing what it does -----------------------------------------------------------

    def store(self) -> Store:
        """Its database."""
        if self._store is None:
            self._store = open_store(self.database)
        return self._store

    def events(self, kind: str) -> tuple[Event, ...]:
        """Its events of one kind."""
        with self.store().read() as session:
            return events.since(session, kind=kind)

    def wait_event(self, kind: str, text: str = "", timeout: float = 30.0) -> Event:
        """The first event of a kind with ``text`` in it, once it is there."""

        def found() -> list[Event]:
            return [e for e in self.events(kind) if text in e.message]

        self.wait(lambda: bool(found()), f"no {kind} {text!r}", timeout)
        return found()[0]

    def wait_guarded(self, job_id: int, run: int = 0) -> None:
        """Wait until a run of a job is registered."""

        def known() -> bool:
            with self.store().read() as session:
                return any(g.run == run for g in table.guarded(session, job_id))

        self.wait(known, f"job {job_id} is not registered")

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
        """Wait for a condition; what the controller said is in the error."""
        try:
            wait_for(condition, time.monotonic() + timeout, what)
        except Exception as error:
            raise AssertionError(f"{error}\n-- controller --\n{self.log()[-6000:]}") from error

    def reservations(self) -> list[str]:
        """Names of all reservations."""
        shown = self.cluster.exec(["scontrol", "-o", "show", "reservation"]).stdout
        return re.findall(r"^ReservationName=(\S+)", shown, re.MULTILINE)

    def node(self, name: str) -> str:
        """What Slurm shows of a node."""
        argv = ["scontrol", "--oneliner", "show", "node", name]
        return self.cluster.exec(argv, check=True).stdout
