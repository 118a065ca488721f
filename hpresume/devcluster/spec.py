"""What a user can ask of a development cluster, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hpresume.errors import UsageError

CONTROLLER = "ctl"
"""Host name of the machine that slurmctld runs on."""

MIN_NODES, MAX_NODES = 2, 64
MAX_GPUS_PER_NODE = 8
MAX_CPUS_PER_NODE = 256
DEFAULT_NAME = "dev"

_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster to be made.

    ``memory_mb`` is what each node reports as RealMemory; ``slurmd_timeout`` is
    in seconds. ``overrides`` are lines for slurm.conf, as (key, value), that
    replace the generated ones of the same key or are added. ``accounting`` gives
    the cluster a slurmdbd with a MariaDB of its own. With ``configless``, nodes have no
    slurm.conf: their slurmd fetches it from slurmctld.
    Creating one raises UsageError where a value is out of range.
    """

    name: str = DEFAULT_NAME
    nodes: int = 4
    gpus_per_node: int = 4
    cpus_per_node: int = 2
    memory_mb: int = 2000
    slurmd_timeout: int = 300
    overrides: tuple[tuple[str, str], ...] = ()
    cgroup: bool = False
    accounting: bool = False
    configless: bool = False
    plugin: Path | None = None
    supervisor: Path | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        _check_range("--nodes", self.nodes, MIN_NODES, MAX_NODES)
        _check_range("--gpus-per-node", self.gpus_per_node, 0, MAX_GPUS_PER_NODE)
        _check_range("--cpus-per-node", self.cpus_per_node, 1, MAX_CPUS_PER_NODE)
        _check_range("--memory", self.memory_mb, 1, 1 << 24)
        _check_range("--slurmd-timeout", self.slurmd_timeout, 5, 65533)
        for option, path in (("--plugin", self.plugin), ("--supervisor", self.supervisor)):
            if path is not None and not path.is_file():
                raise UsageError(f"{option} {path}: no such file")
        if self.supervisor is not None and self.plugin is None:
            raise UsageError("--supervisor goes with --plugin: name the plugin too")

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the compute nodes, in order: n1, n2, ..."""
        return tuple(f"n{index}" for index in range(1, self.nodes + 1))

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names of all hosts: the controller's, then the nodes'."""
        return (CONTROLLER, *self.node_names)


def check_name(name: str) -> str:
    """Return ``name`` if a cluster may be called that; raise UsageError otherwise."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"cluster name {name!r}: use at most 24 lower-case letters, digits and '-', "
            "beginning with a letter"
        )
    return name


def parse_override(text: str) -> tuple[str, str]:
    """Split ``KEY=VALUE`` for slurm.conf; raise UsageError where it is not of that form."""
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator or not re.fullmatch(r"[A-Za-z]\w*", key) or "\n" in value:
        raise UsageError(f"--set {text!r}: write it as KEY=VALUE, a line of slurm.conf")
    return key, value.strip()


def _check_range(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{option} {value}: must be from {low} to {high}")
