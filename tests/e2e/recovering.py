"""The controller on a dev cluster: start it, kill it, hear what it says."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import E2eCluster, wait_for

from hpresume.devcluster.layout import base_directory
from hpresume.providers.config import open_provider
from hpresume.recovery import table  # the recoveries' table, before a store is opened
from hpresume.store import Event, Store, events, open_store

_numbers = itertools.count(1)
_SITE = Path(__file__).with_name("site_machines.py")

_CHECK = """#!/bin/bash
# A health check that finds what a test has put there: one line a machine that is bad.
sick="{folder}/sick-$(hostname)"
if [ -s "$sick" ]; then sed -i 1d "$sick"; echo "FAIL gpu-count: 3 of 4 GPUs"; exit 1; fi
if [ -e "{folder}/no-verdict" ]; then exit 3; fi
echo good
"""


class Controller:
    """One site: a configuration, a database, and processes of ``hpresume controller``."""

    def __init__(self, cluster: E2eCluster, folder: Path, **recovery: Any) -> None:
        self.cluster = cluster
        self.folder = folder
        self.node_folder = cluster.home() / f"site{next(_numbers)}"
        self.node_folder.mkdir()
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.check = self.node_folder / "check.sh"
        self.check.write_text(_CHECK.format(folder=self.node_folder))
        self.check.chmod(0o755)
        self.environ = {**os.environ, "HPRESUME_DEVCLUSTER_DIR": str(base_directory())}
        settings = {
            "down_grace": 1.0, "check_command": [str(self.check)], "retry": 0.2, "max_retry": 1.0,
            "describe_every": 1.0, "sweep_every": 2.0, "silent_for": 1.0, "max_concurrent": 4,
            "max_per_hour": 1000, "on_down": "replace", "halt_share": 0.5, **recovery,
        }  # fmt: skip
        self.config = folder / "controller.toml"
        self._write(settings)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._store: Store | None = None

    def _write(self, settings: dict[str, Any]) -> None:
        site = [sys.executable, str(_SITE), str(base_directory()), self.cluster.name]
        programs = {
            action: [*site, str(self.faults), action]
            for action in ("launch", "terminate", "reboot", "describe", "list")
        }
        tables: dict[str, dict[str, Any]] = {
            "controller": {
                "database": f"sqlite:///{self.folder}/controller.db",
                "devcluster": self.cluster.name, "interval": 0.5, "lease": 3.0,
            },
            "recovery": settings,
            "provider": {"type": "command", "timeout": 8.0, "launch_timeout": 8.0, **programs},
        }  # fmt: skip
        lines = []
        for name, values in tables.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.config.write_text("\n".join(lines) + "\n")

    # -- processes -----------------------------------------------------------------

    def start(self, **environ: str) -> subprocess.Popen[bytes]:
        """Start an instance."""
        log = open(self.folder / "controller.log", "ab")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-m", "hpresume", "controller", "--config", str(self.config)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**self.environ, **environ},
        )  # fmt: skip
        log.close()
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9; its programs under way go on, as the provider's side of a call would."""
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        """End all instances in good order."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(timeout=20)

    def log(self) -> str:
        """What all instances have said."""
        return (self.folder / "controller.log").read_text()

    def cli(self, *argv: str) -> str:
        """Output of an ``hpresume`` command with this site's configuration."""
        line = [sys.executable, "-m", "hpresume", *argv, "--config", str(self.config)]
        done = subprocess.run(line, env=self.environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # -- what is told --------------------------------------------------------------

    def store(self) -> Store:
        if self._store is None:
            self._store = open_store(f"sqlite:///{self.folder}/controller.db")
        return self._store

    def events(self, kind: str | None = None, node: str | None = None) -> tuple[Event, ...]:
        with self.store().read() as session:
            return events.since(session, kind=kind, node=node)

    def wait_event(self, kind: str, node: str, count: int = 1, timeout: float = 40.0) -> Event:
        """The event, once there are ``count`` of them."""
        self.wait(lambda: len(self.events(kind, node)) >= count, f"no {kind} of {node}", timeout)
        return self.events(kind, node)[count - 1]

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = 40.0) -> None:
        def told() -> bool:
            return condition()

        try:
            wait_for(told, time.monotonic() + timeout, what)
        except Exception as error:
            raise AssertionError(f"{what}\n{self.log()[-4000:]}") from error

    # -- the world -----------------------------------------------------------------

    def fault(self, action: str, *words: str) -> None:
        """Let the next calls of an action go wrong."""
        (self.faults / action).write_text("\n".join(words))

    def calls(self, action: str) -> list[str]:
        path = self.faults / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split()[0] == action]

    def sicken(self, node: str, machines: int = 1) -> None:
        """The next so many machines of a node are bad."""
        (self.node_folder / f"sick-{node}").write_text("x\n" * machines)

    def mark(self, node: str, state: str, reason: str) -> None:
        argv = ["scontrol", "update", f"nodename={node}", f"state={state}", f"reason={reason}"]
        self.cluster.exec(argv, check=True)

    def shown(self, node: str) -> str:
        argv = ["scontrol", "--oneliner", "show", "node", node]
        return self.cluster.exec(argv, check=True).stdout

    def machines(self, node: str) -> list[str]:
        provider = open_provider("dev", {"type": "devcluster", "cluster": self.cluster.name})
        return [m.machine_id for m in provider.list() if m.node == node]

    def active(self) -> int:
        with self.store().read() as session:
            return len(table.active(session))
