"""What recovery sees and does, as frozen values. Times are Unix seconds, spans seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hpresume.providers.model import Machine
from hpresume.recovery.reasons import Kind
from hpresume.slurm.models import Node
from hpresume.store import Level


def lately(moment: float, within_s: float, now: float) -> bool:
    """Whether something was done within the last ``within_s``; not if the clock was set back."""
    return 0.0 <= now - moment < within_s


class Origin(StrEnum):
    """Why a node is worked on."""

    #: Somebody's order: a reason, or ``hpresume replace``.
    ORDER = "order"
    #: An order that a health check of hpresume gave.
    HEALTH = "health"
    #: The node went DOWN by itself.
    DOWN = "down"
    #: Its machine is silent, and every job on it waits for it to come back.
    SILENT = "silent"


class Phase(StrEnum):
    """Stages of a recovery, in order; the last four are ends."""

    WAITING = "waiting"  # for its jobs, for its turn
    TERMINATING = "terminating"
    LAUNCHING = "launching"
    REBOOTING = "rebooting"
    BOOTING = "booting"  # until slurmd has registered; NodeAddr is refreshed on the way
    CHECKING = "checking"
    RETURNING = "returning"
    ABANDONING = "abandoning"  # what a last attempt has left is given up
    QUARANTINING = "quarantining"
    RETURNED = "returned"
    QUARANTINED = "quarantined"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        """Whether nothing more is done."""
        return self in _ENDS

    @property
    def is_acting(self) -> bool:
        """Whether the machine may be affected, so that there is no way back."""
        return not self.is_end and self is not Phase.WAITING


_ENDS = frozenset({Phase.RETURNED, Phase.QUARANTINED, Phase.CANCELLED, Phase.FAILED})


@dataclass(frozen=True)
class Recovery:
    """One recovery of one node, as the store keeps it.

    ``uid`` makes the client tokens: attempt 2 launches with ``hpr-<uid>-2``.
    ``slurmd_start`` is the start of slurmd that Slurm knew before the machine was
    touched: another one means that it has booted. ``times`` are those at which the
    phases began; ``retry_at`` is when a call that failed is made again, ``tries``
    counts its failures in this phase. ``note`` says for people what is waited for.
    """

    uid: str
    node: str
    kind: Kind
    origin: Origin
    reason: str
    phase: Phase
    since: float
    began: float
    attempt: int = 1
    slurmd_start: float = 0.0
    machine_id: str = ""
    address: str = ""
    retry_at: float = 0.0
    tries: int = 0
    note: str = ""
    acted_at: float = 0.0
    ended_at: float = 0.0
    times: Mapping[str, float] = field(default_factory=dict)

    @property
    def token(self) -> str:
        """The client token of the attempt's launch."""
        return f"{TOKEN_PREFIX}{self.uid}-{self.attempt}"


#: How the client tokens of recoveries begin.
TOKEN_PREFIX = "hpr-"  # noqa: S105 (no secret)


class Call(StrEnum):
    """What is asked of the provider or the node; each may be repeated without harm."""

    CLEAR = "clear"  # terminate every machine of the node, and wait until they are gone
    LAUNCH = "launch"
    REBOOT = "reboot"
    DESCRIBE = "describe"
    CHECK = "check"
    SWEEP = "sweep"  # terminate machines that launches of ours left behind


class Trouble(StrEnum):
    """How a call failed."""

    TRANSIENT = "transient"
    CAPACITY = "capacity"
    REFUSED = "refused"
    #: The health check found a fault.
    FAULT = "fault"


@dataclass(frozen=True)
class Outcome:
    """The end of a call. ``words`` say what went wrong, or what a check found."""

    call: Call
    trouble: Trouble | None = None
    words: str = ""
    machine: Machine | None = None


@dataclass(frozen=True)
class JobOn:
    """A job that holds a node. ``waits``: its owner's step waits for this node to come back."""

    job_id: int
    completing: bool = False
    waits: bool = False


