"""Nodes as recovery and provisioning see them, in one table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hpresume.provision.model import State
from hpresume.provision.show import NodeLine, node_lines
from hpresume.recovery.model import Recovery
from hpresume.recovery.show import Line, lines
from hpresume.slurm.models import Node


def all_lines(
    nodes: Mapping[str, Node], active: Iterable[Recovery], states: Iterable[State], now: float
) -> tuple[Line, ...]:
    """A line for every node: those that Slurm knows in its order, then others of groups.

    What recovery does with a node goes before what provisioning says of it.
    """
    members = node_lines(states)
    found = [_with_group(line, members.get(line.node)) for line in lines(nodes, active, now)]
    found += [
        _with_group(Line(name, "not in Slurm", "", "", 0.0, ""), members[name])
        for name in sorted(members.keys() - nodes.keys())
    ]
    return tuple(found)


def _with_group(line: Line, member: NodeLine | None) -> Line:
    if member is None:
        return line
    line = replace(line, group=f"{member.cluster}/{member.group}")
    if line.phase or not member.phase:
        return line
    return replace(line, phase=member.phase, since=member.since, next_step=member.next_step)
