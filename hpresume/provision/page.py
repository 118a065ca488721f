"""Pages of a list by position (keyset): no entry twice, none left out, whatever changes meanwhile.

A position is the sort value and the id of the entry a page ended with. A store asks its
database for what comes after it; ``page_of`` does the same on a sequence in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Position = tuple[float | str, str]

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Entries in order; ``next`` is the position of the last one if others follow."""

    items: tuple[T, ...]
    next: Position | None = None


def page_of(
    items: Iterable[T],
    position: Callable[[T], Position],
    *,
    limit: int,
    after: Position | None = None,
    descending: bool = False,
) -> Page[T]:
    """The page of ``items`` that begins after a position; ids break ties in the same direction."""
    ordered = sorted(items, key=position, reverse=descending)
    if after is not None:
        ordered = [
            item
            for item in ordered
            if (position(item) < after if descending else position(item) > after)
        ]
    page = tuple(ordered[:limit])
    more = len(ordered) > limit
    return Page(page, position(page[-1]) if page and more else None)
