"""How much may be done at once. Pure.

A controller that is wrong about many nodes must not take down what works: it stops
and says so. A person's order is not halted by the share of bad nodes, since
persons give orders just then; the numbers at once and in an hour hold for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpresume.recovery import reasons
from hpresume.recovery.model import Origin, Policy, Recovery, Say, Snapshot, Unsay
from hpresume.slurm.models import Node
from hpresume.store import Level

_HOUR_S = 3600.0
_HOURLY = "limit:hour"


class Budget:
    """What may still begin in this pass; every ``take`` uses some of it up."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._acting = sum(r.phase.is_acting for r in snapshot.active)
        recent = (*snapshot.active, *snapshot.past)
        self._lately = sum(r.acted_at > now - _HOUR_S for r in recent)
        self._halted = _halted_partitions(snapshot, policy)
        self._met: set[str] = set()

    def take(self, recovery: Recovery) -> str:
        """Take one action's worth; empty, or why it has to wait."""
        policy = self._policy
        node = self._snapshot.nodes[recovery.node]
        halted = [name for name in node.partitions if name in self._halted]
        if halted and recovery.origin is not Origin.ORDER:
            self._met.update(halted)
            return f"halted: too many nodes of partition {halted[0]} are bad"
        if self._lately >= policy.max_per_hour:
            self._met.add(_HOURLY)
            return f"{policy.max_per_hour} actions were begun within the hour"
        if self._acting >= policy.max_concurrent:
            return f"{policy.max_concurrent} other nodes are being recovered"
        self._acting += 1
        self._lately += 1
        return ""

    def notices(self) -> Iterator[Say | Unsay]:
        """Limits that were met, told once, and those that no longer hold."""
        notices = self._snapshot.notices
        for partition in sorted(self._met & set(self._halted)):
            key, bad, size = f"halt:{partition}", *self._halted[partition]
            if key not in notices:
                yield Say(
                    key, "halt", level=Level.ERROR,
                    message=f"halted: {bad} of {size} nodes of partition {partition} are bad, "
                    f"more than halt_share = {self._policy.halt_share:g} allows: nothing is "
                    "rebooted or replaced by itself until somebody has looked",
                    details={"partition": partition, "bad": bad, "nodes": size},
                )  # fmt: skip
        if _HOURLY in self._met and _HOURLY not in notices:
            yield Say(
                _HOURLY, "limit",
                message=f"{self._policy.max_per_hour} actions within an hour "
                "(max_per_hour): more have to wait",
            )  # fmt: skip
        for key in sorted(notices):
            if key == _HOURLY and self._lately < self._policy.max_per_hour:
                yield Unsay(key)
            if key.startswith("halt:") and key.removeprefix("halt:") not in self._halted:
                yield Unsay(key)


def is_bad(node: Node, snapshot: Snapshot) -> bool:
    """Whether a node is lost to its partition by a fault, and not by a person's wish.

    One that provisioning is at work on is on its way in or out: no fault.
    """
    if node.name in snapshot.held:
        return False
    if node.is_down or node.is_failing or node.name in snapshot.silent:
        return True
    return bool(node.reason) and not node.is_usable and reasons.is_quarantine(node.reason)


def _halted_partitions(snapshot: Snapshot, policy: Policy) -> dict[str, tuple[int, int]]:
    """Partitions with too many bad nodes: how many, of how many."""
    size: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    for node in snapshot.nodes.values():
        size.update(node.partitions)
        if (node.reason or node.name in snapshot.silent or node.is_down) and is_bad(node, snapshot):
            bad.update(node.partitions)
    # One bad node is no mass failure, however small the partition.
    return {
        name: (count, size[name])
        for name, count in bad.items()
        if count > max(1, int(policy.halt_share * size[name]))
    }
