"""Merge mode: our nodes and partitions in slurm.conf and gres.conf, everything else as it was.

A NodeName line is ours where it names a node of ours, or carries our mark; of
a PartitionName line only ``Nodes`` is ours, and in it only our nodes. An administrator's
keys on our lines, other lines, comments, order and blanks stay byte for byte. Pure text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hpresume.errors import SlurmError
from hpresume.provision.conf_lines import Line, goes_on, lines
from hpresume.provision.ports import NodeEntry, SlurmEntries
from hpresume.slurm.nodeset import expand, fold

#: The comment on lines that were made here: it tells them when their group is gone.
MARK = "hpresume"

_COMMA = re.compile(r",(?![^\[\]]*\])")

#: Keys of NodeName with as many values as there are nodes (slurm.conf(5)).
_LISTS = ("NodeAddr", "NodeHostname", "BcastAddr", "Port")

#: Values that are no list of nodes.
_WORDS = ("", "all", "default", "(null)")

IsOurs = Callable[[str], bool]


def edit_slurm_conf(text: str, entries: SlurmEntries) -> str:
    """The text of slurm.conf with exactly these entries of ours; the same text if it has them."""
    ours = owner(entries)
    wanted = {entry.name: entry for entry in entries.nodes}
    found: set[str] = set()
    partitions: set[str] = set()
    retired: set[str] = set()
    before = list(lines(text))
    for line in before:
        if line.is_about("NodeName") and is_marked(line):
            retired |= set(_names(line))
    retired -= set(wanted)

    def is_ours(name: str) -> bool:
        return name in retired or ours(name)

    after: list[Line] = []
    for line in before:
        if line.is_about("NodeName"):
            after += _node_lines(line, wanted, is_ours, found)
        elif line.is_about("PartitionName"):
            after += _partition_lines(line, entries, is_ours, partitions)
        else:
            after.append(line)
    nodes = [_new_node(entry) for entry in entries.nodes if entry.name not in found]
    after, added = _beside_ours(after, nodes)
    has_default = any(
        (line.get("Default") or "").upper() == "YES"
        for line in after
        if line.is_about("PartitionName")
    )
    for name, members in entries.partitions.items():
        if name not in partitions and members:
            added.append(_new_partition(name, members, is_default=not has_default))
            has_default = True
    return _joined(after, added)


def edit_gres_conf(text: str, entries: SlurmEntries) -> str:
    """The text of gres.conf with the devices of our nodes, and of no node that left.

    A node that has a line keeps it, whoever wrote it.
    """
    ours = owner(entries)
    # Somebody else may have written the line of a node that is on its way (its provider does).
    there = entries.names | entries.coming
    found: set[str] = set()
    after: list[Line] = []
    for line in lines(text):
        if not line.is_about("NodeName"):
            after.append(line)
            continue
        names = _names(line)
        mine = [name for name in names if ours(name) or is_marked(line)]
        left = [name for name in names if name not in mine or name in there]
        found |= set(mine) & there
        if left == list(names):
            after.append(line)
        elif left:
            after.append(line.with_value("NodeName", fold(left)))
    added = [
        f"NodeName={entry.name} {gres} # {MARK}"
        for entry in entries.nodes
        if entry.name not in found
        for gres in entry.gres
    ]
    return _joined(after, added)


def owner(entries: SlurmEntries) -> IsOurs:
    """Whether a host name is one of ours: wanted now, or known to have left.

    Never by its look: an administrator's own gpu-1 is not a node of the group gpu.
    """
    known = entries.names | entries.gone
    return lambda name: name in known


def is_marked(line: Line) -> bool:
    """Whether the line was made here."""
    return line.comment == MARK


def node_names(text: str) -> frozenset[str]:
    """All names of nodes in a text of slurm.conf."""
    return frozenset(
        name for line in lines(text) if line.is_about("NodeName") for name in _names(line)
    )


def includes(text: str) -> bool:
    """Whether other files are included."""
    return any(re.match(r"\s*include\s", line.raw, re.IGNORECASE) for line in lines(text))


def problems(text: str) -> list[str]:
    """What slurmctld would refuse and the parser of Slurm's tools does not see.

    A node that is defined twice, and a partition of nodes that are not defined
    (slurmctld ends over either). Included files are not read: nothing is said about
    partitions where there are any, or node sets.
    """
    said: list[str] = []
    seen: set[str] = set()
    parsed = list(lines(text))
    for line in parsed:
        if line.is_about("NodeName"):
            names = _names(line)
            said += [f"node {name} is defined twice" for name in names if name in seen]
            seen |= set(names)
    if includes(text):
        return said
    sets = {line.get("NodeSet") for line in parsed if line.is_about("NodeSet")}
    for line in parsed:
        if not line.is_about("PartitionName"):
            continue
        unknown = [
            name
            for token in _tokens(line.get("Nodes") or "")
            if token not in sets and token.lower() not in _WORDS
            for name in _expanded(token)
            if name not in seen
        ]
        if unknown:
            said.append(
                f"partition {line.get('PartitionName')} has nodes that are not defined: "
                f"{fold(unknown)}"
            )
    return said


def _node_lines(
    line: Line, wanted: dict[str, NodeEntry], is_ours: IsOurs, found: set[str]
) -> list[Line]:
    """What becomes of a NodeName line: itself, changed, in parts, or nothing."""
    names = _names(line)
    mine = [name for name in names if is_ours(name) and name not in found]
    if not mine:
        return [line]
    found |= set(mine) & set(wanted)
    lists = _lists(line, names)
    addresses = lists.get("NodeAddr", {})
    fits = [
        name
        for name in names
        if name not in mine
        or (name in wanted and addresses.get(name) in (None, wanted[name].address))
    ]
    if fits == list(names) and len(names) > 1:
        return [line]
    if len(names) == 1:
        entry = wanted.get(names[0])
        return [] if entry is None else [_brought_up(line, entry)]
    after: list[Line] = []
    if fits:
        after.append(_part(line, fits, lists))
    for name in mine:
        if name in wanted and name not in fits:
            alone = _part(line, [name], lists)
            after.append(_brought_up(_ended(alone), wanted[name]))
    if after:
        after[:-1] = [_ended(part) for part in after[:-1]]
    return after


def _part(line: Line, names: list[str], lists: dict[str, dict[str, str]]) -> Line:
    """The line for some of its nodes."""
    part = line.with_value("NodeName", ",".join(_in_order(names)))
    for key, values in lists.items():
        part = part.with_value(key, ",".join(values[name] for name in names))
    return part


def _brought_up(line: Line, entry: NodeEntry) -> Line:
    """A node's own line with its present address; other keys that it has are not changed."""
    if entry.address and line.get("NodeAddr") != entry.address:
        line = line.with_value("NodeAddr", entry.address)
    for pair in Line(entry.shape).pairs:
        if line.get(pair.key) is None:
            line = line.with_value(pair.key, pair.value)
    return line


