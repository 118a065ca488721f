"""The ladder: what to do after an attempt ended. Pure.

``decide`` never reads a clock, asks Slurm or logs; everything it needs is in
the snapshot. The same rungs answer the question asked at the start of a step:
what could be done if a node were lost now (``outlook``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hpresume.config import ResumeSettings
from hpresume.resume.model import (
    DEAD_SIGNS,
    PASSING_SIGNS,
    Action,
    Await,
    Cause,
    Context,
    Finish,
    GiveUp,
    Grow,
    NodeFault,
    Reallocate,
    Requeue,
    Restart,
    Rung,
    Sign,
    Snapshot,
    Verdict,
)
from hpresume.slurm.models import JobState

#: Signs of a node whose machine is gone, and may be replaced by another.
_ABSENT_SIGNS = frozenset({Sign.LOST})

#: How long before SlurmdTimeout the wait for a replacement ends (s): slurmctld
#: counts from the last answer it got, which may be a little older than ours.
BEFORE_DOWN_S = 15.0

#: A shorter wait than this is not worth the detour (s).
_SHORTEST_WAIT_S = 5.0

#: From this many nodes on, slurmstepd reports the end of a step up a tree
#: (REVERSE_TREE_WIDTH in slurmstepd, the same in 22.05 and 26.05).
_TREE_NODES = 7

_NEVER_RESUMED = {
    Cause.CANCELLED: "it was cancelled",
    Cause.TIME_LIMIT: "it reached its time limit",
    Cause.PREEMPTED: "it was preempted",
}


def decide(snapshot: Snapshot, policy: ResumeSettings, now: float) -> Action:
    """The one action to take; ``now`` is Unix time in seconds."""
    verdict, code = snapshot.verdict, snapshot.exit_code
    if verdict.cause is Cause.COMPLETED:
        return Finish(code, "completed")
    if verdict.cause in _NEVER_RESUMED:
        return Finish(code, _NEVER_RESUMED[verdict.cause])
    if verdict.cause in (Cause.APPLICATION, Cause.UNKNOWN) and policy.resume_on != "any":
        return Finish(code, "no node failed, and resume_on is node-failure")
    limit = _limit_reached(snapshot, policy, now)
    if limit:
        return GiveUp(code, limit)
    reasons = [f"{rung}: {why}" for rung, why in snapshot.failed]
    for rung in Rung:
        if any(rung is tried for tried, _ in snapshot.failed):
            continue
        option = _rung(rung, snapshot, policy, now)
        if not isinstance(option, str):
            return option
        reasons.append(f"{rung}: {option}")
    return GiveUp(code, "no way is left (" + "; ".join(reasons) + ")")


def outlook(snapshot: Snapshot, policy: ResumeSettings, lost: str) -> Action:
    """What ``decide`` would do if node ``lost`` died now.

    Of the limits only ``max_resumes`` counts: the others may be met again by then.
    """
    if snapshot.history.resumes >= policy.max_resumes:
        return GiveUp(1, f"max_resumes = {policy.max_resumes} is reached")
    return suppose(snapshot, policy, (NodeFault(lost, Sign.LOST, "supposed"),))


def suppose(snapshot: Snapshot, policy: ResumeSettings, faults: tuple[NodeFault, ...]) -> Action:
    """What ``decide`` would do if the step ended now for ``faults``, limits aside."""
    supposed = replace(snapshot, verdict=Verdict(Cause.NODE_FAILURE, faults), exit_code=1)
    without_limits = replace(policy, max_resumes=10**9, max_no_progress=10**9, min_time_left=0.0)
    return decide(supposed, without_limits, 0.0)


def _limit_reached(snapshot: Snapshot, policy: ResumeSettings, now: float) -> str:
    history, job = snapshot.history, snapshot.job
    if history.resumes >= policy.max_resumes:
        return f"max_resumes = {policy.max_resumes} is reached"
    if history.without_progress >= policy.max_no_progress:
        return (
            f"{history.without_progress} attempts in a row made no progress"
            f" (max_no_progress = {policy.max_no_progress})"
        )
    if snapshot.context is Context.STANDALONE:
        return ""
    if job is None:
        return "the job is gone"
    if job.is_over or job.state is JobState.PENDING:
        return f"job {job.job_id} is {job.state}"
    if job.end_time and job.end_time - now < policy.min_time_left:
        left = max(0.0, job.end_time - now)
        return f"{left:.0f} s are left of the job's time limit"
    return ""


def bad_nodes(snapshot: Snapshot) -> tuple[str, ...]:
    """Nodes of the job to keep off, in the job's order.

    A rebooted node is none of them once Slurm takes it as usable again, where it starts steps
    there; nor is one that was cut off and is back.
    """
    blamed = {f.node for f in snapshot.verdict.faults if f.sign not in PASSING_SIGNS}
    blamed |= stranded(snapshot)
    bad = blamed | snapshot.unusable
    nodes = snapshot.job.nodes if snapshot.job else snapshot.step.nodes
    ordered = [n for n in nodes if n in bad]
    return tuple(ordered + sorted(blamed - set(ordered)))


def stranded(snapshot: Snapshot) -> frozenset[str]:
    """Nodes that were booted within the job and are good, but not for steps of this job."""
    config = snapshot.config
    if config is None or not config.launches_after_prolog_only:
        return frozenset()
    return frozenset(f.node for f in snapshot.verdict.faults if f.sign is Sign.REBOOTED)


def _bad_for_another_start(snapshot: Snapshot) -> set[str]:
    """Nodes to keep off when the job starts anew, or another one in its place."""
    good_again = stranded(snapshot) - snapshot.unusable
    return (set(bad_nodes(snapshot)) | snapshot.history.bad_nodes) - good_again


def _rung(rung: Rung, snapshot: Snapshot, policy: ResumeSettings, now: float) -> Action | str:
    """The action of one rung, or why it does not fit."""
    if rung not in policy.ladder:
        return "switched off"
    if (rung is Rung.NEW) != (snapshot.context is Context.STANDALONE):
        return "not for this kind of allocation"
    if rung is Rung.REPLACE:
        return _replace(snapshot, policy, now)
    if rung is Rung.FEWER:
        return _fewer(snapshot, policy, now)
    return _OPTIONS[rung](snapshot, policy)


def no_overlap(snapshot: Snapshot) -> str:
    """What forbids the step to start over what a dead step holds; empty: nothing does."""
    if not snapshot.step.can_overlap:
        return "srun --exclusive"
    job, config = snapshot.job, snapshot.config
    if config is None or config.overlaps_everything:
        return ""
    if job and job.tres_gres:
        return "a step with GPUs under Slurm before 22.05"
    return "a step with -c or --exact under Slurm before 22.05" if snapshot.step.exact else ""


def _loses_cores(snapshot: Snapshot, drop: tuple[str, ...]) -> str:
    """Why no step would begin once nodes have left the job; empty: one would.

    The cores that its steps held at that moment are never given back, and only
    ``--overlap`` gets past that.
    """
    config = snapshot.config
    if drop and snapshot.step.exact and config and not config.overlaps_everything:
        return "Slurm before 22.05 gives cores of a shrunk job to no step with -c or --exact"
    return ""


def _healthy(snapshot: Snapshot) -> tuple[str, ...]:
    job = snapshot.job
    if job is None:
        return ()
    off = set(bad_nodes(snapshot)) | snapshot.step.excluded
    return tuple(n for n in job.nodes if n not in off)


def _droppable(snapshot: Snapshot) -> tuple[str, ...]:
    """Bad nodes that may leave the job: not the host of its script or of this process,

    nor one with somebody's running step.
    """
    job = snapshot.job
    if job is None:
        return ()
    dead = {f.node for f in snapshot.verdict.faults if f.sign in DEAD_SIGNS}
    stays = {job.batch_host, snapshot.here}
    bad = [n for n in bad_nodes(snapshot) if n in job.nodes and n not in stays]
    drop = [n for n in bad if n in dead or n not in snapshot.busy]
    if _resize_is_refused(snapshot) or len(drop) >= len(job.nodes):
        return ()
    return tuple(drop)


def _resize_is_refused(snapshot: Snapshot) -> bool:
    """Slurm until 24.05 changes the size of a job only once without slurmdbd."""
    job, config = snapshot.job, snapshot.config
    return bool(job and config and job.is_resized and config.resizes_jobs_once)


def _same(snapshot: Snapshot, policy: ResumeSettings) -> Action | str:
    off = [n for n in snapshot.step.nodes if n not in _healthy(snapshot)]
    if not snapshot.step.nodes:
        return "the step's nodes are not known"
    if off:
        return "bad node " + ", ".join(off)
    if len(snapshot.step.nodes) < min(snapshot.step.num_nodes, len(_healthy(snapshot))):
        return "more nodes are there again"
    rebooted = any(f.sign is Sign.REBOOTED for f in snapshot.verdict.faults)
    overlap = rebooted or not snapshot.haunted.isdisjoint(snapshot.step.nodes)
    if overlap and (obstacle := no_overlap(snapshot)):
        return f"{obstacle} cannot start over the dead step of a rebooted node"
    return Restart(
        Rung.SAME,
        snapshot.step.nodes,
        overlap=overlap,
        delay_s=_delay(snapshot, policy),
        tasks=_tasks(snapshot, len(snapshot.step.nodes)),
    )


def _spare(snapshot: Snapshot, policy: ResumeSettings) -> Action | str:
    healthy, needed = _healthy(snapshot), snapshot.step.num_nodes
    if needed < 1:
        return "the step's size is not known"
    if len(healthy) < needed:
        return f"{len(healthy)} good nodes in the job, {needed} needed"
    drop = _droppable(snapshot)
    stuck = set(bad_nodes(snapshot)) - set(drop)
    nodes = _choose(snapshot, healthy, needed)
    overlap = bool(stuck & set(snapshot.step.nodes) or snapshot.haunted & set(nodes))
    if overlap and (obstacle := no_overlap(snapshot)):
        return f"{obstacle} cannot start over the dead step of a node that stays in the job"
    if obstacle := _loses_cores(snapshot, drop):
        return obstacle
    return Restart(
        Rung.SPARE,
        nodes,
        drop,
        overlap=overlap,
        delay_s=_delay(snapshot, policy),
    )


def _tasks(snapshot: Snapshot, nodes: int) -> int:
    """The number of tasks to ask for on fewer nodes than the user did; 0: the user's."""
    return snapshot.step.tasks_per_node * nodes if nodes < snapshot.step.num_nodes else 0


