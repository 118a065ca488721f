"""Which nodes want a recovery, and what they must not get. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hpresume.recovery import reasons
from hpresume.recovery.model import Begin, Origin, Phase, Policy, Recovery, Say, Snapshot, Unsay
from hpresume.recovery.reasons import Kind, NearMiss, Order
from hpresume.slurm.models import Node
from hpresume.store import Level

#: A boot must be later than a mark by this to be a later boot (s): clocks differ.
_BOOT_MARGIN_S = 5.0

#: Health marks that ask for a reboot again after so many of them get a replacement: a
#: fault that two reboots have not cured is in the hardware (leptonai/gpud's rule).
_REBOOTS_WITHOUT_CURE = 2

#: Slurm, or somebody by way of Slurm, is about to stop or start the machine.
_BY_POWER = (
    "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP",
    "REBOOT_ISSUED", "REBOOT_REQUESTED", "FUTURE",
)  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """What a node wants, and why."""

    kind: Kind
    origin: Origin


def wanted(node: Node, snapshot: Snapshot, policy: Policy, now: float) -> Wanted | None:
    """What a node wants, as Slurm has it now; None for most nodes."""
    order = reasons.read(node.reason) if node.reason else None
    if isinstance(order, Order):
        if not (node.is_failing or node.is_down):
            return None
        return _ordered(node, order, snapshot, policy)
    if not is_automatic(node.name, snapshot, policy) or node.has(*_BY_POWER):
        return None
    if node.is_down:
        if not reasons.is_slurms(node.reason) or node.is_draining or node.is_failing:
            return None
        if node.reason.startswith("Node unexpectedly rebooted") and not node.has("NOT_RESPONDING"):
            return Wanted(Kind.CHECK, Origin.DOWN)
        return Wanted(_next_step(node.name, snapshot, policy), Origin.DOWN)
    if _is_waited_for(node, snapshot, policy, now):
        return Wanted(_next_step(node.name, snapshot, policy), Origin.SILENT)
    return None


def begin(snapshot: Snapshot, policy: Policy, now: float) -> Iterator[Begin | Say]:
    """New recoveries, and orders that cannot be obeyed."""
    busy = {recovery.node for recovery in snapshot.active}
    for node in snapshot.nodes.values():
        if not node.reason and not node.is_down and node.name not in snapshot.silent:
            continue
        if node.name in busy or node.name in snapshot.held:
            continue
        wish = wanted(node, snapshot, policy, now)
        if wish is None:
            yield from _near_miss(node, snapshot)
        elif is_allowed(node.name, policy):
            yield Begin(node.name, wish.kind, wish.origin, node.reason)
        elif wish.origin is Origin.ORDER and f"refused:{node.name}" not in snapshot.notices:
            yield Say(
                f"refused:{node.name}", "order-refused", node=node.name,
                message=f"{node.name}: {node.reason!r} is not obeyed: the configuration "
                "(nodes, never) or the controller's own host forbids it",
            )  # fmt: skip


def over(snapshot: Snapshot) -> Iterator[Unsay]:
    """Notices about nodes whose cause has passed."""
    for key in sorted(snapshot.notices):
        about, _, rest = key.partition(":")
        if about not in ("nearmiss", "refused"):
            continue
        name = rest.partition(":")[0]
        node = snapshot.nodes.get(name)
        found = reasons.read(node.reason) if node and _is_marked(node) else None
        if about == "refused":
            stands = isinstance(found, Order)
        else:
            stands = node is not None and isinstance(found, NearMiss) and key == _miss(node)
        if not stands:
            yield Unsay(key, name if node else "")


def is_allowed(name: str, policy: Policy) -> bool:
    """Whether the configuration lets the controller touch a node."""
    return is_allowed_by(name, policy.allowed, policy.denied)


def is_allowed_by(name: str, allowed: frozenset[str] | None, denied: frozenset[str]) -> bool:
    """Whether a node is among those that may be touched; ``allowed`` None for all."""
    return name not in denied and (allowed is None or name in allowed)


def is_automatic(name: str, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a node is recovered without a person's order."""
    return policy.automatic and name not in snapshot.by_hand


def returned_lately(name: str, past: Iterable[Recovery]) -> tuple[Recovery, ...]:
    """Recoveries of a node that did not last: since a person's order or its quarantine."""
    found: list[Recovery] = []
    for recovery in past:
        if recovery.node != name:
            continue
        if recovery.origin is Origin.ORDER or recovery.phase is Phase.QUARANTINED:
            found = []
        elif recovery.phase in (Phase.RETURNED, Phase.FAILED) and recovery.acted_at:
            found.append(recovery)
    return tuple(found)


def _ordered(node: Node, order: Order, snapshot: Snapshot, policy: Policy) -> Wanted | None:
    kind = order.kind
    if reasons.is_hold(node.reason):
        # A recovery that the store has lost, or that failed: not a person's order.
        return Wanted(kind, Origin.HEALTH)
    if order.by_health and not is_automatic(node.name, snapshot, policy):
        return None
    origin = Origin.HEALTH if order.by_health else Origin.ORDER
    rebooted = node.reason_time and node.boot_time > node.reason_time + _BOOT_MARGIN_S
    if rebooted and (order.by_health or kind is Kind.REBOOT):
        # What was seen before the last boot proves nothing; a reboot has been had.
        return Wanted(Kind.CHECK, origin)
    if order.by_health and kind is Kind.REBOOT:
        before = returned_lately(node.name, snapshot.past)
        if sum(r.kind is Kind.REBOOT for r in before) >= _REBOOTS_WITHOUT_CURE:
            kind = Kind.REPLACE
    return Wanted(kind, origin)


def _next_step(name: str, snapshot: Snapshot, policy: Policy) -> Kind:
    """The first remedy for a node that failed by itself, the next one if that did not last."""
    tried = len(returned_lately(name, snapshot.past))
    return policy.down_steps[min(tried, len(policy.down_steps) - 1)]


def _is_waited_for(node: Node, snapshot: Snapshot, policy: Policy, now: float) -> bool:
    """Whether a node that Slurm still believes in is dead, and only waiting jobs hold it."""
    silent = snapshot.silent.get(node.name)
    if silent is None or not snapshot.is_over(silent, policy.silent_for_s, now):
        return False
    if node.is_failing or node.is_draining or (node.reason and not node.is_usable):
        return False
    jobs = snapshot.jobs.get(node.name, ())
    return bool(jobs) and all(job.waits for job in jobs)


def _is_marked(node: Node) -> bool:
    """Whether the reason means anything: Slurm 24.11 keeps that of FAIL when a node is resumed."""
    return node.is_failing or node.is_down or node.is_draining


def _miss(node: Node) -> str:
    """The key of what is told of a near miss: another one is told too."""
    return f"nearmiss:{node.name}:{node.reason[:200]}"


def _near_miss(node: Node, snapshot: Snapshot) -> Iterator[Say]:
    found = reasons.read(node.reason) if node.reason else None
    if not isinstance(found, NearMiss) or _miss(node) in snapshot.notices:
        return
    if not _is_marked(node):
        return
    advice = f'not obeyed: {node.reason!r} is not "{found.meant}" to the letter'
    yield Say(
        _miss(node), "near-miss", node=node.name, level=Level.WARNING,
        message=f"{node.name}: {advice}", comment=f"hpresume: {advice}",
        details={"reason": node.reason, "meant": found.meant},
    )  # fmt: skip
