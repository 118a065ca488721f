"""Lost nodes that stay in the job, so that the step can take them again when they are back.

A node that slurmctld declares DOWN takes the whole job with it; so each is kept
for a limited time only, and then dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from hpresume.resume.evidence import look_once
from hpresume.resume.execute import CHECK_AGAIN_S
from hpresume.resume.node_check import NodeHealth
from hpresume.resume.report import listing, say
from hpresume.slurm.models import ClusterConfig, Job, Node


class KeptNodes:
    """The lost nodes of one step that are waited for while it goes on without them."""

    def __init__(
        self,
        check: Callable[[Job, ClusterConfig, Sequence[str]], tuple[NodeHealth, ...]],
        drop: Callable[[Job, Sequence[str]], bool],
    ) -> None:
        self._check = check
        self._drop = drop
        self._until: dict[str, float] = {}
        self._fit: set[str] = set()
        self._checked_at: dict[str, float] = {}
        self._told: set[str] = set()

    @property
    def names(self) -> frozenset[str]:
        """All of them, back or not."""
        return frozenset(self._until)

    def keep(self, nodes: Sequence[str], until: float) -> None:
        """Keep ``nodes`` in the job until then (Unix time)."""
        for node in nodes:
            self._until[node] = until
            self._fit.discard(node)
            self._checked_at.pop(node, None)

    def forget(self, nodes: Sequence[str]) -> None:
        """The step runs on them again, or they have left the job."""
        for node in nodes:
            self._until.pop(node, None)

    def away(self, job: Job, nodes: Mapping[str, Node], config: ClusterConfig) -> frozenset[str]:
        """Those on which nothing can be started: still gone, or back and ill.

        Takes half a second for one that is gone; a node that has come back is
        checked first.
        """
        self.forget([n for n in self._until if n not in job.nodes])
        names = [n for n in self._until if n in nodes]
        gone = {f.node for f in look_once(names, nodes, config, lone=True)}
        gone |= {n for n in names if not nodes[n].is_usable}
        self._fit -= gone
        back = [n for n in names if n not in gone and n not in self._fit]
        self._examine(job, config, back)
        return self.names - self._fit

    def away_now(self, nodes: Mapping[str, Node], config: ClusterConfig) -> frozenset[str]:
        """As ``away``, by what is known: in a recovery nothing is waited for."""
        fit = [n for n in self._fit if n in self._until and n in nodes]
        lost = {f.node for f in look_once(fit, nodes, config, lone=True)}
        lost |= {n for n in fit if not nodes[n].is_usable}
        return frozenset(n for n in self._until if n not in self._fit or n in lost)

    def _examine(self, job: Job, config: ClusterConfig, names: Sequence[str]) -> None:
        now = time.monotonic()
        due = [n for n in names if now - self._checked_at.get(n, -CHECK_AGAIN_S) >= CHECK_AGAIN_S]
        if not due:
            return
        found = self._check(job, config, due)
        self._checked_at.update(dict.fromkeys(due, time.monotonic()))
        self._fit.update(set(due) - {health.node for health in found if health.faults})
        for health in found:
            say(health.text)

    def give_up(self, job: Job, now: float) -> None:
        """Drop those whose time is over and that are not back; ``now`` is Unix time."""
        over = [n for n, t in self._until.items() if t <= now and n not in self._fit]
        over = [n for n in over if n in job.nodes]
        if over and self._drop(job, over):
            say(f"{listing(over)} did not come back in time: dropped from job {job.job_id}")
            self.forget(over)