def _replace(snapshot: Snapshot, policy: ResumeSettings, now: float) -> Action | str:
    job, config = snapshot.job, snapshot.config
    if not policy.replace_timeout:
        return "replace_timeout is not set"
    if job is None or config is None:
        return "Slurm did not say enough about the job"
    if obstacle := no_overlap(snapshot):
        return f"{obstacle} cannot start over the dead step of a replaced node"
    if config.launches_after_prolog_only:
        return (
            "with PrologFlags=Alloc, Slurm from 23.02 on starts no step on a node that was booted"
        )
    missing = tuple(
        f.node
        for f in snapshot.verdict.faults
        if f.sign in _ABSENT_SIGNS and f.node in snapshot.step.nodes and f.node in job.nodes
    )
    others = [n for n in snapshot.step.nodes if n not in missing and n not in _healthy(snapshot)]
    if not missing or (job.batch_host in missing and snapshot.context is Context.BATCH):
        return "no node that could come back"
    if others:
        return "bad node " + ", ".join(others)
    # Declared DOWN, the node would take the whole job with it.
    noticed = (snapshot.lost_since or now) + config.slurmd_timeout_s - BEFORE_DOWN_S
    limit = min(policy.replace_timeout, noticed - now)
    if limit < _SHORTEST_WAIT_S:
        return f"SlurmdTimeout = {config.slurmd_timeout_s} s leaves no time to wait"
    return Await(missing, snapshot.step.nodes, limit)


