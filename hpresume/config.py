"""The settings in force, as one frozen object; ``settings`` says where they come from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpresume.settings import SETTINGS

#: From the silence of a node to the decision that it is lost (s): it is asked, and so is Slurm.
_DECISION_S = 3.0


def _default(name: str) -> Any:
    return SETTINGS[name][0]


@dataclass(frozen=True)
class ResumeSettings:
    """What a user or an administrator can choose about resuming a step."""

    resume_on: str = _default("resume_on")
    max_resumes: int = _default("max_resumes")
    max_no_progress: int = _default("max_no_progress")
    min_uptime: float = _default("min_uptime")
    checkpoint: str = _default("checkpoint")
    backoff: float = _default("backoff")
    backoff_max: float = _default("backoff_max")
    heartbeat: float = _default("heartbeat")
    heartbeat_timeout: float = _default("heartbeat_timeout")
    fence_timeout: float = _default("fence_timeout")
    watch_delay: float = _default("watch_delay")
    grow_timeout: float = _default("grow_timeout")
    replace_timeout: float = _default("replace_timeout")
    min_nodes: int = _default("min_nodes")
    regrow: bool = _default("regrow")
    heartbeat_file: str = _default("heartbeat_file")
    hang_timeout: float = _default("hang_timeout")
    hang_grace: float = _default("hang_grace")
    output_timeout: float = _default("output_timeout")
    health_check: float = _default("health_check")
    frozen_timeout: float = _default("frozen_timeout")
    grace: str = _default("grace")
    min_time_left: float = _default("min_time_left")
    ladder: tuple[str, ...] = _default("ladder")
    journal_dir: str = _default("journal_dir")
    controller: str = _default("controller")
    slurm_backend: str = _default("slurm_backend")

    @property
    def silence_s(self) -> float:
        """Silence after which a node that does not answer is taken as lost (s)."""
        return self.heartbeat_timeout or 2.0 * self.heartbeat

    @property
    def fence_s(self) -> float:
        """The lease of a node's agent (s): 0.0 without ``fence_timeout``.

        Never so short that a node is fenced of which the supervisor may still hear.
        """
        shortest = self.silence_s + _DECISION_S
        return max(self.fence_timeout, shortest) if self.fence_timeout else 0.0

    @property
    def regrows(self) -> bool:
        """Whether a step with fewer nodes grows back at its next checkpoint."""
        return self.regrow and bool(self.checkpoint) and self.min_nodes > 0

    @property
    def grace_s(self) -> float:
        """Time a step has to end after the signal of ``grace`` (s); 0.0 without it."""
        return float(self.grace.partition("@")[2] or 0)


def describe_settings() -> tuple[tuple[str, Any, str], ...]:
    """Name, default and meaning of every setting, in order."""
    return tuple((name, default, doc) for name, (default, _, doc) in SETTINGS.items())


def state_dir(environ: Mapping[str, str], settings: ResumeSettings) -> str:
    """Directory of the journals, shared by all hosts of the cluster."""
    if settings.journal_dir:
        return os.path.expanduser(settings.journal_dir)
    base = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        base = (home if os.path.isabs(home) else os.path.expanduser("~")) + "/.local/state"
    if not os.path.isabs(base):
        base = os.getcwd()  # an account without any home
    return base + "/hpresume"
