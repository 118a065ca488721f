"""What is known of auto-resume jobs, and what is done for them, as frozen values.

Times are Unix seconds, spans seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hpresume.recovery.model import JobOn, Outcome
from hpresume.resume.finisher import Finishing
from hpresume.slurm.models import Job, Node
from hpresume.store import Level

#: How the reservations are called that keep the places of a job.
KEEPS = "hpresume-keep-"


@dataclass(frozen=True)
class Guarded:
    """A job whose step is protected, as slurmctld showed it when its supervisor spoke up.

    ``run`` counts its starts, ``host`` runs its batch script.
    """

    job_id: int
    uid: int
    run: int
    host: str
    nodes: tuple[str, ...]
    num_nodes: int
    at: float


class Phase(StrEnum):
    """Stages of a job's way back, in order."""

    KEEPING = "keeping"  # its places are about to be reserved
    LEAVING = "leaving"  # its dead batch host is about to be set DOWN
    QUEUED = "queued"  # until Slurm has taken it back
    STARTING = "starting"  # it may start now
    DONE = "done"


@dataclass(frozen=True)
class Return:
    """The way of one job from a run that is lost to its next one.

    ``lost`` is its batch host where that is what was lost; ``keep`` are the nodes to
    reserve, ``kept`` whether they may be reserved now. ``ready_at`` is when it was seen
    PENDING, ``look_at`` when it is looked at again.
    """

    job_id: int
    uid: int
    run: int
    num_nodes: int
    exclude: tuple[str, ...]
    requested: tuple[str, ...]
    keep: tuple[str, ...]
    lost: str
    phase: Phase
    began: float
    kept: bool = False
    ready_at: float = 0.0
    look_at: float = 0.0

    @property
    def reservation(self) -> str:
        """Name of the reservation of its places."""
        return f"{KEEPS}{self.job_id}"

    @property
    def plan(self) -> Finishing:
        """What it has to look like when it starts again."""
        return Finishing(self.job_id, self.run, self.num_nodes, self.exclude, self.requested)


@dataclass(frozen=True)
class Report:
    """A node that the owner of a running job blames, with the sign and the owner's words."""

    uid: str
    job_id: int
    owner: int
    node: str
    sign: str
    evidence: str
    at: float


@dataclass(frozen=True)
class Pulse:
    """A node whose kernel does not answer: since when, and how often it was asked."""

    since: float
    failed: int


@dataclass(frozen=True)
class Snapshot:
    """All that a decision is made from.

    ``asked`` are the nodes that were probed just now, ``silent`` those of them that
    did not answer. ``nodes``, ``jobs`` and ``holders`` are about those that matter only;
    a job that Slurm does not know is None. ``running`` are all jobs that hold nodes,
    None where that was not asked; so are ``reservations``, those with names of ours.
    ``checking`` are nodes whose health check is under way, ``checked`` when one began
    last, ``outcomes`` their ends.
    """

    guarded: tuple[Guarded, ...] = ()
    returns: tuple[Return, ...] = ()
    reports: tuple[Report, ...] = ()
    asked: frozenset[str] = frozenset()
    silent: Mapping[str, Pulse] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    jobs: Mapping[int, Job | None] = field(default_factory=dict)
    holders: Mapping[str, tuple[JobOn, ...]] = field(default_factory=dict)
    running: frozenset[int] | None = None
    reservations: frozenset[str] | None = None
    checking: frozenset[str] = frozenset()
    checked: Mapping[str, float] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    halted: bool = False


@dataclass(frozen=True)
class Policy:
    """The limits. ``probes`` that fail in a row over ``lost_after_s`` make a host lost.

    ``halt_share``: of the nodes that are asked; with more of them silent, nothing is
    set DOWN. ``keep_s`` is how long places are kept, ``finish_s`` how long a job is
    brought back, ``report_s`` how long a blamed node is waited for until it is free.
    """

    probe_every_s: float = 1.0
    probes: int = 3
    lost_after_s: float = 1.5
    halt_share: float = 0.3
    keep_s: float = 300.0
    finish_s: float = 1800.0
    report_s: float = 600.0
    check_again_s: float = 600.0
    max_checks: int = 2
    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()


# -- actions ---------------------------------------------------------------------


class Effect(StrEnum):
    """What is done in Slurm before a return is written down in its next phase.

    Each may be repeated without harm.
    """

    NONE = "none"
    KEEP = "keep"
    DOWN = "down"
    BRING_BACK = "bring back"
    RELEASE = "release"


@dataclass(frozen=True)
class Forget:
    """These jobs do not run any more."""

    jobs: frozenset[int]


@dataclass(frozen=True)
class Begin:
    """Write a return down; nothing else happens yet."""

    new: Return
    message: str


@dataclass(frozen=True)
class Step:
    """Do something for a return, and write it down as it is then."""

    before: Return
    after: Return
    effect: Effect = Effect.NONE
    event: str = ""
    message: str = ""
    level: Level = Level.INFO


@dataclass(frozen=True)
class Unreserve:
    """Delete a reservation that belongs to no return."""

    name: str


@dataclass(frozen=True)
class Check:
    """Have the health of a blamed node checked, in the background."""

    report: Report


@dataclass(frozen=True)
class SetNode:
    """Take a node out of service; the recovery goes on from there."""

    node: str
    state: str
    reason: str


@dataclass(frozen=True)
class Close:
    """Nothing more comes of a report."""

    report: Report
    message: str
    acted: bool = False


@dataclass(frozen=True)
class Halt:
    """Too many nodes are silent at once (``on``), or no longer."""

    on: bool
    message: str = ""


Action = Forget | Begin | Step | Unreserve | Check | SetNode | Close | Halt
