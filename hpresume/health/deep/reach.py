"""Whether a node's kernel answers: srun waits SlurmdTimeout (5 min) for one that does not."""

from __future__ import annotations

import concurrent.futures
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hpresume.slurm.models import Node

#: How long a node may be silent. A restart of slurmd is no silence: a refusal is an answer.
SILENT_S = 6.0

_CONNECT_S = 2.0
_AT_ONCE = 64


@dataclass
class Silence:
    """Since when nodes do not answer, on the caller's clock."""

    port: int
    since: dict[str, float] = field(default_factory=dict)

    def lost(self, nodes: Iterable[Node], now: float) -> tuple[str, ...]:
        """Ask the nodes; those that have been silent for too long."""
        asked = tuple(nodes)
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            names = [node.name for node in asked]
            heard = dict(zip(names, pool.map(self._answers, asked), strict=True))
        return self.counted(heard, now)

    def counted(self, heard: Mapping[str, bool], now: float) -> tuple[str, ...]:
        """The nodes that have been silent for too long."""
        for name, answers in heard.items():
            if answers:
                self.since.pop(name, None)
            else:
                self.since.setdefault(name, now)
        return tuple(name for name in heard if now - self.since.get(name, now) >= SILENT_S)

    def _answers(self, node: Node) -> bool:
        try:
            where = (node.address, node.port or self.port)
            socket.create_connection(where, timeout=_CONNECT_S).close()
        except ConnectionRefusedError:
            return True
        except (OSError, ValueError):
            return False
        return True
