"""Provisioning on a development cluster: its Slurm, and programs on its hosts.

The cluster is up before, with slurmctld on its own controller host; the nodes of instance groups
are hosts that are added to it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from hpresume.devcluster.cluster import DevCluster
from hpresume.errors import (
    DevClusterError,
    ProviderTransientError,
    SlurmTimeoutError,
    SlurmTransientError,
    UsageError,
)
from hpresume.providers.programs import Ran
from hpresume.provision.lifecycle import Where
from hpresume.provision.model import Node, NodeType, State
from hpresume.provision.slurm_side import LocalSlurm
from hpresume.slurm.runner import Answer, Runner

_RESTART_S = 120.0


class ControllerRunner(Runner):
    """Slurm's tools on the controller host of a development cluster."""

    def __init__(self, cluster: DevCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
        """Run ``argv`` there as root and return its answer, whatever its exit code."""
        try:
            done = self._cluster.exec(list(argv), timeout=max(timeout_s, 0.001), cwd=cwd)
        except subprocess.TimeoutExpired as error:
            raise SlurmTimeoutError(f"{argv[0]}: no answer within {timeout_s:.1f} s") from error
        except (DevClusterError, UsageError) as error:
            raise SlurmTransientError(str(error)) from error
        return Answer(done.stdout, done.stderr, done.returncode)


class HostPrograms:
    """``Programs`` on the hosts of a development cluster."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster

    def run(self, machine_id: str, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Ran:
        """Run a program as root on the host that the machine stands behind."""
        try:
            process = self._cluster.popen(
                list(argv),
                self._host(machine_id),
                on_exit="KILL",
                stdin=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=False,
            )
            with process:
                try:
                    output, _ = process.communicate(stdin, timeout=timeout_s)  # type: ignore[arg-type]
                except subprocess.TimeoutExpired as error:
                    process.kill()
                    raise ProviderTransientError(
                        f"{machine_id}: {argv[0]}: no end within {timeout_s:.0f} s"
                    ) from error
        except (DevClusterError, UsageError) as error:
            raise ProviderTransientError(f"{machine_id}: {error}") from error
        if process.returncode < 0:
            raise ProviderTransientError(f"{machine_id}: {argv[0]} was killed")
        return Ran(process.returncode, bytes(output))  # type: ignore[arg-type]

    def _host(self, machine_id: str) -> str:
        for machine in self._cluster.machines():
            if machine.record.machine_id == machine_id and machine.condition != "gone":
                return machine.record.node
        raise ProviderTransientError(f"{machine_id}: there is no such machine now")


def slurm_of(cluster: DevCluster) -> LocalSlurm:
    """The Slurm of a development cluster."""
    # A process of its own, as systemd's is: killed half-way, this one would leave no slurmctld.
    program = (sys.executable, "-m", "hpresume", "devcluster", "restart", "slurmctld")
    return LocalSlurm(
        cluster.layout.slurm_conf,
        ControllerRunner(cluster),
        restart=lambda: _run((*program, "--name", cluster.name)),
    )


def _run(program: Sequence[str]) -> None:
    Runner().check(program, _RESTART_S)


def where_of(cluster: DevCluster) -> Where:
    """Places of lifecycle scripts: a host has only its /tmp for itself."""
    return Where(
        logs=cluster.layout.logs / "lifecycle",
        folder="/tmp/hpresume-lifecycle",  # noqa: S108 (the host's own)
        resource_config="/tmp/ml/config/resource_config.json",  # noqa: S108
    )


def attributes_of(state: State, node: Node) -> Mapping[str, str]:
    """What the provider is told about a node: only compute nodes run slurmd."""
    is_compute = state.groups[node.group].node_type is NodeType.COMPUTE
    return {"slurmd": "yes" if is_compute else "no"}
