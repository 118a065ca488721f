"""Which nodes can be taken for a deep check, and their features while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hpresume.errors import UsageError
from hpresume.health.model import one_line
from hpresume.slurm.models import Node
from hpresume.slurm.reservations import Reservation

#: The feature that a node has while it is checked.
FEATURE = "hpresume_deep"


@dataclass(frozen=True)
class Choice:
    """Nodes that are free, nodes that may become free, and why the others are left alone."""

    free: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def reserved(reservations: Iterable[Reservation], until: float) -> dict[str, str]:
    """Nodes of reservations that begin before ``until`` (Unix seconds), with their names."""
    return {
        node: found.name
        for found in reservations
        if found.active or found.start < until
        for node in found.nodes
    }


def choose(nodes: Iterable[Node], taken: Mapping[str, str] = MappingProxyType({})) -> Choice:
    """Running jobs, reservations and nodes out of service are left alone.

    ``taken``: reservations by node that the states do not show, or not yet.
    """
    free, busy, left_out = [], [], []
    for node in nodes:
        if not node.is_usable:
            why = f"it is {shown(node)}" + (f": {one_line(node.reason, 80)}" if node.reason else "")
            left_out.append((node.name, why))
        elif node.has("RESERVED", "MAINT", "MAINTENANCE"):
            left_out.append((node.name, "it is in a reservation"))
        elif node.name in taken:
            why = f"reservation {taken[node.name]} has it before the check would end"
            left_out.append((node.name, why))
        elif node.is_free:
            free.append(node.name)
        else:
            busy.append(node.name)
    return Choice(tuple(free), tuple(busy), tuple(left_out))


def is_idle(node: Node) -> bool:
    """Whether no job is on a node, which may be in a reservation of ours."""
    return node.is_usable and node.has("IDLE") and not node.has("COMPLETING")


def shown(node: Node) -> str:
    """Its state in words."""
    return "+".join(sorted(node.states)).lower()


def common_partition(nodes: Iterable[Node]) -> str:
    """A partition that has all the nodes; a job cannot span several.

    Raises UsageError where there is none.
    """
    chosen = tuple(nodes)
    for name in chosen[0].partitions:
        if all(name in node.partitions for node in chosen):
            return name
    names = ", ".join(node.name for node in chosen)
    raise UsageError(f"no partition has all of {names}: check those of one partition at a time")


def with_feature(node: Node) -> dict[str, str]:
    """The fields that show a deep check, all other features kept."""
    return _fields((*_others(node.available_features), FEATURE), (*_others(node.features), FEATURE))


def without_feature(node: Node) -> dict[str, str] | None:
    """The fields that take it back; None where it is not there."""
    if FEATURE not in (*node.available_features, *node.features):
        return None
    return _fields(_others(node.available_features), _others(node.features))


def stale(nodes: Mapping[str, Node], in_deep_check: Iterable[str]) -> tuple[str, ...]:
    """Nodes that still have the feature though no reservation of a deep check has them."""
    held = set(in_deep_check)
    return tuple(
        name
        for name, node in nodes.items()
        if name not in held and without_feature(node) is not None
    )


def _others(features: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in features if name != FEATURE)


def _fields(available: tuple[str, ...], active: tuple[str, ...]) -> dict[str, str]:
    # Both in one call: with the available ones alone, Slurm makes all of them active.
    return {"AvailableFeatures": ",".join(available), "ActiveFeatures": ",".join(active)}