@dataclass(frozen=True)
class Snapshot:
    """Everything a decision is made from, observed in one go.

    ``jobs`` are the jobs on nodes by node, ``silent`` since when a node's kernel
    does not answer, ``maintenance`` the nodes in maintenance reservations,
    ``active`` the recoveries that have not ended, ``past`` those that ended
    lately, the oldest first. ``in_flight`` are the recoveries with a call under
    way, ``outcomes`` the ends of calls by recovery; ``notices`` keys of what has
    been said. ``held`` are the nodes that provisioning has in hand, ``by_hand`` those
    of clusters whose NodeRecovery is None: only people's orders count there.
    ``watched_since`` is since when passes have followed each other: before that this
    controller was not there, Slurm did not answer, or the clock was set.
    """

    nodes: Mapping[str, Node]
    jobs: Mapping[str, tuple[JobOn, ...]] = field(default_factory=dict)
    silent: Mapping[str, float] = field(default_factory=dict)
    maintenance: frozenset[str] = frozenset()
    active: tuple[Recovery, ...] = ()
    past: tuple[Recovery, ...] = ()
    in_flight: Mapping[str, Call] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    notices: frozenset[str] = frozenset()
    swept_at: float = 0.0
    held: frozenset[str] = frozenset()
    by_hand: frozenset[str] = frozenset()
    watched_since: float = 0.0

    def began(self, moment: float, now: float) -> float:
        """A moment that was written down; not a later one than now, if the clock was set back."""
        return moment if moment <= now else min(self.watched_since, now)

    def is_over(self, moment: float, limit_s: float, now: float) -> bool:
        """Whether a time limit is over, of which only the time counts in which we could see."""
        return now - max(self.began(moment, now), self.watched_since) >= limit_s


@dataclass(frozen=True)
class Policy:
    """What the configuration says; see docs/recovery.md for each.

    ``allowed`` and ``denied`` are node names, ``allowed`` None for all nodes.
    """

    automatic: bool = True
    down_grace_s: float = 60.0
    silent_for_s: float = 5.0
    down_steps: tuple[Kind, ...] = (Kind.REBOOT, Kind.REPLACE)
    max_attempts: int = 3
    attempts_window_s: float = 86400.0
    max_concurrent: int = 2
    max_per_hour: int = 10
    halt_share: float = 0.3
    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()
    wait_jobs_s: float = 7 * 86400.0
    completing_s: float = 120.0
    terminate_s: float = 600.0
    launch_s: float = 3600.0
    reboot_s: float = 300.0
    boot_s: float = 900.0
    check_s: float = 300.0
    retry_s: float = 5.0
    max_retry_s: float = 120.0
    describe_every_s: float = 10.0
    sweep_every_s: float = 300.0
    can_reboot: bool = True


# -- actions ---------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """Write a new recovery down; nothing else happens yet."""

    node: str
    kind: Kind
    origin: Origin
    reason: str


@dataclass(frozen=True)
class Change:
    """Write the recovery down as it is to be, with what is to be told about it."""

    before: Recovery
    after: Recovery
    event: str = ""
    message: str = ""
    level: Level = Level.INFO


@dataclass(frozen=True)
class Hold:
    """Take the node out of service with a reason of our own, so that nothing starts there."""

    recovery: Recovery
    reason: str


@dataclass(frozen=True)
class Make:
    """Make a call, in the background."""

    recovery: Recovery
    call: Call


@dataclass(frozen=True)
class SetAddress:
    """Tell slurmctld where the node is now."""

    recovery: Recovery
    address: str


@dataclass(frozen=True)
class Resume:
    """Give the node back to Slurm."""

    recovery: Recovery


@dataclass(frozen=True)
class SetQuarantine:
    """Take the node out of service for good, with the story as its reason."""

    recovery: Recovery
    reason: str


@dataclass(frozen=True)
class Say:
    """Tell something once: an event, a log line, and for a node a comment if it has none."""

    key: str
    event: str
    message: str
    node: str = ""
    comment: str = ""
    level: Level = Level.WARNING
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Unsay:
    """What a notice was about is over: it may be told again another time."""

    key: str
    node: str = ""


@dataclass(frozen=True)
class Sweep:
    """Look for machines that nobody needs, in the background."""


Action = Begin | Change | Hold | Make | SetAddress | Resume | SetQuarantine | Say | Unsay | Sweep
