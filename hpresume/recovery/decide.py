"""What is done next about every node. Pure: no clock, no I/O.

Each recovery takes one step a pass. A phase is written down before anything is
asked in it, and what is asked in a phase may be asked again without harm, so a
controller that is killed at any instant goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hpresume.recovery import reasons, wanted
from hpresume.recovery.limits import Budget
from hpresume.recovery.model import (
    Action,
    Call,
    Change,
    Hold,
    Make,
    Origin,
    Outcome,
    Phase,
    Policy,
    Recovery,
    Resume,
    SetAddress,
    SetQuarantine,
    Snapshot,
    Sweep,
    Trouble,
    lately,
)
from hpresume.recovery.reasons import Kind
from hpresume.recovery.waiting import cancel, waiting
from hpresume.slurm.models import Node
from hpresume.store import Level

#: How long Slurm may take to give a node back or to take it away (s).
_SLURM_S = 300.0

Actions = tuple[Action, ...]


def decide(snapshot: Snapshot, policy: Policy, now: float) -> Actions:
    """The actions of one pass, in order."""
    budget = Budget(snapshot, policy, now)
    actions: list[Action] = []
    for recovery in sorted(snapshot.active, key=lambda r: (r.began, r.uid)):
        actions += step(recovery, snapshot, policy, now, budget)
    # First: the comment of what is over must not take that of what is new.
    actions += wanted.over(snapshot)
    actions += wanted.begin(snapshot, policy, now)
    actions += budget.notices()
    if not lately(snapshot.swept_at, policy.sweep_every_s, now):
        actions.append(Sweep())
    return tuple(actions)


def step(
    recovery: Recovery, snapshot: Snapshot, policy: Policy, now: float, budget: Budget
) -> Actions:
    """The next step of one recovery; nothing while a call of it is under way."""
    if recovery.uid in snapshot.in_flight:
        return ()
    node = snapshot.nodes.get(recovery.node)
    if node is None:
        if recovery.phase is Phase.WAITING:
            return cancel(recovery, now, "Slurm no longer knows the node")
        left = (
            f"; its machine {recovery.machine_id} is left as it is" if recovery.machine_id else ""
        )
        return _end(recovery, now, Phase.FAILED, f"Slurm no longer knows the node{left}")
    if recovery.phase is Phase.WAITING:
        return waiting(recovery, node, snapshot, policy, now, budget)
    if recovery.phase in (Phase.RETURNING, Phase.QUARANTINING):
        return _ending(recovery, node, snapshot, now)
    heard = recovery.uid in snapshot.outcomes
    if node.is_usable and not heard and recovery.phase is not Phase.ABANDONING:
        # Somebody resumed it, or Slurm did (ReturnToService): not yet.
        return (Hold(recovery, reasons.hold(recovery.kind, _doing(recovery))),)
    job = _newcomer(recovery, node, snapshot) if not heard else None
    if job is not None:
        note = f"job {job} has started there"
        return (Change(recovery, replace(recovery, note=note)),) if note != recovery.note else ()
    if recovery.phase is Phase.BOOTING:
        return _booting(recovery, node, snapshot, policy, now)
    return _calling(recovery, node, snapshot, policy, now)


def _newcomer(recovery: Recovery, node: Node, snapshot: Snapshot) -> int | None:
    """A job on a machine that is about to go: somebody had given the node back meanwhile."""
    if recovery.phase not in (Phase.TERMINATING, Phase.REBOOTING) or node.is_down:
        return None
    jobs = snapshot.jobs.get(node.name, ())
    return next((job.job_id for job in jobs if not job.waits and not job.completing), None)


# -- phases with one call -----------------------------------------------------------


def _calling(
    recovery: Recovery, node: Node, snapshot: Snapshot, policy: Policy, now: float
) -> Actions:
    call, limit_s, done, late = _PHASES[recovery.phase]
    is_late = snapshot.is_over(recovery.since, limit_s(policy), now)
    outcome = snapshot.outcomes.get(recovery.uid)
    if outcome is not None and outcome.call is call:
        if outcome.trouble is None:
            return done(recovery, node, outcome, policy, now)
        if outcome.trouble is Trouble.FAULT:
            return _attempt_failed(recovery, policy, now, outcome.words)
        if outcome.trouble is Trouble.REFUSED or is_late:
            return late(recovery, policy, now, outcome)
        return _again(recovery, policy, now, outcome)
    # A last time when it is late: nothing is given up that was not tried by now.
    return (Make(recovery, call),) if is_late or _is_due(recovery, policy, now) else ()


def _is_due(recovery: Recovery, policy: Policy, now: float) -> bool:
    """Whether a pause is over; one that is too long was written down before the clock was set."""
    left_s = recovery.retry_at - now
    return left_s <= 0.0 or left_s > max(policy.max_retry_s, policy.describe_every_s)


def _again(recovery: Recovery, policy: Policy, now: float, outcome: Outcome) -> Actions:
    pause_s = min(policy.max_retry_s, policy.retry_s * 2.0 ** min(recovery.tries, 16))
    after = replace(recovery, tries=recovery.tries + 1, retry_at=now + pause_s, note=outcome.words)
    if recovery.tries:
        return (Change(recovery, after),)
    kind = "no-capacity" if outcome.trouble is Trouble.CAPACITY else "try-again"
    message = f"{recovery.node}: {recovery.phase}: {outcome.words}; it is tried again"
    return (Change(recovery, after, kind, message, Level.WARNING),)


def _cleared(r: Recovery, node: Node, _: Outcome, policy: Policy, now: float) -> Actions:
    del policy
    after = to(r, Phase.LAUNCHING, now, machine_id="", address="")
    # As late as can be: another start of slurmd than this one is a new machine's.
    after = replace(after, slurmd_start=node.slurmd_start_time)
    return (Change(r, after),)


def _launched(r: Recovery, _node: Node, outcome: Outcome, _p: Policy, now: float) -> Actions:
    machine = outcome.machine
    if machine is None:
        return ()
    after = to(r, Phase.BOOTING, now, machine_id=machine.machine_id, address=machine.address)
    message = f"{r.node}: machine {machine.machine_id} is launched ({_at(machine.address)})"
    return (Change(r, after, "machine-launched", message),)


def _rebooted(r: Recovery, _node: Node, outcome: Outcome, _p: Policy, now: float) -> Actions:
    machine = outcome.machine
    if machine is None:
        return ()
    after = to(r, Phase.BOOTING, now, machine_id=machine.machine_id, address=machine.address)
    return (Change(r, after, "machine-rebooted", f"{r.node}: {machine.machine_id} reboots"),)


def _healthy(r: Recovery, _node: Node, outcome: Outcome, _p: Policy, now: float) -> Actions:
    return (Change(r, to(r, Phase.RETURNING, now, note=outcome.words)),)


def _abandoned(r: Recovery, _node: Node, _o: Outcome, _p: Policy, now: float) -> Actions:
    return (Change(r, to(r, Phase.QUARANTINING, now, note=r.note, machine_id="")),)


def _stuck(r: Recovery, _p: Policy, now: float, outcome: Outcome) -> Actions:
    """The machines of the node cannot be given up: no other may be launched."""
    story = f"its machine could not be given up: {outcome.words}"
    return (Change(r, to(r, Phase.QUARANTINING, now, note=story)),)


def _left_behind(r: Recovery, _p: Policy, now: float, outcome: Outcome) -> Actions:
    story = f"{r.note}; what is left could not be given up: {outcome.words}"
    return (Change(r, to(r, Phase.QUARANTINING, now, note=story)),)


def _no_machine(r: Recovery, policy: Policy, now: float, outcome: Outcome) -> Actions:
    if outcome.trouble is Trouble.TRANSIENT:
        return _attempt_failed(r, policy, now, f"no machine: {outcome.words}")
    return _abandon(r, now, f"no machine: {outcome.words}")


def _no_reboot(r: Recovery, policy: Policy, now: float, outcome: Outcome) -> Actions:
    return _attempt_failed(r, policy, now, f"no reboot: {outcome.words}")


def _no_check(r: Recovery, _p: Policy, now: float, outcome: Outcome) -> Actions:
    """No verdict is no evidence against the machine, and none for it: a person has to look."""
    story = f"it is up, but no health check came to an end: {outcome.words}"
    after = to(r, Phase.QUARANTINING, now, note=story)
    return (Change(r, after, "no-verdict", f"{r.node}: {story}", _WARN),)


_Done = Callable[[Recovery, Node, Outcome, Policy, float], Actions]
_Late = Callable[[Recovery, Policy, float, Outcome], Actions]

#: Phase: its call, its time limit, what follows, what follows if it is refused or late.
_PHASES: dict[Phase, tuple[Call, Callable[[Policy], float], _Done, _Late]] = {
    Phase.TERMINATING: (Call.CLEAR, lambda p: p.terminate_s, _cleared, _stuck),
    Phase.LAUNCHING: (Call.LAUNCH, lambda p: p.launch_s, _launched, _no_machine),
    Phase.REBOOTING: (Call.REBOOT, lambda p: p.reboot_s, _rebooted, _no_reboot),
    Phase.CHECKING: (Call.CHECK, lambda p: p.check_s, _healthy, _no_check),
    Phase.ABANDONING: (Call.CLEAR, lambda p: p.terminate_s, _abandoned, _left_behind),
}


# -- the others ---------------------------------------------------------------------


def _booting(
    recovery: Recovery, node: Node, snapshot: Snapshot, policy: Policy, now: float
) -> Actions:
    outcome = snapshot.outcomes.get(recovery.uid)
    if outcome is not None and outcome.call is Call.DESCRIBE:
        return _described(recovery, outcome, policy, now)
    if _is_elsewhere(recovery, node, policy, now):
        return (SetAddress(recovery, recovery.address),)
    started = node.slurmd_start_time
    if started and started != recovery.slurmd_start and not node.has("NOT_RESPONDING", "INVAL"):
        return (Change(recovery, to(recovery, Phase.CHECKING, now)),)
    if snapshot.is_over(recovery.since, policy.boot_s, now):
        said = "slurmd registers with less than slurm.conf says" if node.has("INVAL") else ""
        said = said or f"slurmd did not register within {policy.boot_s:.0f} s"
        return _attempt_failed(recovery, policy, now, said)
    return (Make(recovery, Call.DESCRIBE),) if _is_due(recovery, policy, now) else ()


def _is_elsewhere(recovery: Recovery, node: Node, policy: Policy, now: float) -> bool:
    """Whether slurmctld has to be told of an address; now and then, where it does not take it."""
    told = recovery.times.get("addressed", 0.0)
    is_told = told >= recovery.since and lately(told, policy.describe_every_s, now)
    return bool(recovery.address) and recovery.address != node.address and not is_told


def _described(recovery: Recovery, outcome: Outcome, policy: Policy, now: float) -> Actions:
    machine = outcome.machine
    after = replace(recovery, retry_at=now + policy.describe_every_s)
    if outcome.trouble is None and (machine is None or machine.state.is_gone):
        return _attempt_failed(recovery, policy, now, "its machine disappeared while it booted")
    if machine is not None and machine.address:
        after = replace(after, address=machine.address)
    return (Change(recovery, after),)


def _ending(recovery: Recovery, node: Node, snapshot: Snapshot, now: float) -> Actions:
    ours = reasons.is_hold(node.reason) or not node.reason or reasons.is_slurms(node.reason)
    ours = ours or _is_carried_out(recovery, node)
    late = snapshot.is_over(recovery.since, _SLURM_S, now)
    if recovery.phase is Phase.RETURNING:
        if node.is_usable:
            return _end(recovery, now, Phase.RETURNED)
        if not ours:
            return _end(recovery, now, Phase.RETURNED, f"left as it is: {node.reason}")
        if late:
            return _end(recovery, now, Phase.FAILED, "Slurm does not give the node back")
        if not (node.is_down or node.is_failing or node.is_draining):
            return ()  # taken back, and not heard of yet: Slurm refuses a second RESUME
        return (Resume(recovery),)
    if reasons.is_quarantine(node.reason):
        return _end(recovery, now, Phase.QUARANTINED)
    if not ours and not isinstance(reasons.read(node.reason), reasons.Order):
        return _end(recovery, now, Phase.QUARANTINED, f"left as it is: {node.reason}")
    if late:
        return _end(recovery, now, Phase.FAILED, "Slurm does not take the node out of service")
    return (SetQuarantine(recovery, reasons.quarantine(recovery.note)),)


def _is_carried_out(recovery: Recovery, node: Node) -> bool:
    """Whether the reason is the order that this recovery has followed, not one given since.

    A slurmctld that was killed comes back with the state that it saved last, a few seconds old
    [ran, 22.05]: what was put in the order's place is gone then.
    """
    is_it = bool(recovery.reason) and node.reason.startswith(recovery.reason)
    return is_it and 0.0 < node.reason_time <= recovery.began


def _attempt_failed(recovery: Recovery, policy: Policy, now: float, why: str) -> Actions:
    """The next attempt, or the end of them."""
    story = f"attempt {recovery.attempt} ({recovery.kind}) failed: {why}"
    if recovery.attempt >= policy.max_attempts:
        story = f"{recovery.attempt} attempts, the last one ({recovery.kind}): {why}"
        if recovery.phase in (Phase.LAUNCHING, Phase.BOOTING):
            return _abandon(recovery, now, story)
        after = to(recovery, Phase.QUARANTINING, now, note=story)
        return (Change(recovery, after, "attempt-failed", f"{recovery.node}: {story}", _WARN),)
    again = Kind.REPLACE
    if recovery.kind is Kind.CHECK and policy.can_reboot and Kind.REBOOT in policy.down_steps:
        again = Kind.REBOOT
    phase = Phase.REBOOTING if again is Kind.REBOOT else Phase.TERMINATING
    after = replace(to(recovery, phase, now, note=why), attempt=recovery.attempt + 1, kind=again)
    message = f"{recovery.node}: {story}; next: {again}"
    return (Change(recovery, after, "attempt-failed", message, _WARN),)


def _abandon(recovery: Recovery, now: float, story: str) -> Actions:
    after = to(recovery, Phase.ABANDONING, now, note=story)
    return (Change(recovery, after, "attempt-failed", f"{recovery.node}: {story}", _WARN),)


_WARN = Level.WARNING


def to(
    recovery: Recovery,
    phase: Phase,
    now: float,
    *,
    note: str = "",
    machine_id: str | None = None,
    address: str | None = None,
) -> Recovery:
    """The recovery in its next phase."""
    return replace(
        recovery,
        phase=phase,
        since=now,
        retry_at=0.0,
        tries=0,
        note=note,
        machine_id=recovery.machine_id if machine_id is None else machine_id,
        address=recovery.address if address is None else address,
        times={**recovery.times, phase.value: now},
    )


def _end(recovery: Recovery, now: float, phase: Phase, note: str = "") -> Actions:
    after = replace(to(recovery, phase, now, note=note or recovery.note), ended_at=now)
    took = f"{now - recovery.began:.0f} s"
    if phase is Phase.RETURNED:
        done = {Kind.REBOOT: "rebooted", Kind.REPLACE: "replaced", Kind.CHECK: "checked"}
        word = done[recovery.kind]
        text = f"{recovery.node} is {word} and back after {took}, attempt {recovery.attempt}"
        level = Level.WARNING if note else Level.INFO
        kind = f"node-{word}"
    else:
        text = f"{recovery.node} is {phase} after {took}: {after.note}"
        level, kind = Level.ERROR, f"node-{phase}"
    if phase is Phase.RETURNED and note:
        text += f"; {note}"
    return (Change(recovery, after, kind, text, level),)


def _doing(recovery: Recovery) -> str:
    origin = {
        Origin.ORDER: "ordered",
        Origin.HEALTH: recovery.reason,
        Origin.DOWN: "it was down",
        Origin.SILENT: "silent, and its job waits for it",
    }[recovery.origin]
    return f"being worked on: {origin}"


def _at(address: str) -> str:
    return f"at {address}" if address else "without an address yet"
