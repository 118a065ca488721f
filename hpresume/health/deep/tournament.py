"""Who is tested with whom, and when: rounds in which every node has one partner at most."""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[str, str]


def rounds(nodes: Sequence[str], at_most: int = 0) -> tuple[tuple[Pair, ...], ...]:
    """The rounds of a round-robin tournament (circle method).

    With all rounds every two nodes meet exactly once; all pairs of a round can
    be tested at the same time. ``at_most`` takes the first so many rounds
    (0: all): then every node has met so many others, one less with an odd number of nodes.
    """
    circle: list[str | None] = list(dict.fromkeys(nodes))
    if len(circle) % 2:
        circle.append(None)  # whoever meets it has a pause
    half = len(circle) // 2
    count = max(len(circle) - 1, 0)
    found = []
    for _ in range(min(count, at_most) if at_most else count):
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append(tuple((a, b) for a, b in facing if a is not None and b is not None))
        circle[1:] = [circle[-1], *circle[1:-1]]
    return tuple(pairs for pairs in found if pairs)
