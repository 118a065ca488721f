"""The ladder, case by case, and what must hold for every snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpresume.config import ResumeSettings
from hpresume.resume.decide import bad_nodes, decide, outlook, stranded
from hpresume.resume.model import (
    Await,
    Cause,
    Context,
    Finish,
    GiveUp,
    Grow,
    History,
    NodeFault,
    Reallocate,
    Requeue,
    Restart,
    Rung,
    Sign,
    Snapshot,
    StepShape,
    Verdict,
)
from hpresume.slurm.models import ClusterConfig, Job, JobState

NOW = 1_000_000.0
POLICY = ResumeSettings()
ANY = replace(POLICY, resume_on="any")

CONFIG = ClusterConfig(
    cluster_name="c",
    version=(24, 11, 5),
    slurmd_timeout_s=300,
    kill_wait_s=30,
    slurmd_port=6818,
    proctrack="proctrack/linuxproc",
    prolog_flags=frozenset(),
    scheduler_parameters=("permit_job_expansion",),
    job_requeue=True,
)
OLD = replace(CONFIG, version=(22, 5, 8))
EARLY = replace(CONFIG, version=(21, 8, 5), slurmdbd=True)
CGROUP = replace(CONFIG, proctrack="proctrack/cgroup", prolog_flags=frozenset({"ALLOC", "CONTAIN"}))
ALLOC = replace(CONFIG, prolog_flags=frozenset({"ALLOC"}))
NO_GROW = replace(CONFIG, scheduler_parameters=())


def job(nodes: str = "n1 n2 n3", *, gpus: bool = True, **fields: object) -> Job:
    names = tuple(nodes.split())
    base = Job(
        7,
        JobState.RUNNING,
        nodes=names,
        num_nodes=len(names),
        batch=True,
        batch_host=names[0],
        requeue=True,
        tres_gres={"gres/gpu": 4} if gpus else {},
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def lost(*nodes: str, sign: Sign = Sign.LOST) -> Verdict:
    return Verdict(Cause.NODE_FAILURE, tuple(NodeFault(n, sign, "gone") for n in nodes))


def snap(
    of: Job | None, where: str, verdict: Verdict, *, code: int = 1, **fields: object
) -> Snapshot:
    nodes = tuple(where.split())
    base = Snapshot(Context.BATCH, verdict, code, StepShape(nodes, len(nodes)), CONFIG, of)
    return replace(base, **fields)  # type: ignore[arg-type]


SPARE_JOB = job("n1 n2 n3 n4")
APP = Verdict(Cause.APPLICATION)
HUNG = Verdict(Cause.HANG, (), "rank 1 is silent")
PATIENT = replace(POLICY, replace_timeout=120.0)
FRUGAL = replace(POLICY, min_nodes=2)
NODES = ("n1", "n2", "n3")
REGROWING = replace(FRUGAL, regrow=True, checkpoint="/ckpt")
SHRINKABLE = StepShape(NODES, 3, tasks_per_node=4)

CASES = [
    # -- nothing to resume
    ("completed", snap(job(), "n1 n2 n3", Verdict(Cause.COMPLETED), code=0), POLICY, Finish),
    ("cancelled", snap(job(), "n1 n2 n3", Verdict(Cause.CANCELLED)), ANY, Finish),
    ("time limit", snap(job(), "n1 n2 n3", Verdict(Cause.TIME_LIMIT)), ANY, Finish),
    ("preempted", snap(job(), "n1 n2 n3", Verdict(Cause.PREEMPTED)), ANY, Finish),
    ("application", snap(job(), "n1 n2 n3", APP), POLICY, Finish),
    ("unknown", snap(job(), "n1 n2 n3", Verdict(Cause.UNKNOWN)), POLICY, Finish),
    # -- limits
    (
        "max_resumes",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3"), history=History(resumes=10)),
        POLICY,
        GiveUp,
    ),
    (
        "breaker",
        snap(SPARE_JOB, "n1 n2 n3", APP, history=History(without_progress=3)),
        ANY,
        GiveUp,
    ),
    ("no time left", snap(job(end_time=NOW + 10), "n1 n2 n3", APP), ANY, GiveUp),
    ("job gone", snap(None, "n1 n2 n3", lost("n3")), POLICY, GiveUp),
    ("job ended", snap(job(state=JobState.NODE_FAIL), "n1 n2 n3", lost("n3")), POLICY, GiveUp),
    ("job requeued", snap(job(state=JobState.PENDING), "n1 n2 n3", lost("n3")), POLICY, GiveUp),
    # -- same nodes
    (
        "any failure, healthy nodes",
        snap(job(), "n1 n2 n3", APP),
        ANY,
        Restart(Rung.SAME, ("n1", "n2", "n3")),
    ),
    (
        "second failure without progress waits",
        snap(job(), "n1 n2 n3", APP, history=History(without_progress=2)),
        ANY,
        Restart(Rung.SAME, ("n1", "n2", "n3"), delay_s=4.0),
    ),
    (
        "a rebooted node is good again, over the dead step",
        snap(job(), "n1 n2 n3", lost("n2", sign=Sign.REBOOTED)),
        POLICY,
        Restart(Rung.SAME, ("n1", "n2", "n3"), overlap=True),
    ),
    (
        "booted, and Slurm starts no step of this job there any more: a spare",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3", sign=Sign.REBOOTED), config=CGROUP),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), ("n3",)),
    ),
    (
        "without a spare: for the job's next run it is good",
        snap(
            job(),
            "n1 n2 n3",
            lost("n3", sign=Sign.REBOOTED),
            config=CGROUP,
            history=History(bad_nodes=frozenset({"n2", "n3"})),
        ),
        POLICY,
        Requeue(3, (), ("n2",), fast=False),
    ),
    (
        "not before Slurm 23.02",
        snap(
            job(),
            "n1 n2 n3",
            lost("n3", sign=Sign.REBOOTED),
            config=replace(CGROUP, version=(22, 5, 8)),
        ),
        POLICY,
        Restart(Rung.SAME, ("n1", "n2", "n3"), overlap=True),
    ),
    (
        "nor is a replacement waited for on which nothing could start",
        snap(job(), "n1 n2 n3", lost("n3"), config=ALLOC),
        PATIENT,
        Requeue(3, ("n3",), ("n3",), fast=True),
    ),
    (
        "nor a node merged in",
        snap(job(gpus=False), "n1 n2 n3", lost("n3"), config=ALLOC),
        POLICY,
        Requeue(3, ("n3",), ("n3",), fast=True),
    ),
    (
        "nor kept for its return",
        snap(job(), "n1 n2 n3", lost("n3"), config=ALLOC, step=SHRINKABLE),
        REGROWING,
        Restart(Rung.FEWER, ("n1", "n2"), ("n3",), tasks=8),
    ),
    # -- spare
    (
        "a spare without other steps is taken first",
        snap(job("n1 n2 n3 n4 n5"), "n1 n2 n3", lost("n3"), busy=frozenset({"n4"})),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n5"), ("n3",)),
    ),
    (
        "one with other steps rather than none",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3"), busy=frozenset({"n4"})),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), ("n3",)),
    ),
    (
        "the first node of the job is left to other steps",
        snap(job("n1 n2 n3 n4 n5"), "n3 n4", lost("n4"), busy=frozenset({"n1", "n2"})),
        POLICY,
        Restart(Rung.SPARE, ("n3", "n5"), ("n4",)),
    ),
    (
        "the node of a shell inside its own job stays in it",
        snap(
            job("n1 n2 n3 n4", batch=False, batch_host=""),
            "n1 n2",
            lost("n1", sign=Sign.FAIL),
            context=Context.ALLOCATION,
            here="n1",
        ),
        POLICY,
        Restart(Rung.SPARE, ("n2", "n3"), overlap=True),
    ),
    (
        "spare",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3")),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), ("n3",)),
    ),
    (
        "the nodes that stay are kept, in the job's order",
        snap(job("n1 n2 n3 n4 n5 n6"), "n1 n3 n5", lost("n3")),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n5"), ("n3",)),
    ),
    (
        "the first node of the job comes first even if it was a spare",
        snap(
            job("n1 n2 n3 n4", batch=False, batch_host=""),
            "n2 n3 n4",
            lost("n3"),
            context=Context.ALLOCATION,
        ),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), ("n3",)),
    ),
    (
        "salloc may lose its first node",
        snap(
            job("n1 n2 n3 n4", batch=False, batch_host=""),
            "n1 n2 n3",
            lost("n1"),
            context=Context.ALLOCATION,
        ),
        POLICY,
        Restart(Rung.SPARE, ("n2", "n3", "n4"), ("n1",)),
    ),
    (
        "two lost, two spares",
        snap(job("n1 n2 n3 n4 n5"), "n1 n2 n3", lost("n2", "n3")),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n4", "n5"), ("n2", "n3")),
    ),
    (
        "a bad spare is no spare",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3"), unusable=frozenset({"n4"})),
        POLICY,
        Requeue(4, ("n3", "n4"), ("n3", "n4"), True),
    ),
    (
        "a spare the user excluded is no spare",
        snap(
            SPARE_JOB,
            "n1 n2 n3",
            lost("n3"),
            step=StepShape(("n1", "n2", "n3"), 3, frozenset({"n4"})),
        ),
        POLICY,
        Requeue(4, ("n3",), ("n3",), True),
    ),
    (
        "a failing batch host stays in the job but not in the step",
        snap(SPARE_JOB, "n1 n2 n3", lost("n1", sign=Sign.FAIL)),
        POLICY,
        Restart(Rung.SPARE, ("n2", "n3", "n4"), (), overlap=True),
    ),
    (
        "a drained node on which another step runs is not taken from it",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3", sign=Sign.DRAIN), busy=frozenset({"n3"})),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), (), overlap=True),
    ),
    (
        "under task/cgroup and Contain",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3"), config=CGROUP),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), ("n3",)),
    ),
    (
        "a second drop on an old Slurm without slurmdbd: train on until Slurm ends the job",
        snap(replace(SPARE_JOB, resize_time=5.0), "n1 n2 n3", lost("n3"), config=OLD),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), (), overlap=True),
    ),
    (
        "the same with srun --exclusive, which cannot overlap",
        snap(
            replace(SPARE_JOB, resize_time=5.0),
            "n1 n2 n3",
            lost("n3"),
            config=OLD,
            step=StepShape(("n1", "n2", "n3"), 3, can_overlap=False),
        ),
        POLICY,
        Requeue(4, (), ("n3",), True, waits_for_nodes=True),
    ),
    # -- before 22.05, where --overlap does not share everything
    (
        "a spare takes over where the dead step is gone with its node",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3"), config=EARLY),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), ("n3",)),
    ),
    (
        "the cores of a shrunk job are lost for a step with -c",
        snap(
            replace(SPARE_JOB, tres_gres={}),
            "n1 n2 n3",
            lost("n3"),
            config=replace(EARLY, scheduler_parameters=()),
            step=StepShape(("n1", "n2", "n3"), 3, exact=True),
        ),
        POLICY,
        Requeue(4, ("n3",), ("n3",), True),
    ),
    (
        "a new node is of no use to it either",
        snap(
            job(gpus=False),
            "n1 n2 n3",
            lost("n3"),
            config=EARLY,
            step=StepShape(("n1", "n2", "n3"), 3, exact=True),
        ),
        POLICY,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "GPUs of a dead step in the job are not to be had",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3"), config=EARLY, haunted=frozenset({"n1"})),
        POLICY,
        Requeue(4, ("n3",), ("n3",), True),
    ),
    (
        "no node is waited for that would come back to a dead step with GPUs",
        snap(job(), "n1 n2 n3", lost("n3"), config=EARLY),
        replace(POLICY, replace_timeout=120.0),
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "nor is one kept for it",
        snap(job(), "n1 n2 n3", lost("n3"), config=EARLY, step=SHRINKABLE),
        REGROWING,
        Restart(Rung.FEWER, ("n1", "n2"), ("n3",), tasks=8),
    ),
    # -- a node with evidence against it, on which slurmd lives
    (
        "it is left for a spare, never taken again",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3", sign=Sign.UNHEALTHY)),
        POLICY,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), ("n3",)),
    ),
    (
        "the batch host stays in the job, alive, and out of the step",
        snap(SPARE_JOB, "n1 n2 n3", lost("n1", sign=Sign.UNHEALTHY)),
        POLICY,
        Restart(Rung.SPARE, ("n2", "n3", "n4"), (), overlap=True),
    ),
    (
        "found earlier, still in the job: no spare",
        snap(SPARE_JOB, "n2 n3 n4", lost("n4"), unusable=frozenset({"n1"})),
        POLICY,
        Requeue(4, ("n4",), ("n1", "n4"), True),
    ),
    (
        "nobody replaces it by waiting: its machine is not gone",
        snap(job(), "n1 n2 n3", lost("n3", sign=Sign.UNHEALTHY)),
        PATIENT,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "a new node is merged in without it",
        snap(job(gpus=False), "n1 n2 n3", lost("n3", sign=Sign.UNHEALTHY)),
        POLICY,
        Grow(1, ("n3",), ("n3",), ("n1", "n2")),
    ),
    (
        "the batch host is kept, and a new node merged in",
        snap(job(gpus=False), "n1 n2 n3", lost("n1", sign=Sign.UNHEALTHY)),
        POLICY,
        Grow(1, (), ("n1",), ("n2", "n3")),
    ),
    (
        "requeued without it at once: it answers, nothing has to be waited for",
        snap(job(), "n1 n2 n3", lost("n1", sign=Sign.UNHEALTHY)),
        POLICY,
        Requeue(3, (), ("n1",), True),
    ),
    # -- replacement under the same name
    (
        "the node may come back",
        snap(job(), "n1 n2 n3", lost("n3"), lost_since=NOW - 2),
        PATIENT,
        Await(("n3",), ("n1", "n2", "n3"), 120.0),
    ),
    (
        "not longer than until Slurm declares it DOWN",
        snap(
            job(),
            "n1 n2 n3",
            lost("n3"),
            lost_since=NOW - 2,
            config=replace(CONFIG, slurmd_timeout_s=60),
        ),
        PATIENT,
        Await(("n3",), ("n1", "n2", "n3"), 43.0),
    ),
    (
        "Slurm would notice too soon",
        snap(
            job(),
            "n1 n2 n3",
            lost("n3"),
            lost_since=NOW - 2,
            config=replace(CONFIG, slurmd_timeout_s=20),
        ),
        PATIENT,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "a spare is taken without waiting",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3")),
        PATIENT,
        Restart(Rung.SPARE, ("n1", "n2", "n4"), ("n3",)),
    ),
    (
        "it did not come back",
        snap(job(), "n1 n2 n3", lost("n3"), failed=((Rung.REPLACE, "too late"),)),
        PATIENT,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "the batch host takes its script with it",
        snap(job(), "n1 n2 n3", lost("n1")),
        PATIENT,
        Requeue(3, (), ("n1",), True, waits_for_nodes=True),
    ),
    (
        "a node that is only marked FAIL does not come back by waiting",
        snap(job(), "n1 n2 n3", lost("n3", sign=Sign.FAIL)),
        PATIENT,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    # -- fewer nodes
    (
        "fewer nodes, tasks in proportion",
        snap(job(), "n1 n2 n3", lost("n3"), step=StepShape(NODES, 3, tasks_per_node=4)),
        FRUGAL,
        Restart(Rung.FEWER, ("n1", "n2"), ("n3",), tasks=8),
    ),
    (
        "a lost node stays in the job for as long as that is safe",
        snap(job(), "n1 n2 n3", lost("n3"), step=SHRINKABLE, lost_since=NOW - 2),
        REGROWING,
        Restart(Rung.FEWER, ("n1", "n2"), (), True, tasks=8, keep=("n3",), keep_until=NOW + 283.0),
    ),
    (
        "no node is kept without a checkpoint to grow back at",
        snap(job(), "n1 n2 n3", lost("n3"), step=SHRINKABLE),
        replace(REGROWING, checkpoint=""),
        Restart(Rung.FEWER, ("n1", "n2"), ("n3",), tasks=8),
    ),
    (
        "no node is kept that somebody has marked",
        snap(job(), "n1 n2 n3", lost("n3", sign=Sign.FAIL), step=SHRINKABLE),
        REGROWING,
        Restart(Rung.FEWER, ("n1", "n2"), ("n3",), tasks=8),
    ),
    (
        "no node is kept shortly before Slurm notices",
        snap(job(), "n1 n2 n3", lost("n3"), step=SHRINKABLE, lost_since=NOW - 281),
        REGROWING,
        Restart(Rung.FEWER, ("n1", "n2"), ("n3",), tasks=8),
    ),
    (
        "no node is kept whose dead step cannot be started over",
        snap(job(), "n1 n2 n3", lost("n3"), step=replace(SHRINKABLE, can_overlap=False)),
        REGROWING,
        Restart(Rung.FEWER, ("n1", "n2"), ("n3",), tasks=8),
    ),
    (
        "no node is kept where its return would not be enough",
        snap(job(), "n1 n2 n3", lost("n3"), step=replace(SHRINKABLE, num_nodes=4)),
        REGROWING,
        Restart(Rung.FEWER, ("n1", "n2"), ("n3",), tasks=8),
    ),
    (
        "again on the same nodes, over a dead step",
        snap(job(), "n1 n2 n3", HUNG, haunted=frozenset({"n3"})),
        POLICY,
        Restart(Rung.SAME, NODES, overlap=True),
    ),
    (
        "nodes that ended their tasks while they were cut off are good again",
        snap(job(), "n1 n2 n3", lost("n2", "n3", sign=Sign.FENCED)),
        POLICY,
        Restart(Rung.SAME, NODES),
    ),
    (
        "all nodes again, over a dead step",
        snap(
            job(),
            "n1 n2",
            Verdict(Cause.REGROW),
            step=replace(SHRINKABLE, nodes=("n1", "n2")),
            haunted=frozenset({"n1", "n2", "n3"}),
        ),
        REGROWING,
        Restart(Rung.SPARE, NODES, overlap=True),
    ),
    (
        "not fewer than the user said",
        snap(job(), "n1 n2 n3", lost("n2", "n3"), step=StepShape(NODES, 3, tasks_per_node=4)),
        FRUGAL,
        Requeue(3, ("n2", "n3"), ("n2", "n3"), True),
    ),
    (
        "a fixed number of tasks",
        snap(job(), "n1 n2 n3", lost("n3")),
        FRUGAL,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "back to full size as soon as the nodes are there",
        snap(job("n1 n2 n5"), "n1 n2", APP, step=StepShape(("n1", "n2"), 3, tasks_per_node=4)),
        replace(FRUGAL, resume_on="any"),
        Restart(Rung.SPARE, ("n1", "n2", "n5")),
    ),
    (
        "still fewer: the same nodes again",
        snap(job("n1 n2"), "n1 n2", APP, step=StepShape(("n1", "n2"), 3, tasks_per_node=4)),
        replace(FRUGAL, resume_on="any"),
        Restart(Rung.SAME, ("n1", "n2"), tasks=8),
    ),
    # -- hangs
    (
        "a hang is resumed at once, on the same nodes",
        snap(job(), "n1 n2 n3", HUNG, history=History(without_progress=1)),
        POLICY,
        Restart(Rung.SAME, ("n1", "n2", "n3")),
    ),
    (
        "a second hang waits a little",
        snap(job(), "n1 n2 n3", HUNG, history=History(without_progress=2)),
        POLICY,
        Restart(Rung.SAME, ("n1", "n2", "n3"), delay_s=4.0),
    ),
    (
        "three hangs without progress",
        snap(job(), "n1 n2 n3", HUNG, history=History(without_progress=3)),
        POLICY,
        GiveUp,
    ),
    # -- grow
    (
        "no spare, no GPUs: grow",
        snap(job(gpus=False), "n1 n2 n3", lost("n3")),
        POLICY,
        Grow(1, ("n3",), ("n3",), ("n1", "n2")),
    ),
    (
        "grow keeps off nodes that failed before",
        snap(job(gpus=False), "n1 n2 n3", lost("n3"), history=History(bad_nodes=frozenset({"n9"}))),
        POLICY,
        Grow(1, ("n3",), ("n3", "n9"), ("n1", "n2")),
    ),
    (
        "expansion is not permitted: requeue",
        snap(job(gpus=False), "n1 n2 n3", lost("n3"), config=NO_GROW),
        POLICY,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "an old Slurm without slurmdbd cannot shrink and grow",
        snap(job(gpus=False), "n1 n2 n3", lost("n3"), config=OLD),
        POLICY,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "an exclusive job does not grow where there are GRES",
        snap(
            job(gpus=False, exclusive=True),
            "n1 n2 n3",
            lost("n3"),
            config=replace(CONFIG, gres_types=("gpu",)),
        ),
        POLICY,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "it can with slurmdbd",
        snap(job(gpus=False), "n1 n2 n3", lost("n3"), config=replace(OLD, slurmdbd=True)),
        POLICY,
        Grow(1, ("n3",), ("n3",), ("n1", "n2")),
    ),
    (
        "growing failed: requeue",
        snap(job(gpus=False), "n1 n2 n3", lost("n3"), failed=((Rung.GROW, "no node came"),)),
        POLICY,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    # -- requeue
    (
        "GPU job without spare",
        snap(job(), "n1 n2 n3", lost("n3")),
        POLICY,
        Requeue(3, ("n3",), ("n3",), True),
    ),
    (
        "back to the size the run began with",
        snap(job(), "n1 n2 n3", lost("n3"), original_nodes=4),
        POLICY,
        Requeue(4, ("n3",), ("n3",), True),
    ),
    (
        "no shrinking where nobody could undo it",
        snap(job(), "n1 n2 n3", lost("n3"), config=CGROUP),
        POLICY,
        Requeue(3, (), ("n3",), False, waits_for_nodes=True),
    ),
    ("--no-requeue", snap(job(requeue=False), "n1 n2 n3", lost("n3")), POLICY, GiveUp),
    (
        "salloc without a way",
        snap(job(batch=False, batch_host=""), "n1 n2 n3", lost("n3"), context=Context.ALLOCATION),
        POLICY,
        GiveUp,
    ),
    (
        "srun --jobid does not requeue somebody else's script",
        snap(job(), "n1 n2 n3", lost("n3"), context=Context.ATTACHED),
        POLICY,
        GiveUp,
    ),
    (
        "switched off",
        snap(SPARE_JOB, "n1 n2 n3", lost("n3")),
        replace(POLICY, ladder=("same",)),
        GiveUp,
    ),
    # -- new allocation
    (
        "srun on its own",
        snap(job(batch=False, batch_host=""), "n1 n2 n3", lost("n3"), context=Context.STANDALONE),
        POLICY,
        Reallocate(("n3",)),
    ),
    (
        "srun on its own, its job already gone",
        snap(None, "n1 n2 n3", lost("n3"), context=Context.STANDALONE),
        POLICY,
        Reallocate(("n3",)),
    ),
]


@pytest.mark.parametrize(
    ("snapshot", "policy", "wanted"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_ladder(snapshot: Snapshot, policy: ResumeSettings, wanted: object) -> None:
    action = decide(snapshot, policy, NOW)
    if isinstance(wanted, type):
        assert isinstance(action, wanted)
    else:
        assert action == wanted


def test_giving_up_names_every_way_that_was_not_there() -> None:
    action = decide(snap(job(requeue=False), "n1 n2 n3", lost("n3")), POLICY, NOW)
    assert isinstance(action, GiveUp)
    for words in ("bad node n3", "2 good nodes", "GRES", "--no-requeue"):
        assert words in action.reason


def test_outlook_ignores_limits_that_may_be_met_again() -> None:
    tired = snap(SPARE_JOB, "n1 n2 n3", APP, history=History(without_progress=99))
    assert isinstance(outlook(tired, POLICY, "n3"), Restart)


def test_outlook_promises_nothing_once_the_resumes_are_used_up() -> None:
    used_up = snap(SPARE_JOB, "n1 n2 n3", APP, history=History(resumes=POLICY.max_resumes))
    assert isinstance(outlook(used_up, POLICY, "n3"), GiveUp)


# -- properties ---------------------------------------------------------------

NAMES = ["n1", "n2", "n3", "n4", "n5", "n6"]


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = NAMES[: draw(st.integers(1, 6))]
    batch = draw(st.booleans())
    of = Job(
        7,
        draw(st.sampled_from(list(JobState))),
        nodes=tuple(nodes),
        num_nodes=len(nodes),
        batch=batch,
        batch_host=nodes[0] if batch else "",
        requeue=draw(st.booleans()),
        end_time=draw(st.sampled_from([0.0, NOW - 5, NOW + 5, NOW + 9999])),
        tres_gres=draw(st.sampled_from([{}, {"gres/gpu": 8}])),
        resize_time=draw(st.sampled_from([0.0, 5.0])),
    )
    step = tuple(n for n in nodes if draw(st.booleans())) or (nodes[0],)
    faults = tuple(
        NodeFault(n, draw(st.sampled_from(list(Sign))), "e") for n in nodes if draw(st.booleans())
    )
    return Snapshot(
        context=draw(st.sampled_from(list(Context))),
        verdict=Verdict(draw(st.sampled_from(list(Cause))), faults),
        exit_code=draw(st.integers(0, 255)),
        step=StepShape(
            step,
            len(step) + draw(st.integers(0, 2)),
            frozenset(n for n in nodes if draw(st.integers(0, 9)) == 0),
            draw(st.booleans()),
            draw(st.integers(0, 2)),
        ),
        config=draw(st.sampled_from([None, CONFIG, OLD, EARLY, CGROUP, ALLOC, NO_GROW])),
        job=draw(st.sampled_from([of, of, of, None])),
        unusable=frozenset(n for n in nodes if draw(st.integers(0, 4)) == 0),
        busy=frozenset(n for n in nodes if draw(st.booleans())),
        history=History(draw(st.integers(0, 12)), draw(st.integers(0, 4))),
        failed=tuple((r, "why") for r in Rung if draw(st.integers(0, 3)) == 0),
        jitter=draw(st.floats(0, 1, exclude_max=True)),
        haunted=frozenset(n for n in nodes if draw(st.integers(0, 3)) == 0),
        here=draw(st.sampled_from(["", "n1", "n3", "login"])),
    )


@settings(max_examples=1500, deadline=None)
@given(
    snapshots(),
    st.sampled_from(
        [POLICY, ANY, PATIENT, FRUGAL, REGROWING, replace(ANY, ladder=("same", "spare"))]
    ),
)
def test_what_holds_for_every_decision(snapshot: Snapshot, policy: ResumeSettings) -> None:
    action = decide(snapshot, policy, NOW)
    assert action == decide(snapshot, policy, NOW)
    cause, of = snapshot.verdict.cause, snapshot.job
    if cause in (Cause.COMPLETED, Cause.CANCELLED, Cause.TIME_LIMIT, Cause.PREEMPTED):
        assert isinstance(action, Finish)
    if isinstance(action, Finish | GiveUp):
        assert action.exit_code == snapshot.exit_code
        assert action.reason
        return
    # From here on something is started again.
    assert snapshot.history.resumes < policy.max_resumes
    assert snapshot.history.without_progress < policy.max_no_progress
    bad = set(bad_nodes(snapshot))
    good_again = stranded(snapshot) - snapshot.unusable  # but for steps of this job
    tried = {rung for rung, _ in snapshot.failed}
    if isinstance(action, Reallocate):
        assert snapshot.context is Context.STANDALONE
        assert bad - good_again <= set(action.exclude)
        assert Rung.NEW not in tried
        return
    assert of is not None
    assert of.state in (JobState.RUNNING, JobState.SUSPENDED)
    assert snapshot.context is not Context.STANDALONE
    if isinstance(action, Await):
        assert policy.replace_timeout >= action.limit_s > 0
        assert set(action.missing) <= bad & set(action.nodes)
        return
    assert not {of.batch_host, snapshot.here} & set(action.drop)
    assert set(action.drop) <= bad & set(of.nodes)
    assert len(action.drop) < len(of.nodes)
    if isinstance(action, Restart):
        assert action.rung not in tried
        assert not set(action.keep) & (set(action.drop) | set(action.nodes))
        assert not action.keep or (action.overlap and action.keep_until > NOW)
        assert action.overlap or not snapshot.haunted & set(action.nodes)
        if action.rung is Rung.FEWER:
            assert policy.min_nodes <= len(action.nodes)
            assert action.tasks == len(action.nodes) * snapshot.step.tasks_per_node or (
                len(action.nodes) == snapshot.step.num_nodes
            )
        elif action.rung is Rung.SPARE:
            assert len(action.nodes) == snapshot.step.num_nodes
        assert not set(action.nodes) & (bad | snapshot.step.excluded)
        assert list(action.nodes) == [n for n in of.nodes if n in action.nodes]
        remaining = [n for n in of.nodes if n not in bad | snapshot.step.excluded]
        left_to_others = remaining[0] in snapshot.busy and remaining[0] not in snapshot.step.nodes
        if action.rung is Rung.SPARE and not left_to_others:
            assert action.nodes[0] == remaining[0]
    if isinstance(action, Grow):
        assert not of.tres_gres
        assert len(action.keep) + action.count == snapshot.step.num_nodes
        assert not set(action.keep) & set(action.exclude)
    if isinstance(action, Requeue):
        assert of.requeue
        assert snapshot.context is Context.BATCH
        assert action.fast or not action.drop
        assert action.num_nodes >= len(of.nodes)
