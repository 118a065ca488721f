"""What Slurm's error texts mean: a table, and nothing but the table decides.

The texts are those of ``src/common/slurm_errno.c`` (branches slurm-21.08 to
slurm-26.05), of the client tools and of the C library. They are matched
anywhere in what a tool printed; the first row that fits wins, so the rows
stand in order of how cautious the caller has to be.
"""

from __future__ import annotations

import re
from functools import cache

from hpresume.errors import (
    SlurmDeniedError,
    SlurmError,
    SlurmNotFoundError,
    SlurmTransientError,
)

#: Slurm cannot answer now; the same call may succeed in a moment.
_TRANSIENT = (
    r"DB index is being set",  # ESLURM_JOB_SETTING_DB_INX (until 24.05)
    r"Unable to contact slurm controller",  # SLURMCTLD_COMMUNICATIONS_*
    r"Rate limit exceeded",  # SLURMCTLD_COMMUNICATIONS_BACKOFF, HARD_DROP (23.02)
    r"Slurm backup controller in standby mode",  # ESLURM_IN_STANDBY_MODE
    r"Controller is in standby mode",  # ESLURM_IN_STANDBY_USE_BACKUP
    r"Socket timed out on send/recv operation",  # SLURM_PROTOCOL_SOCKET_IMPL_TIMEOUT
    r"Zero Bytes were transmitted or received",  # SLURM_PROTOCOL_SOCKET_ZERO_BYTES_SENT
    r"Header lengths are longer than data received",  # ESLURM_PROTOCOL_INCOMPLETE_PACKET
    r"Communication (?:connection|shutdown) failure",  # SLURM_COMMUNICATIONS_*
    r"Message (?:send|receive) failure",
    r"Unexpected missing socket error",
    r"Connection timed out",  # the C library's, and 26.05's CONNECT/READ/WRITE_TIMEOUT
    r"Connection forced closed by quiesce timeout",  # 26.05
    r"Connection (?:refused|reset by peer)",
    r"(?:No route to host|Network is unreachable|Broken pipe)",
    r"Resource temporarily unavailable",
    r"Interrupted system call",
    r"Unable to create job record, try again",  # ESLURM_ERROR_ON_DESC_TO_RECORD_COPY
    r"Job can not be altered now, try again later",  # ESLURM_TRANSITION_STATE_NO_UPDATE
    r"temporarily unable to accept job",  # salloc, when slurmctld is full
    r"PrologSlurmctld is still running",  # ESLURM_PROLOG_RUNNING
    r"Unable to connect to database",  # ESLURM_DB_CONNECTION
    # munged restarts: the tool's own socket error, or slurmctld's view of it
    r"Failed to access \".*munge.*\"",
    r"Munge (?:en|de)code failed",
    r"Protocol authentication error",  # SLURM_PROTOCOL_AUTHENTICATION_ERROR
    r"Authentication credential expired",  # ESLURM_AUTH_EXPIRED
)

#: The job, step, node or reservation does not exist (any more).
_NOT_FOUND = (
    r"Invalid job id specified",  # ESLURM_INVALID_JOB_ID
    r"Invalid node name specified",  # ESLURM_INVALID_NODE_NAME
    r"Invalid partition name specified",  # ESLURM_INVALID_PARTITION_NAME
    r"Requested reservation is invalid",  # ESLURM_RESERVATION_INVALID
    r"(?:Job|Job step|Node|Reservation) \S+ not found",  # scontrol's own words
    r"Could not find job",
    r"No job steps found",
)

#: Slurm or its configuration says no, and will say so again.
_DENIED = (
    r"Access/permission denied",  # ESLURM_ACCESS_DENIED
    r"Invalid user id\b",  # ESLURM_USER_ID_MISSING: a job of somebody else
    r"Requested operation is presently disabled",  # ESLURM_DISABLED
    r"Requested operation not supported on this system",  # ESLURM_NOT_SUPPORTED
    r"has allocated GRES",
    r"Only batch jobs are accepted or processed",  # ESLURM_BATCH_ONLY
    r"Job step already exists",  # ESLURMD_STEP_EXISTS: merging a donor with steps
    r"Job dependency problem",  # ESLURM_DEPENDENCY
    r"User's group not permitted to use this partition",
    r"Access denied to requested reservation",  # ESLURM_RESERVATION_ACCESS
    r"Invalid account or account/partition combination",  # ESLURM_INVALID_ACCOUNT
    r"Invalid qos specification",  # ESLURM_INVALID_QOS
    r"Job violates accounting/QOS policy",  # ESLURM_ACCOUNTING_POLICY
    r"System submissions disabled",  # ESLURM_SUBMISSIONS_DISABLED
    r"Operation not permitted on individual component",  # ESLURM_NOT_WHOLE_HET_JOB
    r"Cannot modify scrontab jobs",  # ESLURM_CANNOT_MODIFY_CRON_JOB
    r"Operation not permitted",
    r"Permission denied",
)

#: The job or step ended before the call reached it: no reason to fail a cancel.
ALREADY_OVER = (
    r"Job/step already completing or completed"  # ESLURM_ALREADY_DONE
    r"|Job has already finished"  # ESLURM_JOB_FINISHED
)

#: The job waits already: no reason to fail a repeated requeue.
ALREADY_PENDING = r"Job is pending execution"  # ESLURM_JOB_PENDING

#: A tool found no slurm.conf, and no slurmctld in DNS to get one from: its last line, after
#: others that speak of DNS alone (seen with 22.05).
NO_CONFIGURATION = "Could not establish a configuration source"

#: The job waits for slurmdbd: see ``ClusterConfig.resizes_jobs_once``.
DB_INDEX = r"DB index is being set"

TABLE: tuple[tuple[str, type[SlurmError]], ...] = (
    *((pattern, SlurmTransientError) for pattern in _TRANSIENT),
    *((pattern, SlurmNotFoundError) for pattern in _NOT_FOUND),
    *((pattern, SlurmDeniedError) for pattern in _DENIED),
)


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], type[SlurmError]], ...]:
    """Compiled at the first error: that takes longer than most calls to Slurm."""
    return tuple((re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in TABLE)


def classify(text: str) -> tuple[type[SlurmError], str]:
    """The error class for what a tool printed, and the line that says so.

    If no row fits: ``SlurmError``, and the first line that calls itself an
    error or else the last line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern, kind in _compiled():
        for line in lines:
            if pattern.search(line):
                return kind, line
    errors = [line for line in lines if "error:" in line]
    return SlurmError, (errors or lines[-1:] or [""])[0]
