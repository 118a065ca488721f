"""A recovery that has not touched the machine yet: may it, now? Pure."""

from __future__ import annotations

from dataclasses import replace

from hpresume.recovery import reasons
from hpresume.recovery.limits import Budget
from hpresume.recovery.model import (
    Action,
    Change,
    Hold,
    Origin,
    Phase,
    Policy,
    Recovery,
    Resume,
    Snapshot,
)
from hpresume.recovery.reasons import Kind
from hpresume.recovery.wanted import is_allowed, returned_lately, wanted
from hpresume.slurm.models import Node
from hpresume.store import Level

Actions = tuple[Action, ...]


def waiting(
    recovery: Recovery,
    node: Node,
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    budget: Budget,
) -> Actions:
    """Cancel, go on waiting, take the node out of service, or begin with its machine.

    The last two are two passes: what runs on the node is looked at once more when
    nothing can start there any more.
    """
    held = reasons.is_hold(node.reason) and not node.is_usable
    back = recovery.origin is Origin.SILENT and node.name not in snapshot.silent
    if held and back:
        return (Resume(recovery),)
    if not held:
        wish = wanted(node, snapshot, policy, now)
        if wish is None or back:
            return cancel(recovery, now, "its cause has passed, or the order was taken back")
        if wish.origin is not recovery.origin:
            return cancel(recovery, now, "another order has come")
        if wish.kind is not recovery.kind:
            return (Change(recovery, replace(recovery, kind=wish.kind, reason=node.reason)),)
    why = _blocked(recovery, node, snapshot, policy, now)
    if why:
        return _noted(recovery, why)
    lasting = returned_lately(recovery.node, snapshot.past)
    if recovery.origin is not Origin.ORDER and len(lasting) >= policy.max_attempts:
        return _flaps(recovery, lasting, node, policy, now)
    why = budget.take(recovery)
    if why:
        return _noted(recovery, why)
    if not held:
        return (Hold(recovery, reasons.hold(recovery.kind, _story(recovery))),)
    return _act(recovery, node, policy, now)


def cancel(recovery: Recovery, now: float, why: str) -> Actions:
    """End a recovery that has not touched anything."""
    after = replace(
        recovery, phase=Phase.CANCELLED, since=now, ended_at=now, note=why,
        times={**recovery.times, Phase.CANCELLED.value: now},
    )  # fmt: skip
    message = f"{recovery.node}: no {recovery.kind}: {why}"
    return (Change(recovery, after, "cancelled", message),)


def _blocked(recovery: Recovery, node: Node, snapshot: Snapshot, policy: Policy, now: float) -> str:
    """Why the machine must not be touched now; empty if it may."""
    if not is_allowed(node.name, policy):
        return "the configuration forbids it"
    if node.name in snapshot.held:
        return "provisioning has the node in hand"
    if node.name in snapshot.maintenance:
        return "a maintenance reservation has the node"
    if recovery.origin is Origin.DOWN and not reasons.is_hold(node.reason):
        down = snapshot.began(node.reason_time or recovery.began, now)
        left = down + policy.down_grace_s - now
        if left > 0:
            return f"down by itself: grace for another {left:.0f} s"
    jobs = [job for job in snapshot.jobs.get(node.name, ()) if not job.waits]
    if node.is_down:
        # Slurm has ended the jobs; their last processes may still be going.
        if jobs and now - snapshot.began(recovery.began, now) < policy.completing_s:
            return f"job {jobs[0].job_id} is still ending"
        return ""
    if jobs:
        word = "ending" if all(job.completing for job in jobs) else "running"
        more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
        overdue = "overdue, " if now - recovery.began >= policy.wait_jobs_s else ""
        return f"{overdue}job {jobs[0].job_id}{more} is {word}"
    if node.has("COMPLETING") and not snapshot.jobs.get(node.name):
        return "a job is ending"
    return ""


def _noted(recovery: Recovery, why: str) -> Actions:
    # Grace counts down in it; told with the node, not written every second.
    if why.split(":")[0] == recovery.note.split(":")[0]:
        return ()
    message = f"{recovery.node}: {recovery.kind} waits: {why}"
    level = Level.WARNING if why.startswith("overdue") else Level.INFO
    return (Change(recovery, replace(recovery, note=why), "waiting", message, level),)


def _flaps(
    recovery: Recovery, past: tuple[Recovery, ...], node: Node, policy: Policy, now: float
) -> Actions:
    kinds = ", ".join(f"{r.kind} for {r.origin}" for r in past[-policy.max_attempts :])
    hours = policy.attempts_window_s / 3600.0
    story = f"{len(past)} recoveries within {hours:g} h did not last ({kinds}); now: {node.reason}"
    after = replace(
        recovery, phase=Phase.QUARANTINING, since=now, note=story,
        times={**recovery.times, Phase.QUARANTINING.value: now},
    )  # fmt: skip
    return (Change(recovery, after, "flapping", f"{recovery.node}: {story}", Level.ERROR),)


def _act(recovery: Recovery, node: Node, policy: Policy, now: float) -> Actions:
    kind = recovery.kind
    if kind is Kind.REBOOT and not policy.can_reboot:
        kind = Kind.REPLACE
    phase = {
        Kind.REBOOT: Phase.REBOOTING,
        Kind.REPLACE: Phase.TERMINATING,
        Kind.CHECK: Phase.CHECKING,
    }[kind]
    after = replace(
        recovery, kind=kind, phase=phase, since=now, acted_at=now, note="", tries=0, retry_at=0.0,
        slurmd_start=node.slurmd_start_time, times={**recovery.times, phase.value: now},
    )  # fmt: skip
    message = f"{recovery.node}: {kind} begins: {recovery.reason or recovery.origin}"
    return (Change(recovery, after, f"{kind}-begins", message),)


def _story(recovery: Recovery) -> str:
    if recovery.origin is Origin.ORDER:
        return f"ordered: {recovery.reason}"
    if recovery.origin is Origin.SILENT:
        return "silent, and its job waits for it to come back"
    return f"{recovery.origin}: {recovery.reason}"
