"""Frozen types of the supervisor: what was seen, what is known, what to do.

Node names are plain host names; times are seconds on the clock the caller
passes as ``now``; durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hpresume.slurm.models import ClusterConfig, Job


class Context(StrEnum):
    """Where the protected srun runs; it decides which rungs exist."""

    BATCH = "batch"  # inside the batch script of the job
    ALLOCATION = "allocation"  # salloc: the job has no script that could be run again
    ATTACHED = "attached"  # srun --jobid from outside the job
    STANDALONE = "standalone"  # srun makes its own allocation


class Cause(StrEnum):
    """Why an attempt ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    PREEMPTED = "preempted"
    APPLICATION = "application failure"
    NODE_FAILURE = "node failure"
    HANG = "hang"
    REGROW = "growing back"  # nothing failed: a step with fewer nodes takes all again
    UNKNOWN = "unknown"


class Sign(StrEnum):
    """What speaks against a node."""

    LOST = "lost"  # silent, and its address does not answer
    DOWN = "down"  # slurmctld says so
    FAIL = "fail"  # somebody marked it FAIL
    DRAIN = "drain"  # somebody drained it during the attempt
    FROZEN = "frozen"  # silent for long, though its kernel answers
    REBOOTED = "rebooted"  # it is a new boot, the tasks are gone
    UNHEALTHY = "unhealthy"  # a health check found a fault of the machine; the node answers
    FENCED = "fenced"  # it was cut off for long and has ended its tasks itself


#: Signs after which nothing on the node can do anything for the step.
DEAD_SIGNS = frozenset({Sign.LOST, Sign.DOWN, Sign.FROZEN})

#: Signs that blame the machine beyond doubt; such an attempt does not count
#: against the breaker, which is there to stop applications that loop.
HARD_SIGNS = frozenset(
    {Sign.LOST, Sign.DOWN, Sign.FROZEN, Sign.REBOOTED, Sign.UNHEALTHY, Sign.FENCED}
)

#: Signs of a node that lost its tasks, but is good again.
PASSING_SIGNS = frozenset({Sign.REBOOTED, Sign.FENCED})


@dataclass(frozen=True)
class NodeFault:
    """One node, one sign, and the evidence in words."""

    node: str
    sign: Sign
    evidence: str


@dataclass(frozen=True)
class Verdict:
    """Why the attempt ended, on which evidence."""

    cause: Cause
    faults: tuple[NodeFault, ...] = ()
    text: str = ""

    @property
    def is_hard(self) -> bool:
        """Whether a machine is to blame beyond doubt."""
        return self.cause is Cause.NODE_FAILURE and any(f.sign in HARD_SIGNS for f in self.faults)


@dataclass(frozen=True)
class StepShape:
    """What the step asked for, from its record and from srun's options.

    ``nodes`` are those of the last attempt. ``excluded`` are the user's ``-x``.
    ``num_nodes`` is what it was first started with; after it went on with fewer,
    ``nodes`` are less. ``can_overlap`` is False with srun's ``--exclusive``, which
    excludes ``--overlap``. ``tasks_per_node`` is 0 where the number of tasks cannot
    follow that of nodes. ``exact``: it takes a part of its nodes' cores (``-c``, ``--exact``).
    """

    nodes: tuple[str, ...]
    num_nodes: int
    excluded: frozenset[str] = frozenset()
    can_overlap: bool = True
    tasks_per_node: int = 0
    exact: bool = False


@dataclass(frozen=True)
class History:
    """What the journal says of the earlier attempts of this step.

    ``resumes`` counts attempts after the first, over all runs of the job.
    ``without_progress`` counts attempts in a row, the one that just ended
    included, that made none and cannot blame a machine.
    """

    resumes: int = 0
    without_progress: int = 0
    bad_nodes: frozenset[str] = frozenset()


class Rung(StrEnum):
    """The ways to go on, in the order in which they are tried."""

    SAME = "same"
    SPARE = "spare"
    REPLACE = "replace"
    GROW = "grow"
    FEWER = "fewer"
    REQUEUE = "requeue"
    NEW = "new"


@dataclass(frozen=True)
class Snapshot:
    """All that a decision is made from.

    ``job`` is None where Slurm no longer knows it. ``unusable`` are nodes of
    the job on which Slurm would start nothing good. ``busy`` are nodes on which
    other steps of the job run. ``failed`` holds the rungs that were tried
    in this recovery, with what went wrong. ``jitter`` is a number in [0, 1).
    ``original_nodes`` is the node count with which this run of the job began.
    ``lost_since`` is the Unix time at which a lost node was last known to be well.
    ``haunted`` are nodes on which slurmctld still books a dead attempt of this
    step: it waits for word of a machine that is gone. Only ``--overlap`` gets past.
    ``finisher``: a controller brings a requeued job back, whatever dies here.
    ``here`` is the node on which this supervisor runs, empty where it is none.
    """

    context: Context
    verdict: Verdict
    exit_code: int
    step: StepShape
    config: ClusterConfig | None = None
    job: Job | None = None
    unusable: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()
    history: History = field(default_factory=History)
    failed: tuple[tuple[Rung, str], ...] = ()
    jitter: float = 0.5
    original_nodes: int = 0
    lost_since: float = 0.0
    haunted: frozenset[str] = frozenset()
    finisher: bool = False
    here: str = ""


@dataclass(frozen=True)
class Finish:
    """Nothing to resume: end with the step's own code."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """Something to resume, and no way: end with the step's own code, say why."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class Restart:
    """Start the step again inside the allocation, on ``nodes``.

    ``drop``: nodes to take out of the job first. ``overlap``: a dead step
    still holds resources in slurmctld; start over it. ``tasks``: number of
    tasks where it is not the user's (0: it is). ``keep``: lost nodes that stay in
    the job until ``keep_until`` (Unix time), since they may come back.
    """

    rung: Rung
    nodes: tuple[str, ...]
    drop: tuple[str, ...] = ()
    overlap: bool = False
    delay_s: float = 0.0
    tasks: int = 0
    keep: tuple[str, ...] = ()
    keep_until: float = 0.0


@dataclass(frozen=True)
class Await:
    """Wait for ``missing`` nodes to come back under their names, then start on ``nodes``.

    At most ``limit_s``, after which slurmctld might declare them DOWN and end the job.
    """

    missing: tuple[str, ...]
    nodes: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True)
class Grow:
    """Drop nodes, merge ``count`` new ones into the job, then start again."""

    count: int
    drop: tuple[str, ...]
    exclude: tuple[str, ...]
    keep: tuple[str, ...]
    delay_s: float = 0.0


@dataclass(frozen=True)
class Requeue:
    """Give the job back to Slurm's queue, without ``exclude``.

    ``fast``: the job is shrunk by ``drop`` first and a detached process brings
    it back to ``num_nodes`` and starts it at once; else Slurm's own delays hold.
    ``waits_for_nodes``: a dead node stays in the job, and Slurm requeues only
    once it has declared it DOWN. ``lingers``: the step is so large that its end
    is reported up a tree of slurmstepd, in which a dead node is waited for.
    """

    num_nodes: int
    drop: tuple[str, ...]
    exclude: tuple[str, ...]
    fast: bool
    waits_for_nodes: bool = False
    lingers: bool = False


@dataclass(frozen=True)
class Reallocate:
    """Start srun again with a new allocation that avoids ``exclude``."""

    exclude: tuple[str, ...]
    delay_s: float = 0.0


Action = Finish | GiveUp | Restart | Await | Grow | Requeue | Reallocate