def _partition_lines(
    line: Line, entries: SlurmEntries, is_ours: IsOurs, found: set[str]
) -> list[Line]:
    name = line.get("PartitionName") or ""
    wanted = list(entries.partitions.get(name, ()))
    if name in entries.partitions:
        found.add(name)
    value = line.get("Nodes")
    if value is not None and value.lower() == "all":
        return [line]
    if value is None and not wanted:
        return [line]
    is_void = is_marked(line) and name not in entries.partitions
    put = entries.before.get(name, ())

    def is_mine(one: str) -> bool:
        # What was put there from here goes with the reason for it. Where an administrator has put a
        # node of ours into a partition, it stays there for as long as it lives.
        if one in wanted:
            return True
        return is_ours(one) and (is_void or one in put or one not in entries.names)

    kept: list[str] = []
    place: int | None = None
    had: list[str] = []
    for token in _tokens(value or ""):
        names = _expanded(token)
        mine = [one for one in names if is_mine(one)]
        if not mine:
            kept.append(token)
            continue
        had += mine
        place = len(kept) if place is None else place
        others = [one for one in names if one not in mine]
        if others:
            kept.append(fold(others))
    if not wanted and not kept and name not in entries.partitions and is_marked(line):
        return []
    if set(had) == set(wanted) and len(had) == len(wanted):
        return [line]
    if wanted:
        kept.insert(len(kept) if place is None else place, fold(wanted))
    return [line.with_value("Nodes", ",".join(kept))]


def _new_node(entry: NodeEntry) -> str:
    words = [f"NodeName={entry.name}"]
    if entry.address:
        words.append(f"NodeAddr={entry.address}")
    if entry.shape:
        words.append(entry.shape)
    return f"{' '.join(words)} # {MARK}"


def _new_partition(name: str, nodes: Iterable[str], *, is_default: bool) -> str:
    default = " Default=YES" if is_default else ""
    # An empty value needs its quotes: Slurm cannot read "Nodes=" (22.05 and 24.11).
    return f"PartitionName={name} Nodes={fold(nodes) or chr(34) * 2}{default} State=UP # {MARK}"


def _beside_ours(after: list[Line], nodes: list[str]) -> tuple[list[Line], list[str]]:
    """New lines of nodes behind the last one that was made here; at the end of the file if none."""
    places = [i for i, line in enumerate(after) if line.is_about("NodeName") and is_marked(line)]
    if not places or not nodes:
        return after, nodes
    at = places[-1]
    fresh = [Line(f"{node}\n") for node in nodes]
    return [*after[:at], _ended(after[at]), *fresh, *after[at + 1 :]], []


def _joined(after: list[Line], added: list[str]) -> str:
    text = "".join(line.raw for line in after)
    if added and text and not text.endswith("\n"):
        text += "\n"
    if added and after and goes_on(after[-1]):
        text += "\n"  # or Slurm would read our line as the rest of that one
    return text + "".join(f"{line}\n" for line in added)


def _names(line: Line) -> tuple[str, ...]:
    return _expanded(line.get("NodeName") or "")


def _lists(line: Line, names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Keys that have a value for each name of the line, and the values by name."""
    found: dict[str, dict[str, str]] = {}
    for key in _LISTS:
        values = _expanded(line.get(key) or "")
        if len(values) == len(names):
            found[key] = dict(zip(names, values, strict=True))
    return found


def _expanded(expression: str) -> tuple[str, ...]:
    """The names of an expression; what cannot be read as one is nobody's."""
    if expression.lower() in _WORDS:
        return ()
    try:
        return expand(expression)
    except SlurmError:
        return (expression,)


def _tokens(value: str) -> list[str]:
    return [token for token in _COMMA.split(value) if token]


def _in_order(names: list[str]) -> list[str]:
    """Folded where that keeps the order, which addresses beside it go by."""
    folded = fold(names)
    return [folded] if list(expand(folded)) == names else names


def _ended(line: Line) -> Line:
    return line if line.raw.endswith("\n") else Line(line.raw + "\n")
