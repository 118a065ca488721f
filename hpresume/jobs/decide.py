"""What is done next for auto-resume jobs. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator

from hpresume.jobs import reports, returns
from hpresume.jobs.model import (
    KEEPS,
    Action,
    Begin,
    Forget,
    Guarded,
    Halt,
    Phase,
    Policy,
    Return,
    Snapshot,
    Unreserve,
)
from hpresume.slurm.models import Job, JobState

#: States in which a silent node is silent for a reason of its own.
_EXCUSED = (
    "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "REBOOT_ISSUED",
    "REBOOT_REQUESTED", "FUTURE", "MAINT",
)  # fmt: skip

#: Pause after a way back that came to nothing, such as that of a host that answers again (s).
_ONCE_S = 60.0


def decide(snapshot: Snapshot, policy: Policy, now: float) -> tuple[Action, ...]:
    """The actions of one pass, in order."""
    actions: list[Action] = []
    if snapshot.running is not None:
        over = {g.job_id for g in snapshot.guarded} - snapshot.running
        # One that has been requeued keeps its place here until its way back is over.
        over -= {r.job_id for r in snapshot.returns if r.phase is not Phase.DONE}
        if over:
            actions.append(Forget(frozenset(over)))
    halted = too_many(snapshot, policy)
    if halted != snapshot.halted:
        actions.append(_halt(snapshot, halted))
    lost = frozenset() if halted else verified(snapshot, policy, now)
    beginnings = tuple(begin(snapshot, lost, now))
    actions += beginnings
    for each in (*snapshot.returns, *(b.new for b in beginnings)):
        if each.phase is not Phase.DONE:
            actions += returns.step(each, snapshot, lost, policy, now)
    taken: set[str] = set()
    for report in snapshot.reports:
        actions += reports.judge(report, snapshot, lost, policy, now, taken)
    actions += _orphans(snapshot)
    return tuple(actions)


def too_many(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether so many of the nodes that were asked are silent that it is not they who failed."""
    return len(snapshot.silent) > max(1, int(policy.halt_share * len(snapshot.asked)))


def verified(snapshot: Snapshot, policy: Policy, now: float) -> frozenset[str]:
    """Nodes that are dead: silent for several probes, and with no excuse in Slurm."""
    return frozenset(
        name
        for name, pulse in snapshot.silent.items()
        if pulse.failed >= policy.probes
        and now - pulse.since >= policy.lost_after_s
        and (node := snapshot.nodes.get(name)) is not None
        and not node.has(*_EXCUSED)
    )


def begin(snapshot: Snapshot, lost: frozenset[str], now: float) -> Iterator[Begin]:
    """Ways back for jobs whose batch host is lost."""
    known = {
        (r.job_id, r.run)
        for r in snapshot.returns
        if r.phase is not Phase.DONE or now - r.began < _ONCE_S
    }
    for guarded in snapshot.guarded:
        job = snapshot.jobs.get(guarded.job_id)
        node = snapshot.nodes.get(guarded.host)
        down = node is not None and node.is_down
        if not (guarded.host in lost or down):
            continue
        if job is None or (guarded.job_id, guarded.run) in known:
            continue
        if not job.requeue or not is_hit(job, guarded):
            continue
        off = {guarded.host, *snapshot.silent}
        keep = (
            ()
            if is_elsewhere(job)
            else tuple(
                n
                for n in (job.nodes or guarded.nodes)
                if n not in off and n in snapshot.nodes and snapshot.nodes[n].is_usable
            )
        )
        new = Return(
            job_id=job.job_id,
            uid=guarded.uid,
            run=guarded.run,
            num_nodes=max(guarded.num_nodes, job.num_nodes),
            exclude=tuple(dict.fromkeys((*job.excluded_nodes, guarded.host))),
            requested=tuple(n for n in job.requested_nodes if n != guarded.host),
            keep=keep,
            lost=guarded.host,
            phase=Phase.KEEPING,
            began=now,
        )
        pulse = snapshot.silent.get(guarded.host)
        why = "it is DOWN in Slurm"
        if pulse is not None:
            why = f"its kernel was asked {pulse.failed} times in {now - pulse.since:.1f} s"
        yield Begin(
            new, f"{guarded.host}, which runs the batch script of job {job.job_id}, is lost: {why}"
        )


def is_hit(job: Job, guarded: Guarded) -> bool:
    """Whether the job runs as it was told of, or Slurm has just taken it back from there."""
    if job.user_id != guarded.uid or not job.batch:
        return False
    if job.state is JobState.RUNNING:
        return job.restarts == guarded.run and job.batch_host == guarded.host
    return job.state is JobState.PENDING and job.restarts == guarded.run + 1


def is_elsewhere(job: Job) -> bool:
    """Whether the job has a reservation of somebody else, which it would lose for ours."""
    return bool(job.reservation) and not job.reservation.startswith(KEEPS)


def _halt(snapshot: Snapshot, on: bool) -> Halt:
    if not on:
        return Halt(False)
    shown = ", ".join(sorted(snapshot.silent)[:5])
    return Halt(
        True,
        f"{len(snapshot.silent)} of {len(snapshot.asked)} nodes that were asked are silent"
        f" ({shown}): the network may be cut, no host of a job is set DOWN",
    )


def _orphans(snapshot: Snapshot) -> Iterator[Unreserve]:
    if snapshot.reservations is None:
        return
    # A name of ours with anything but a number behind it is none of ours.
    ours = {name for name in snapshot.reservations if name.removeprefix(KEEPS).isdecimal()}
    owned = {r.reservation for r in snapshot.returns if r.phase is not Phase.DONE}
    for name in sorted(ours - owned):
        yield Unreserve(name)
