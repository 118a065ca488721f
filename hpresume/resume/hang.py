"""When a training that runs does nothing any more. Pure.

Ranks touch a file each (``heartbeat_file``). A rank that stops holds up all
others sooner or later, since they wait for it in a collective operation; so
one silent rank is enough for a hang, and the one that fell silent first is to
blame, not those that wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Touch:
    """The last touch of one rank: when (s), and on which node (empty: not known)."""

    at: float
    node: str


@dataclass(frozen=True)
class Hang:
    """Ranks that fell silent first, where they are, and for how long (s)."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    silent_s: float

    @property
    def text(self) -> str:
        """In words."""
        if not self.ranks:
            return f"no rank has touched its heartbeat file for {self.silent_s:.0f} s"
        places = f" on {', '.join(self.nodes)}" if self.nodes else ""
        return f"{who(self.ranks)}{places} silent for {self.silent_s:.0f} s"


#: Ranks that fell silent within this time of the first are named with it (s).
_TOGETHER_S = 2.0


def judge(
    touches: Mapping[int, Touch],
    ranks: int,
    began: float,
    now: float,
    limit: float,
    grace: float,
    ended: frozenset[int] = frozenset(),
    mute: frozenset[str] = frozenset(),
) -> Hang | None:
    """The hang at ``now``, if there is one.

    ``ranks`` is their number; ``began`` when the attempt was first watched. A
    rank must have touched its file by ``grace`` after that, and then again at
    least every ``limit`` seconds. Ranks that have ``ended`` owe nothing. Of those on
    ``mute`` nodes nobody knows; they wait for the others, or the others for them.
    """
    deadline = began + max(grace, limit)
    expected = [rank for rank in range(ranks) if rank not in ended]
    apart = {r for r in expected if r in touches and touches[r].node in mute}
    known = {r: touches[r].at for r in expected if r in touches and r not in apart}
    silent = {rank: at for rank, at in known.items() if now - at > limit}
    if now > deadline and not (mute and known):
        silent |= {rank: began for rank in expected if rank not in touches}
        if mute and apart and not silent:  # all that still run are on those nodes
            places = tuple(dict.fromkeys(touches[r].node for r in sorted(apart)))
            return Hang(tuple(sorted(apart)), places, now - max(touches[r].at for r in apart))
    if not silent:
        return None
    first = min(silent.values())
    behind = tuple(sorted(r for r, at in silent.items() if at - first <= _TOGETHER_S))
    if len(behind) == ranks and not touches:
        return Hang((), (), now - began)
    nodes = tuple(
        dict.fromkeys(touches[r].node for r in behind if r in touches and touches[r].node)
    )
    return Hang(behind, nodes, now - first)


def judge_output(last_growth: float, began: float, now: float, limit: float, grace: float) -> str:
    """Why the step's silence on its output is a hang at ``now``; empty if it is none.

    ``last_growth`` is when the output was last seen to grow, ``began`` when that
    was first looked at (s, one clock).
    """
    silent = now - max(last_growth, began)
    if now - began <= max(grace, limit) or silent <= limit:
        return ""
    return f"no output for {silent:.0f} s"


def who(ranks: Sequence[int], most: int = 8) -> str:
    """``rank 1``, ``ranks 1, 4`` or, past ``most``, the first ones and the count."""
    shown = ", ".join(map(str, ranks[:most]))
    more = "" if len(ranks) <= most else f", … ({len(ranks)} ranks)"
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"
