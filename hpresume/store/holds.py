"""Who has which node in hand: node recovery and provisioning never act on one at a time.

In memory, for the parts of one process (the instance that leads). After a restart each
part takes again what its own tables say it is at work on, before it does anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Holds:
    """Nodes by name, each with at most one owner."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._lock = threading.Lock()

    def take(self, owner: str, node: str) -> bool:
        """Take one node; False where another owner has it."""
        with self._lock:
            return self._owners.setdefault(node, owner) == owner

    def release(self, owner: str, node: str) -> None:
        """Give one node back; nothing happens where another owner has it."""
        with self._lock:
            if self._owners.get(node) == owner:
                del self._owners[node]

    def keep(self, owner: str, nodes: Iterable[str]) -> frozenset[str]:
        """Have exactly these nodes, as far as nobody else has them; what others have."""
        wanted = set(nodes)
        with self._lock:
            for node in [n for n, who in self._owners.items() if who == owner and n not in wanted]:
                del self._owners[node]
            for node in wanted:
                self._owners.setdefault(node, owner)
            return frozenset(node for node, who in self._owners.items() if who != owner)

    def of(self, owner: str) -> frozenset[str]:
        """What an owner has."""
        with self._lock:
            return frozenset(node for node, who in self._owners.items() if who == owner)
