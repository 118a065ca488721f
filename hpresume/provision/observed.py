"""What was seen of the world before a plan, and the work that a plan asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hpresume.providers.model import Machine
from hpresume.provision.checking import Run
from hpresume.provision.model import Change, Node


@dataclass(frozen=True)
class SlurmNode:
    """One node as Slurm has it.

    ``is_ready``: its slurmd is registered and answers. ``is_drained``: no job runs on it and
    none will. ``needs_resume``: held out of service by a mark of ours, or by Slurm after a reboot.
    """

    is_ready: bool = False
    is_drained: bool = False
    needs_resume: bool = False


@dataclass(frozen=True)
class Observed:
    """One look at the world; None stands for what could not be seen this time.

    ``machines_at`` is when the look at the provider began (Unix s). ``configured`` are the
    nodes that slurm.conf has of ours as last applied, with their addresses, ``slurm`` their
    states, ``slurm_at`` when the look at them began; ``has_slurm`` is False where no Slurm is
    managed. ``is_cleared``: slurm.conf has nothing of this cluster, or is given up. ``held`` are
    host names in the hands of node recovery, ``alarms`` the names that are in alarm.
    """

    machines: Mapping[str, Machine] | None = None
    machines_at: float = 0.0
    has_slurm: bool = False
    configured: Mapping[str, str] | None = None
    slurm: Mapping[str, SlurmNode] | None = None
    is_cleared: bool = True
    slurm_at: float = 0.0
    held: frozenset[str] = frozenset()
    alarms: frozenset[str] | None = None


class Task(StrEnum):
    """One kind of work on one node."""

    LAUNCH = "launch"
    VERIFY = "verify"  # the provider's list lacks its machine: ask for it by id
    INSPECT = "inspect"
    SCRIPTS = "scripts"
    DRAIN = "drain"
    RESUME = "resume"
    REBOOT = "reboot"
    TERMINATE = "terminate"


@dataclass(frozen=True)
class Work:
    """Something to do outside; to do it twice is the same as once."""

    task: Task
    node: Node


@dataclass(frozen=True)
class Plan:
    """What changes at once, what is to be done then, and machines that belong to nobody."""

    change: Change
    work: tuple[Work, ...] = ()
    strays: tuple[str, ...] = field(default=())
    checks: tuple[Run, ...] = ()
