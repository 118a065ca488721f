"""Why an attempt ended. Pure.

srun's exit code alone does not tell (Slurm 22.05 ends with 137, 143 or even 0
after the loss of a node, later versions with 1), so the state of the job, the
evidence on the nodes and the signals that reached the supervisor are weighed.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from hpresume.resume.model import HARD_SIGNS, Cause, NodeFault, Verdict
from hpresume.resume.node_health import HealthFinding, faults_in
from hpresume.slurm.models import Job, JobState

#: What srun ends with when all its tasks got SIGKILL, which is what scancel sends to
#: a step. Tasks that srun itself ends, for -K after one of them failed, get SIGTERM
#: (22.05 and 24.11 alike).
_KILLED = 128 + signal.SIGKILL

_JOB_CAUSES = {
    JobState.TIMEOUT: Cause.TIME_LIMIT,
    JobState.DEADLINE: Cause.TIME_LIMIT,
    JobState.PREEMPTED: Cause.PREEMPTED,
    JobState.CANCELLED: Cause.CANCELLED,
    JobState.NODE_FAIL: Cause.NODE_FAILURE,
}


@dataclass(frozen=True)
class Ending:
    """All that is known of an attempt that ended.

    ``stopped_for`` are the faults for which the supervisor itself ended the
    attempt; ``faults`` what was found on the step's nodes afterwards.
    ``left`` says that the supervisor asked the step to leave marked nodes, or, where
    there are no ``faults``, to make room for a step on more nodes.
    ``hang`` says in words why the supervisor took the training as hung.
    ``cancel_signal`` is the signal by which somebody asked the supervisor to
    stop. ``own_job`` says that the job was known to be ours and running; only
    then does its absence mean something. ``short_of_memory`` are nodes of the
    step on which the kernel killed for lack of memory; ``kills_stragglers`` says
    that srun kills what runs on after the first task has ended (-W). ``findings``
    are what health checks of the step's nodes found after its end.
    """

    exit_code: int
    started: float
    ended: float
    stopped_for: tuple[NodeFault, ...] = ()
    faults: tuple[NodeFault, ...] = ()
    cancel_signal: str = ""
    step_time_limit_s: int = 0
    job: Job | None = None
    slurm_answered: bool = True
    hang: str = ""
    left: bool = False
    short_of_memory: tuple[str, ...] = ()
    kills_stragglers: bool = False
    findings: tuple[HealthFinding, ...] = ()


def classify(ending: Ending) -> Verdict:
    """The verdict on one attempt."""
    job = ending.job
    faults = ending.stopped_for or ending.faults
    if job is not None and job.state in _JOB_CAUSES:
        cause = _JOB_CAUSES[job.state]
        return Verdict(cause, faults, f"job {job.job_id} is {job.state}")
    if job is not None and job.is_being_preempted and ending.exit_code != 0:
        return Verdict(Cause.PREEMPTED, faults, f"job {job.job_id} is being preempted")
    if ending.stopped_for and not ending.cancel_signal:
        return Verdict(Cause.NODE_FAILURE, ending.stopped_for, _words(ending.stopped_for))
    if ending.left and faults and not ending.cancel_signal:
        return Verdict(Cause.NODE_FAILURE, faults, _words(faults))
    if ending.left and not ending.cancel_signal:
        return Verdict(Cause.REGROW, (), "all nodes are there again, and a checkpoint since")
    unhealthy = faults_in(ending.findings, ending.started)
    if ending.hang and not ending.cancel_signal:
        if unhealthy:
            words = f"{ending.hang}; {_words(unhealthy)}"
            return Verdict(Cause.NODE_FAILURE, (*faults, *unhealthy), words)
        return Verdict(Cause.HANG, faults, ending.hang)
    if ending.exit_code == 0 and not any(f.sign in HARD_SIGNS for f in faults):
        return Verdict(Cause.COMPLETED)
    if ending.cancel_signal:
        return Verdict(Cause.CANCELLED, (), f"{ending.cancel_signal} received")
    limit = _time_limit(ending)
    if limit:
        return Verdict(Cause.TIME_LIMIT, (), limit)
    if faults:
        return Verdict(Cause.NODE_FAILURE, faults, _words(faults))
    memory = ", ".join(ending.short_of_memory)
    if ending.exit_code == _KILLED and not memory and not ending.kills_stragglers:
        return Verdict(Cause.CANCELLED, (), "its tasks were sent SIGKILL, as by scancel")
    if job is not None and job.state is JobState.PENDING:
        return Verdict(Cause.UNKNOWN, (), f"job {job.job_id} went back to the queue")
    if not ending.slurm_answered:
        return Verdict(Cause.UNKNOWN, (), "Slurm does not answer")
    if unhealthy:
        words = f"exit code {ending.exit_code}; {_words(unhealthy)}"
        return Verdict(Cause.NODE_FAILURE, unhealthy, words)
    nodes = f"memory ran out on {memory}" if memory else "no sign of a bad node"
    return Verdict(Cause.APPLICATION, (), f"exit code {ending.exit_code}, {nodes}")


def _time_limit(ending: Ending) -> str:
    limit = ending.step_time_limit_s
    if limit and ending.ended - ending.started >= limit:
        return f"the step's time limit of {limit} s"
    job = ending.job
    # In a job that is over, this is the time at which it ended, not its limit.
    runs = job is not None and job.state is JobState.RUNNING
    if job is not None and runs and 0 < job.end_time <= ending.ended:
        return f"the time limit of job {job.job_id}"
    return ""


def _words(faults: tuple[NodeFault, ...]) -> str:
    return "; ".join(f"{f.node} {f.evidence}" for f in faults)
