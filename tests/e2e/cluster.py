"""A development cluster for tests: named after the test process, reset between tests."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from hpresume.devcluster import daemons
from hpresume.devcluster.accounts import ORDINARY_UIDS
from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.lifecycle import slurm_version
from hpresume.devcluster.plugin import default_plugin, default_supervisor
from hpresume.devcluster.processes import ProcessId, members, namespace_of
from hpresume.devcluster.spec import CONTROLLER, ClusterSpec
from hpresume.devcluster.store import cluster_names
from hpresume.errors import DevClusterError

#: Reason to set a crashed node DOWN with before Slurm does. Slurm's own words alone would let it
#: take the node back, once it counts an answer to its ping from before the crash.
CRASHED = "Not responding: no power"

_COMPLETING_PATIENCE = 2.0
_numbers = itertools.count(1)
_TEST_NAME = re.compile(r"t(\d+)-\d+")


class E2eCluster(DevCluster):
    """A cluster that can be brought back to its first state in a moment."""

    @classmethod
    def start(cls, **fields: Any) -> Self:
        """Bring up a cluster of a new name; ``fields`` are those of ClusterSpec.

        ``plugin=True`` takes the checkout's plugin and supervisor.
        """
        name = f"t{os.getpid()}-{next(_numbers)}"
        if fields.get("plugin") is True:
            plugin = default_plugin(slurm_version())
            assert plugin is not None, "spank/hpresume.so is not built for this Slurm"
            fields |= {"plugin": plugin, "supervisor": default_supervisor()}
        spec = ClusterSpec(**{"name": name, **fields})
        try:
            cls.up(spec)
        except BaseException:
            cls(name).down()
            raise
        return cls(name)

    def reset(self, timeout: float = 60.0) -> None:
        """End all jobs and undo all faults; raises DevClusterError where nodes stay unfit."""
        deadline = time.monotonic() + timeout
        self._undo_faults()
        self._kill_user_processes()
        self._restart_lost_daemons()
        wait_for(self._answers, deadline, "slurmctld does not answer")
        self._scontrol_each("reservation", "delete", "reservationname={}")
        self._end_jobs(deadline)
        wait_for(self._resume_nodes, deadline, "not all nodes become idle")

    def jobs(self) -> list[str]:
        """Ids of all jobs that have not ended."""
        return self.exec(["squeue", "--noheader", "--format=%A"], check=True).stdout.split()

    def logs(self, lines: int = 40) -> str:
        """The ends of the logs of slurmctld and of every slurmd."""
        parts = []
        for path in sorted(self.layout.logs.glob("slurm*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"== {path.name}\n" + "\n".join(tail))
        return "\n".join(parts)

    def home(self, user: str = "trainer") -> Path:
        """Home directory of an ordinary user, the same path inside and outside."""
        return self.layout.homes / user

    def pids_on(self, host: str) -> list[int]:
        """Processes of a host, as this machine counts them."""
        return members(namespace_of(self._store.running_init(host).pid, "pid"))

    def _undo_faults(self) -> None:
        for host in self._store.running_state().hosts.values():
            if host.running and host.frozen:
                self.thaw(host.name)
            if host.running and not host.connected:
                self.reconnect(host.name)
            if not host.running:
                self.boot(host.name)

    def _kill_user_processes(self) -> None:
        for host in self._store.state().hosts:
            for pid in self.pids_on(host):
                with suppress(OSError):
                    if Path(f"/proc/{pid}").stat().st_uid in ORDINARY_UIDS.values():
                        ProcessId.of(pid).kill()

    def _restart_lost_daemons(self) -> None:
        if self.spec.accounting:
            init = self._store.running_init(CONTROLLER)
            if daemons.find_daemon("slurmdbd", CONTROLLER, init, self.layout) is None:
                self.restart_daemon("slurmdbd")
        for host in self._store.state().hosts:
            daemon = "slurmctld" if host == CONTROLLER else "slurmd"
            init = self._store.running_init(host)
            if daemons.find_daemon(daemon, host, init, self.layout) is None:
                self.restart_daemon(daemon, host)

    def _answers(self) -> bool:
        return self.exec(["scontrol", "ping"]).returncode == 0

    def _scontrol_each(self, kind: str, verb: str, argument: str) -> None:
        shown = self.exec(["scontrol", "--oneliner", "show", kind]).stdout
        for name in re.findall(r"^ReservationName=(\S+)", shown, re.MULTILINE):
            self.exec(["scontrol", verb, argument.format(name)])

    def _end_jobs(self, deadline: float) -> None:
        patience = time.monotonic() + _COMPLETING_PATIENCE

        def none_left() -> bool:
            # As ARRAY_TASK: scancel of 22.05 ignores the bare id of a task.
            listed = self.exec(["squeue", "--array", "--noheader", "--format=%i"], check=True)
            jobs = listed.stdout.split()
            if jobs:
                self.exec(["scancel", "--full", *jobs])
                self.exec(["scancel", *jobs])
            if jobs and time.monotonic() > patience:
                self._give_up_completing_nodes()
            return not jobs

        wait_for(none_left, deadline, "jobs do not end")

    def _give_up_completing_nodes(self) -> None:
        """A node that died while a job ended there never says that it has ended."""
        for node, state in self.node_states().items():
            if state.startswith("completing"):
                update = ["scontrol", "update", f"nodename={node}", "state=down", "reason=reset"]
                self.exec(update)

    def _resume_nodes(self) -> bool:
        states = self.node_states()
        if all(state == "idle" for state in states.values()):
            return True
        for node, state in states.items():
            if state.rstrip("*$~#!%@^-") not in ("idle", "unknown", "completing", "allocated"):
                self.exec(["scontrol", "update", f"nodename={node}", "state=resume"])
        return False


def needs_overlap_of_everything() -> None:
    """Skip a test of what can only be done where ``--overlap`` shares all that steps hold."""
    if slurm_version() < (22, 5):
        pytest.skip("before Slurm 22.05 --overlap shares no GPUs, nor cores of -c")


def wait_for(
    condition: Callable[[], bool], deadline: float, otherwise: str, poll: float = 0.1
) -> None:
    """Wait until ``condition`` holds; DevClusterError ``otherwise`` at ``deadline`` (monotonic)."""
    while not condition():
        if time.monotonic() > deadline:
            raise DevClusterError(otherwise)
        time.sleep(poll)


def remove_abandoned_clusters() -> None:
    """Take down test clusters whose test process is gone (killed before it could)."""
    for name in cluster_names():
        match = _TEST_NAME.fullmatch(name)
        if match and not Path(f"/proc/{match[1]}").exists():
            DevCluster(name).down()
