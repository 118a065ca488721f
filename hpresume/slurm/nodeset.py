"""Node list expressions: from ``n[1-3,5]`` to names and back.

The plain forms, which are all that most clusters ever print, are read with the
standard library; everything else (several brackets, steps) goes to
ClusterShell, which is imported only then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpresume.errors import SlurmError

#: More names than any cluster has: an expression beyond it is a mistake.
MAX_NODES = 1_000_000

#: Slurm's words for "no nodes".
_NONE = frozenset({"", "(null)", "None", "N/A", "None assigned"})

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_ONE_BRACKET = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9_.-]*)\[([0-9,-]+)\]([A-Za-z.-][A-Za-z0-9_.-]*)?\Z"
)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?\Z")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[\]]*\])")


def is_name(text: object) -> bool:
    """Whether ``text`` could be the name of one node."""
    return isinstance(text, str) and _PLAIN_NAME.match(text) is not None


def expand(expression: str, most: int = MAX_NODES) -> tuple[str, ...]:
    """The names in ``expression``, in its order.

    Raises ``SlurmError`` for anything that is not a node list, and for more than ``most`` nodes.
    """
    expression = expression.strip()
    if expression in _NONE:
        return ()
    names: list[str] = []
    for part in _COMMA_OUTSIDE_BRACKETS.split(expression):
        if _PLAIN_NAME.match(part):
            names.append(part)
            continue
        expanded = _expand_one_bracket(part, most)
        if expanded is None:
            return _expand_with_clustershell(expression, most)
        names.extend(expanded)
        _check_size(len(names), expression, most)
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """A short expression for ``names``, as Slurm's tools take it.

    The order of the names is not kept where ranges can be made.
    """
    unique = dict.fromkeys(names)
    if len(unique) < 3:
        return ",".join(unique)
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in unique:
        match = re.match(r"(.*?[^0-9])([0-9]{1,18})\Z", name)
        if match is None or "[" in name:
            plain.append(name)
            continue
        # 9 and 10 fold together, 09 and 10 as well, 9 and 09 do not.
        digits = match[2]
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        groups.setdefault((match[1], width), []).append(int(digits))
    for prefix, width in [key for key in groups if key[1]]:
        _adopt_full_width(groups, prefix, width)
    parts = [*plain]
    for (prefix, width), numbers in groups.items():
        ranges = [_shown_range(low, high, width) for low, high in _runs(sorted(numbers))]
        single = len(ranges) == 1 and "-" not in ranges[0]
        parts.append(prefix + (ranges[0] if single else "[" + ",".join(ranges) + "]"))
    return ",".join(parts)


def _adopt_full_width(groups: dict[tuple[str, int], list[int]], prefix: str, width: int) -> None:
    """Move ``10`` to the group of ``09``: same width, no leading zero needed."""
    unpadded = groups.get((prefix, 0))
    if unpadded is None:
        return
    same = [number for number in unpadded if len(str(number)) == width]
    groups[(prefix, width)].extend(same)
    rest = [number for number in unpadded if len(str(number)) != width]
    if rest:
        groups[(prefix, 0)] = rest
    else:
        del groups[(prefix, 0)]


def _runs(numbers: list[int]) -> Iterable[tuple[int, int]]:
    low = high = numbers[0]
    for number in numbers[1:]:
        if number != high + 1:
            yield low, high
            low = number
        high = number
    yield low, high


def _shown_range(low: int, high: int, width: int) -> str:
    first = f"{low:0{width}d}" if width else str(low)
    if low == high:
        return first
    return f"{first}-{high:0{width}d}" if width else f"{first}-{high}"


def _expand_one_bracket(part: str, most: int) -> list[str] | None:
    """The names of ``n[1-3,5]``; None for a form that is not plain."""
    match = _ONE_BRACKET.match(part)
    if match is None:
        return None
    prefix, ranges, suffix = match[1], match[2], match[3] or ""
    names: list[str] = []
    for item in ranges.split(","):
        bounds = _RANGE.match(item)
        if bounds is None:
            return None
        low, high = bounds[1], bounds[2] or bounds[1]
        # Mixed widths such as 09-100 are padded differently by different tools.
        if len(low) != len(high) and (low.startswith("0") or high.startswith("0")):
            return None
        first, last = int(low), int(high)
        if last < first:
            return None
        _check_size(last - first + 1, part, most)
        width = len(low) if low.startswith("0") else 0
        names.extend(f"{prefix}{number:0{width}d}{suffix}" for number in range(first, last + 1))
    return names


def _check_size(count: int, expression: str, most: int) -> None:
    if count > most:
        raise SlurmError(f"node list {expression[:80]!r}: more than {most} nodes")


def _expand_with_clustershell(expression: str, most: int) -> tuple[str, ...]:
    try:
        from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
    except ImportError as error:
        raise SlurmError(
            f"node list {expression[:80]!r} needs the package ClusterShell to be read"
        ) from error
    names: list[str] = []
    for part in _COMMA_OUTSIDE_BRACKETS.split(expression):
        try:
            # Slurm has no "@group".
            node_set = NodeSet(part, resolver=RESOLVER_NOGROUP)
            _check_size(len(names) + len(node_set), expression, most)
            names.extend(str(name) for name in node_set)
        except (NodeSetException, ValueError, KeyError, IndexError, TypeError) as error:
            raise SlurmError(f"node list {expression[:80]!r} cannot be read: {error}") from error
    strange = next((name for name in names if not _PLAIN_NAME.match(name)), None)
    if strange is not None:
        raise SlurmError(f"node list {expression[:80]!r}: {strange!r} is not a host name")
    return tuple(names)
