"""The way of one job back to its nodes, a step a pass. Pure.

Every effect comes before its phase is written down and may be repeated, so a
controller that is killed at any instant goes on where it was.
"""

from __future__ import annotations

from dataclasses import replace

from hpresume.jobs.model import Effect, Phase, Policy, Return, Snapshot, Step
from hpresume.resume.finisher import LOOK_S, SETTLE_S, is_ready
from hpresume.slurm.models import Job, JobState
from hpresume.store import Level

Steps = tuple[Step, ...]

#: Longest pause that is ever meant; a longer one was written down before the clock was set (s).
_LONGEST_S = 10.0


def step(
    way: Return, snapshot: Snapshot, lost: frozenset[str], policy: Policy, now: float
) -> Steps:
    """The next step; none while there is only to wait."""
    if way.job_id not in snapshot.jobs:
        return ()  # Slurm did not say
    job = snapshot.jobs[way.job_id]
    if job is None:
        return _done(way, "the job is gone")
    if job.state is JobState.RUNNING and job.restarts > way.run:
        took = max(0.0, (job.start_time or now) - way.began)
        return _done(way, f"it runs again on {len(job.nodes)} nodes, {took:.0f} s later")
    if is_ready(job, way.plan) is None:
        return _done(way, f"the job is {job.state}")
    if now - way.began > policy.finish_s:
        return _done(way, f"no end after {policy.finish_s:.0f} s", Level.WARNING)
    if way.kept and now - way.began > policy.keep_s:
        after = replace(way, kept=False)
        words = f"job {way.job_id}: its places are kept no longer"
        return (Step(way, after, Effect.RELEASE, "places-released", words),)
    if way.phase is Phase.KEEPING:
        following = Phase.LEAVING if way.lost else Phase.QUEUED
        after = replace(way, phase=following, kept=bool(way.keep and policy.keep_s))
        words = f"job {way.job_id}: its places on {len(way.keep)} nodes are kept"
        first = (
            Step(way, after, Effect.KEEP, "places-kept", words) if after.kept else Step(way, after)
        )
        # At once: every second counts, and all that it needs is known.
        return (first, *step(after, snapshot, lost, policy, now))
    if way.phase is Phase.LEAVING:
        return _leaving(way, snapshot, lost)
    if way.phase is Phase.QUEUED:
        return _queued(way, job, snapshot, now)
    return ()


def _leaving(way: Return, snapshot: Snapshot, lost: frozenset[str]) -> Steps:
    node = snapshot.nodes.get(way.lost)
    after = replace(way, phase=Phase.QUEUED)
    if node is None or node.is_down:
        return (Step(way, after),)
    if way.lost not in lost:
        if way.lost in snapshot.silent or way.lost not in snapshot.asked:
            return ()  # halted, or not asked yet by a controller that was started anew
        return _done(way, f"{way.lost} answers again")
    waiting = [j.job_id for j in snapshot.holders.get(way.lost, ()) if j.waits]
    if waiting:
        return _done(way, f"job {waiting[0]} waits for {way.lost}: it is not set DOWN")
    words = f"{way.lost} is set DOWN: it is lost with the batch script of job {way.job_id}"
    return (Step(way, after, Effect.DOWN, "host-down", words, Level.WARNING),)


def _queued(way: Return, job: Job, snapshot: Snapshot, now: float) -> Steps:
    node = snapshot.nodes.get(way.lost)
    if node is not None and not node.is_down and job.state is JobState.RUNNING:
        return _done(way, f"{way.lost} is not DOWN, and the job runs on")
    if not is_ready(job, way.plan):
        return (Step(way, replace(way, ready_at=0.0)),) if way.ready_at else ()
    if not way.ready_at:
        # Since the old run was ended, on nodes that may be chosen again. A lost host's job is
        # COMPLETING for longer than that: its slurmstepd try to tell the dead srun of the end.
        settled = way.began + 1.0 + SETTLE_S if way.lost else now + SETTLE_S
        way = replace(way, ready_at=now, look_at=max(now, settled))
        if now < way.look_at:
            return (Step(way, way),)
    if 0.0 < way.look_at - now <= _LONGEST_S:
        return ()
    # Where nodes are missing, the executor puts the start off and this is done again.
    after = replace(way, phase=Phase.STARTING, look_at=now + LOOK_S)
    words = f"job {way.job_id}: it may start now"
    return (Step(way, after, Effect.BRING_BACK, "brought-back", words),)


def _done(way: Return, why: str, level: Level = Level.INFO) -> Steps:
    after = replace(way, phase=Phase.DONE, kept=False)
    words = f"job {way.job_id}: {why}"
    effect = Effect.RELEASE if way.kept or way.phase is Phase.KEEPING else Effect.NONE
    return (Step(way, after, effect, "return-ended", words, level),)
