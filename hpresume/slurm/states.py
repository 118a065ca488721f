"""States of nodes and jobs, from the words that Slurm's tools print."""

from __future__ import annotations

from functools import lru_cache

from hpresume.slurm.models import JobState
from hpresume.slurm.values import EMPTY, duration, seconds

#: One letter behind the base state (``sinfo``, and ``scontrol`` in places).
_NODE_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}

#: ``JobState=`` shows one word: a flag hides the base state under it.
_BASE_UNDER_FLAG = {
    "CONFIGURING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "POWER_UP_NODE": JobState.RUNNING,
    "EXPEDITING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "STAGE_OUT": JobState.OTHER,
    "REVOKED": JobState.OTHER,
    "LAUNCH_FAILED": JobState.FAILED,
}

#: What the reason of an ended job says about its base state.
_BASE_BY_REASON = {
    "NodeDown": JobState.NODE_FAIL,
    "JobLaunchFailure": JobState.BOOT_FAIL,
    "TimeLimit": JobState.TIMEOUT,
    "InactiveLimit": JobState.TIMEOUT,
    "NonZeroExitCode": JobState.FAILED,
    "SystemFailure": JobState.FAILED,
    "OutOfMemory": JobState.OUT_OF_MEMORY,
    "DeadLine": JobState.DEADLINE,
}


@lru_cache(maxsize=1024)
def node_states(text: str) -> frozenset[str]:
    """The tokens of a node's ``State=``, with the letters turned into flags."""
    tokens = set()
    for item in text.upper().split("+"):
        word = item
        while word and word[-1] in _NODE_SUFFIXES:
            tokens.add(_NODE_SUFFIXES[word[-1]])
            word = word[:-1]
        if word:
            tokens.add(word)
    return frozenset(tokens)


def job_state(word: str, values: dict[str, str]) -> tuple[JobState, frozenset[str]]:
    """Base state and flags of a job for the one word that ``scontrol`` shows.

    ``COMPLETING`` hides the base state. It is inferred from the job's times
    (a requeued job has a start to come and no run time), reason and exit code.
    Wrong guesses are possible among the states of an ended job.
    """
    word = word.strip().upper()
    if word in JobState.__members__:
        return JobState[word], frozenset()
    if word == "COMPLETING":
        return _base_while_completing(values), frozenset({word})
    return _BASE_UNDER_FLAG.get(word, JobState.OTHER), frozenset({word} if word else ())


def _base_while_completing(values: dict[str, str]) -> JobState:
    start, end = seconds(values.get("StartTime", "")), seconds(values.get("EndTime", ""))
    if duration(values.get("RunTime", "")) == 0 and not (start and start <= end < start + 60):
        return JobState.PENDING
    reason = values.get("Reason", "")
    if reason in _BASE_BY_REASON:
        return _BASE_BY_REASON[reason]
    if values.get("PreemptTime", "None") not in EMPTY:
        return JobState.PREEMPTED
    status, _, by_signal = values.get("ExitCode", "").partition(":")
    if by_signal not in ("", "0"):
        return JobState.CANCELLED
    return JobState.COMPLETED if status == "0" else JobState.FAILED