def _fewer(snapshot: Snapshot, policy: ResumeSettings, now: float) -> Action | str:
    healthy, needed = _healthy(snapshot), snapshot.step.num_nodes
    if not policy.min_nodes:
        return "min_nodes is not set"
    if len(healthy) < policy.min_nodes:
        return f"{len(healthy)} good nodes, min_nodes = {policy.min_nodes}"
    if not snapshot.step.tasks_per_node:
        return "the number of tasks is fixed: give --ntasks-per-node instead of -n"
    droppable = _droppable(snapshot)
    keep, keep_until = _worth_keeping(snapshot, policy, now, droppable)
    drop = tuple(n for n in droppable if n not in keep)
    count = min(len(healthy), needed)
    nodes = _choose(snapshot, healthy, count)
    stuck = set(bad_nodes(snapshot)) - set(drop)
    overlap = bool(stuck & set(snapshot.step.nodes) or snapshot.haunted & set(nodes))
    if overlap and (obstacle := no_overlap(snapshot)):
        return f"{obstacle} cannot start over the dead step of a node that stays in the job"
    if obstacle := _loses_cores(snapshot, drop):
        return obstacle
    delay, tasks = _delay(snapshot, policy), _tasks(snapshot, count)
    return Restart(Rung.FEWER, nodes, drop, overlap, delay, tasks, keep, keep_until)


def _worth_keeping(
    snapshot: Snapshot, policy: ResumeSettings, now: float, droppable: Iterable[str]
) -> tuple[tuple[str, ...], float]:
    """Lost nodes to leave in the job for their return, and until when (Unix time).

    Slurm gives a job with GRES no node back that has left it. But a node that is
    declared DOWN takes the whole job with it.
    """
    config, step = snapshot.config, snapshot.step
    if not policy.regrows or config is None or no_overlap(snapshot):
        return (), 0.0
    if config.launches_after_prolog_only:
        return (), 0.0
    faults = snapshot.verdict.faults
    absent = {f.node for f in faults if f.sign in _ABSENT_SIGNS} & set(step.nodes)
    keep = tuple(n for n in droppable if n in absent)
    until = (snapshot.lost_since or now) + config.slurmd_timeout_s - BEFORE_DOWN_S
    enough = len(_healthy(snapshot)) + len(keep) >= step.num_nodes
    if not keep or not enough or until - now < _SHORTEST_WAIT_S:
        return (), 0.0
    return keep, until


