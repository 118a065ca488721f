"""What the engine needs of the world besides machines: Slurm, and scripts on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hpresume.provision.checking import Finding, Run
from hpresume.provision.model import NO_SHAPE, Node, NodeType, State
from hpresume.provision.observed import SlurmNode


@dataclass(frozen=True)
class NodeEntry:
    """One node for slurm.conf; ``shape`` are its parameters (``CPUs=4 RealMemory=7000``).

    ``gres`` are its lines for gres.conf, without the node (``Name=gpu File=/dev/nvidia[0-7]``).
    """

    name: str
    address: str = ""
    shape: str = ""
    gres: tuple[str, ...] = ()


@dataclass(frozen=True)
class SlurmEntries:
    """What slurm.conf is to have of a cluster's groups: nodes, and partitions by name.

    ``gone`` are nodes that were ours and are not to be named any more, ``coming`` those that are
    not to be named yet. No other name is ours, whatever it looks like. ``before`` are the
    partitions as they were last put in.
    """

    nodes: tuple[NodeEntry, ...] = ()
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gone: frozenset[str] = field(default=frozenset(), compare=False)
    coming: frozenset[str] = field(default=frozenset(), compare=False)
    before: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    @property
    def names(self) -> frozenset[str]:
        """The host names of the nodes."""
        return frozenset(entry.name for entry in self.nodes)


@dataclass(frozen=True)
class Hardware:
    """What is set for an instance type: parameters of NodeName and lines of gres.conf.

    ``parameters`` (``Gres=gpu:8 Weight=10``) come before what the machine says of itself.
    """

    parameters: str = ""
    gres: tuple[str, ...] = ()


class SlurmSide(Protocol):
    """The Slurm of one cluster. Calls are bounded in time and raise SlurmError."""

    def configure(self, entries: SlurmEntries) -> None:
        """Make slurm.conf have these entries of ours, and Slurm use it."""
        ...

    def look(self) -> Mapping[str, SlurmNode]:
        """Every node as Slurm has it."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """No new jobs on a node."""
        ...

    def down(self, node: str, reason: str) -> None:
        """End a node's jobs now: its machine goes."""
        ...

    def resume(self, node: str) -> None:
        """A node takes jobs again."""
        ...


class Scripts(Protocol):
    """Runs lifecycle scripts on machines."""

    def inspect(self, state: State, node: Node) -> str:
        """The node's parameters for slurm.conf as its machine says them; empty where it does not.

        Raises ProviderTransientError where the machine does not answer.
        """
        ...

    def run(self, state: State, node: Node) -> str:
        """Run them to their end, or wait for a run of the same machine that is under way.

        What went wrong; empty where all succeeded. Raises ProviderTransientError where it
        cannot be told how they stand.
        """
        ...


class DeepChecks(Protocol):
    """Runs deep health checks."""

    def run(self, asked: Run) -> Mapping[str, Finding]:
        """Check nodes, and mark bad ones in Slurm; what was found, by name.

        Raises HpresumeError where it has to be tried again.
        """
        ...


def slurm_entries(
    state: State, default_partition: str = "", hardware: Mapping[str, Hardware] | None = None
) -> SlurmEntries:
    """The entries that a state calls for.

    Compute nodes only: a login node needs no slurmd. ``default_partition`` has all nodes
    (HyperPod's ``dev``); empty for none. ``hardware`` is by instance type.
    """
    known = hardware or {}

    def entry(node: Node) -> NodeEntry:
        own = known.get(state.groups[node.group].instance_type, Hardware())
        shape = _merged(own.parameters, node.shape.strip(NO_SHAPE))
        return NodeEntry(node.name, node.address, shape, own.gres)

    nodes = sorted(
        (node for node in state.nodes.values() if node.in_slurm and node.shape),
        key=lambda node: (node.group, node.index),
    )
    partitions: dict[str, tuple[str, ...]] = {}
    for group in state.groups.values():
        if group.node_type is not NodeType.COMPUTE or not group.partition:
            continue
        names = tuple(node.name for node in nodes if node.group == group.name)
        partitions[group.partition] = partitions.get(group.partition, ()) + names
    if default_partition and nodes:
        partitions[default_partition] = tuple(node.name for node in nodes)
    named = {node.name for node in nodes}
    others = [node for node in state.nodes.values() if node.name not in named]
    return SlurmEntries(
        tuple(entry(node) for node in nodes),
        partitions,
        gone=frozenset(node.name for node in others if node.is_removed),
        coming=frozenset(node.name for node in others if not node.is_removed),
    )


def _merged(first: str, second: str) -> str:
    """Two texts of parameters; a key of the first counts."""
    keys = {word.partition("=")[0].lower() for word in first.split()}
    rest = [word for word in second.split() if word.partition("=")[0].lower() not in keys]
    return " ".join([*first.split(), *rest])
