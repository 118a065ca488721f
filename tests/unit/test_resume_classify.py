"""Why an attempt ended, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpresume.resume.classify import Ending, classify
from hpresume.resume.model import Cause, NodeFault, Sign, Verdict
from hpresume.resume.node_health import HealthFinding
from hpresume.slurm.models import Job, JobState

STARTED = 1_000_000.0
LOST = NodeFault("n3", Sign.LOST, "is lost")
DRAINED = NodeFault("n2", Sign.DRAIN, "was drained")
XID = HealthFinding("n2", "kernel-xid", "fail", "XID 79", "reboot", STARTED + 90)
WARNED = replace(XID, check="gpu-temperature", action="none")
RUNNING = Job(7, JobState.RUNNING, end_time=STARTED + 3600)
PREEMPTED = replace(RUNNING, start_time=STARTED - 10, preempt_time=STARTED + 90)
AGAIN = replace(RUNNING, start_time=STARTED - 10, preempt_time=STARTED - 100)


def ending(code: int, **fields: object) -> Ending:
    base = Ending(code, STARTED, STARTED + 100, job=RUNNING)
    return replace(base, **fields)  # type: ignore[arg-type]


def job(state: JobState, **fields: object) -> Job:
    return replace(RUNNING, state=state, **fields)  # type: ignore[arg-type]


CASES = [
    # -- plain endings
    ("zero", ending(0), Cause.COMPLETED),
    ("one, nodes well", ending(1), Cause.APPLICATION),
    ("killed by a signal, nodes well", ending(139), Cause.APPLICATION),
    ("ended by srun after one task failed", ending(143), Cause.APPLICATION),
    ("killed, memory ran out", ending(137, short_of_memory=("n2",)), Cause.APPLICATION),
    ("killed, srun waits for no one", ending(137, kills_stragglers=True), Cause.APPLICATION),
    ("zero, the job unknown", ending(0, job=None), Cause.COMPLETED),
    ("one, the job unknown", ending(1, job=None), Cause.APPLICATION),
    ("one, Slurm silent", ending(1, job=None, slurm_answered=False), Cause.UNKNOWN),
    ("zero, Slurm silent", ending(0, job=None, slurm_answered=False), Cause.COMPLETED),
    # -- nodes
    ("stopped for a lost node", ending(137, stopped_for=(LOST,)), Cause.NODE_FAILURE),
    ("stopped for it, code 0", ending(0, stopped_for=(LOST,)), Cause.NODE_FAILURE),
    ("stopped for it, Slurm silent", ending(1, stopped_for=(LOST,), job=None), Cause.NODE_FAILURE),
    ("failed, a node found lost", ending(1, faults=(LOST,)), Cause.NODE_FAILURE),
    ("failed by SIGTERM, a node found lost", ending(143, faults=(LOST,)), Cause.NODE_FAILURE),
    ("failed by SIGKILL, a node found lost", ending(137, faults=(LOST,)), Cause.NODE_FAILURE),
    ("failed, a node drained meanwhile", ending(1, faults=(DRAINED,)), Cause.NODE_FAILURE),
    # srun of 22.05 may end with 0 after the loss of a node (slurm-facts.md).
    ("zero, a node found lost", ending(0, faults=(LOST,)), Cause.NODE_FAILURE),
    ("zero, a lost and a drained node", ending(0, faults=(DRAINED, LOST)), Cause.NODE_FAILURE),
    ("completed although a node was drained", ending(0, faults=(DRAINED,)), Cause.COMPLETED),
    ("the job failed with its node", ending(1, job=job(JobState.NODE_FAIL)), Cause.NODE_FAILURE),
    # -- preemption with a grace time, in which the ranks end by themselves
    ("failed in the grace", ending(143, job=PREEMPTED), Cause.PREEMPTED),
    ("failed in it, a node found lost", ending(1, job=PREEMPTED, faults=(LOST,)), Cause.PREEMPTED),
    ("zero in it", ending(0, job=PREEMPTED), Cause.COMPLETED),
    ("failed, an earlier run was preempted", ending(1, job=AGAIN), Cause.APPLICATION),
    # -- evidence from health checks
    ("failed, a node has evidence against it", ending(1, findings=(XID,)), Cause.NODE_FAILURE),
    ("zero, with evidence", ending(0, findings=(XID,)), Cause.COMPLETED),
    ("a mere warning", ending(1, findings=(WARNED,)), Cause.APPLICATION),
    (
        "the check itself failed",
        ending(1, findings=(replace(XID, result="unknown"),)),
        Cause.APPLICATION,
    ),
    (
        "evidence from before the attempt",
        ending(1, findings=(replace(XID, since=STARTED - 61),)),
        Cause.APPLICATION,
    ),
    (
        "evidence that the kernel's clock puts a little before it",
        ending(1, findings=(replace(XID, since=STARTED - 59),)),
        Cause.NODE_FAILURE,
    ),
    (
        "cancelled while nodes were checked",
        ending(1, findings=(XID,), cancel_signal="SIGTERM"),
        Cause.CANCELLED,
    ),
    (
        "the time limit comes before evidence",
        ending(143, findings=(XID,), step_time_limit_s=100),
        Cause.TIME_LIMIT,
    ),
    ("scancel of the step comes before it", ending(137, findings=(XID,)), Cause.CANCELLED),
    ("a hang with evidence", ending(137, hang="silent", findings=(XID,)), Cause.NODE_FAILURE),
    ("a hang, all nodes well", ending(137, hang="silent", findings=(WARNED,)), Cause.HANG),
    # -- somebody wanted it
    ("SIGTERM to the supervisor", ending(143, cancel_signal="SIGTERM"), Cause.CANCELLED),
    ("Ctrl-C", ending(130, cancel_signal="SIGINT"), Cause.CANCELLED),
    (
        "cancelled while a node was lost too",
        ending(1, cancel_signal="SIGTERM", faults=(LOST,)),
        Cause.CANCELLED,
    ),
    (
        "asked to end while a lost node kept srun from ending",
        ending(137, cancel_signal="SIGTERM", stopped_for=(LOST,)),
        Cause.CANCELLED,
    ),
    ("asked to end, ended well", ending(0, cancel_signal="SIGTERM"), Cause.COMPLETED),
    ("scancel of the step", ending(137), Cause.CANCELLED),
    ("scancel of the job", ending(137, job=job(JobState.CANCELLED)), Cause.CANCELLED),
    (
        "scancel of the job while a node was lost",
        ending(137, job=job(JobState.CANCELLED), stopped_for=(LOST,)),
        Cause.CANCELLED,
    ),
    # -- Slurm wanted it
    ("time limit of the job", ending(1, job=job(JobState.TIMEOUT)), Cause.TIME_LIMIT),
    ("deadline of the job", ending(1, job=job(JobState.DEADLINE)), Cause.TIME_LIMIT),
    (
        "the job is at its end time, and still called running",
        ending(143, job=replace(RUNNING, end_time=STARTED + 100)),
        Cause.TIME_LIMIT,
    ),
    (
        "before the end time",
        ending(1, job=replace(RUNNING, end_time=STARTED + 101)),
        Cause.APPLICATION,
    ),
    (
        "the job of an srun on its own is over with its step",
        ending(1, job=job(JobState.FAILED, end_time=STARTED + 99)),
        Cause.APPLICATION,
    ),
    ("no end time", ending(1, job=replace(RUNNING, end_time=0.0)), Cause.APPLICATION),
    ("time limit of the step", ending(143, step_time_limit_s=100), Cause.TIME_LIMIT),
    ("within the step's limit", ending(1, step_time_limit_s=101), Cause.APPLICATION),
    ("preempted", ending(143, job=job(JobState.PREEMPTED)), Cause.PREEMPTED),
    (
        "preempted while a node was lost",
        ending(1, job=job(JobState.PREEMPTED), stopped_for=(LOST,)),
        Cause.PREEMPTED,
    ),
    ("back in the queue", ending(1, job=job(JobState.PENDING)), Cause.UNKNOWN),
    # -- somebody asked the step to leave
    ("it leaves to grow back", ending(137, left=True), Cause.REGROW),
    ("it ends well when it leaves to grow back", ending(0, left=True), Cause.REGROW),
    (
        "cancelled while it leaves to grow back",
        ending(143, left=True, cancel_signal="SIGTERM"),
        Cause.CANCELLED,
    ),
    (
        "a node is lost while it leaves to grow back",
        ending(137, left=False, stopped_for=(LOST,)),
        Cause.NODE_FAILURE,
    ),
    # -- states of the job that say no more than the code
    ("the job failed", ending(1, job=job(JobState.FAILED)), Cause.APPLICATION),
    ("out of memory", ending(1, job=job(JobState.OUT_OF_MEMORY)), Cause.APPLICATION),
]


@pytest.mark.parametrize(("given", "cause"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_cause(given: Ending, cause: Cause) -> None:
    assert classify(given).cause is cause


def test_every_cause_that_can_be_told_is_in_the_table() -> None:
    assert {case[2] for case in CASES} == set(Cause)


def test_the_verdict_carries_nodes_and_evidence() -> None:
    assert classify(ending(1, faults=(LOST, DRAINED))) == Verdict(
        Cause.NODE_FAILURE, (LOST, DRAINED), "n3 is lost; n2 was drained"
    )


def test_why_the_supervisor_stopped_it_comes_before_what_was_found_later() -> None:
    verdict = classify(ending(137, stopped_for=(LOST,), faults=(DRAINED,)))
    assert verdict.faults == (LOST,)
    failed = ending(1, job=job(JobState.NODE_FAIL), stopped_for=(LOST,), faults=(DRAINED,))
    assert classify(failed).faults == (LOST,)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (ending(3), "exit code 3, no sign of a bad node"),
        (ending(3, short_of_memory=("n1", "n2")), "exit code 3, memory ran out on n1, n2"),
        (
            ending(3, findings=(XID,)),
            "exit code 3; n2 fails health check kernel-xid (XID 79; action: reboot)",
        ),
        (ending(137, hang="rank 1 silent", findings=(XID,)), "rank 1 silent; n2 fails health"),
        (ending(137), "sent SIGKILL, as by scancel"),
        (ending(1, job=job(JobState.TIMEOUT)), "job 7 is TIMEOUT"),
        (ending(130, cancel_signal="SIGINT"), "SIGINT received"),
        (ending(1, step_time_limit_s=100), "time limit of 100 s"),
        (ending(1, job=job(JobState.PENDING)), "went back to the queue"),
        (ending(1, job=None, slurm_answered=False), "Slurm does not answer"),
    ],
)
def test_the_verdict_says_why(given: Ending, words: str) -> None:
    assert words in classify(given).text


@pytest.mark.parametrize(
    ("verdict", "hard"),
    [
        (Verdict(Cause.NODE_FAILURE, (LOST,)), True),
        (Verdict(Cause.NODE_FAILURE, (DRAINED, LOST)), True),
        (Verdict(Cause.NODE_FAILURE, (NodeFault("n1", Sign.DOWN, ""),)), True),
        (Verdict(Cause.NODE_FAILURE, (NodeFault("n1", Sign.REBOOTED, ""),)), True),
        (Verdict(Cause.NODE_FAILURE, (NodeFault("n1", Sign.UNHEALTHY, ""),)), True),
        (Verdict(Cause.NODE_FAILURE, (DRAINED,)), False),
        (Verdict(Cause.NODE_FAILURE, (NodeFault("n1", Sign.FAIL, ""),)), False),
        (Verdict(Cause.NODE_FAILURE), False),
        (Verdict(Cause.CANCELLED, (LOST,)), False),
    ],
)
def test_only_the_certain_loss_of_a_machine_is_hard(verdict: Verdict, hard: bool) -> None:
    assert verdict.is_hard is hard


# -- properties ------------------------------------------------------------------------

FAULTS = st.lists(
    st.builds(NodeFault, st.sampled_from(["n1", "n2"]), st.sampled_from(Sign), st.just("e")),
    max_size=2,
).map(tuple)
ENDINGS = st.builds(
    Ending,
    st.integers(0, 255),
    st.just(STARTED),
    st.sampled_from([STARTED, STARTED + 50, STARTED + 9999]),
    FAULTS,
    FAULTS,
    st.sampled_from(["", "SIGTERM"]),
    st.sampled_from([0, 60]),
    st.none()
    | st.builds(
        Job, st.just(7), st.sampled_from(JobState), end_time=st.sampled_from([0.0, STARTED + 60])
    ),
    st.booleans(),
)


@settings(deadline=None)
@given(ENDINGS)
def test_what_holds_for_every_ending(given: Ending) -> None:
    verdict = classify(given)
    assert verdict.cause is not Cause.HANG
    if verdict.cause is Cause.COMPLETED:
        assert given.exit_code == 0
        # What was found later does not count where the supervisor itself ended the attempt.
        assert not Verdict(Cause.NODE_FAILURE, given.stopped_for or given.faults).is_hard
    else:
        assert verdict.text
    if verdict.cause is Cause.NODE_FAILURE and not verdict.faults:
        assert given.job is not None
        assert given.job.state is JobState.NODE_FAIL
    if given.job is not None and given.job.state in (JobState.CANCELLED, JobState.PREEMPTED):
        assert verdict.cause in (Cause.CANCELLED, Cause.PREEMPTED)