def _choose(snapshot: Snapshot, healthy: tuple[str, ...], needed: int) -> tuple[str, ...]:
    """The first good node of the job, then the step's own, then spares; in order.

    Scripts take the first node of the job's NodeList as their master. Spares on which other
    steps run come last, the first node too: the step might wait for their end.
    """
    own = [n for n in healthy if n in snapshot.step.nodes]
    spares = [n for n in healthy if n not in snapshot.step.nodes]
    spares.sort(key=snapshot.busy.__contains__)
    first = [n for n in healthy[:1] if n in own or n not in snapshot.busy]
    ranked = dict.fromkeys([*first, *own, *spares])
    chosen = set(list(ranked)[:needed])
    return tuple(n for n in healthy if n in chosen)


def _grow(snapshot: Snapshot, policy: ResumeSettings) -> Action | str:
    job, config = snapshot.job, snapshot.config
    if job is None or config is None:
        return "Slurm did not say enough about the job"
    if job.tres_gres:
        return "Slurm does not grow a job with GRES"
    if job.exclusive and config.gres_types:
        return "Slurm does not grow an exclusive job where GresTypes is set"
    if not config.permits_expansion:
        return "SchedulerParameters lacks permit_job_expansion"
    if config.resizes_jobs_once:
        return "this release of Slurm changes a job's size only once without slurmdbd"
    if config.makes_extern_steps:
        return "PrologFlags makes extern steps, which stop Slurm from merging jobs"
    if config.launches_after_prolog_only:
        return (
            "with PrologFlags=Alloc, Slurm from 23.02 on starts no step on a node that joins a job"
        )
    healthy = _healthy(snapshot)
    count = snapshot.step.num_nodes - len(healthy)
    if count < 1:
        return "no node is missing"
    if obstacle := _loses_cores(snapshot, _droppable(snapshot)):
        return obstacle
    bad = set(bad_nodes(snapshot)) | snapshot.history.bad_nodes | snapshot.step.excluded
    return Grow(
        count,
        _droppable(snapshot),
        tuple(sorted(bad | set(job.excluded_nodes))),
        healthy,
        _delay(snapshot, policy),
    )


def _requeue(snapshot: Snapshot, _policy: ResumeSettings) -> Action | str:
    job, config = snapshot.job, snapshot.config
    if snapshot.context is not Context.BATCH:
        return "only the script of a batch job can be run again"
    if job is None or config is None:
        return "Slurm did not say enough about the job"
    if not job.requeue:
        return "the job was submitted with --no-requeue, or JobRequeue is 0"
    bad = _bad_for_another_start(snapshot) | set(job.excluded_nodes)
    fast = snapshot.finisher or not config.kills_detached_processes
    # Without the finisher nobody would give a shrunk job its nodes back.
    drop = _droppable(snapshot) if fast else ()
    dead = {f.node for f in snapshot.verdict.faults if f.sign in DEAD_SIGNS}
    return Requeue(
        max(len(job.nodes), snapshot.original_nodes),
        drop,
        tuple(sorted(bad)),
        fast,
        waits_for_nodes=bool(dead & set(job.nodes) - set(drop)),
        lingers=len(snapshot.step.nodes) >= _TREE_NODES and bool(dead & set(snapshot.step.nodes)),
    )


def _new(snapshot: Snapshot, policy: ResumeSettings) -> Action | str:
    bad = _bad_for_another_start(snapshot) | snapshot.step.excluded
    return Reallocate(tuple(sorted(bad)), _delay(snapshot, policy))


def _delay(snapshot: Snapshot, policy: ResumeSettings) -> float:
    """Back-off before the next attempt (s): none after the loss of a machine, or a first hang."""
    if snapshot.verdict.is_hard or snapshot.verdict.cause is Cause.REGROW:
        return 0.0
    streak = snapshot.history.without_progress
    if streak < 1 or (streak == 1 and snapshot.verdict.cause is Cause.HANG):
        return 0.0
    wait = policy.backoff * 2.0 ** min(streak - 1, 32)
    return min(policy.backoff_max, wait * (0.75 + 0.5 * snapshot.jitter))


_OPTIONS = {
    Rung.SAME: _same,
    Rung.SPARE: _spare,
    Rung.GROW: _grow,
    Rung.REQUEUE: _requeue,
    Rung.NEW: _new,
}
