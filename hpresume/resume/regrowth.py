"""What a supervisor needs for growing back: the nodes it kept, and looks at the way back.

Loaded only where the user has set ``regrow``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hpresume.errors import SlurmError
from hpresume.resume.kept import KeptNodes
from hpresume.resume.launch import Launch
from hpresume.resume.model import Restart, Snapshot
from hpresume.resume.node_check import NodeHealth
from hpresume.resume.observe import Aftermath, Baseline, take_aftermath
from hpresume.resume.progress import newest_checkpoint
from hpresume.resume.regrow import LOOK_S, RegrowWatch, Sight, full_start
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import ClusterConfig, Job


class Regrowth:
    """The way back to all nodes of one step.

    ``check`` finds out about the health of nodes that came back; ``drop`` takes nodes
    out of a job whose step runs on; ``standing`` is the snapshot of a step that is
    well, from its baseline and a later look at Slurm.
    """

    def __init__(
        self,
        launch: Launch,
        gateway: SlurmGateway,
        check: Callable[[Job, ClusterConfig, Sequence[str]], tuple[NodeHealth, ...]],
        drop: Callable[[Job, Sequence[str]], bool],
        standing: Callable[[Baseline, Aftermath], Snapshot],
    ) -> None:
        self._launch = launch
        self._gateway = gateway
        self._standing = standing
        self.kept = KeptNodes(check, drop)
        self._nodes: tuple[str, ...] = ()
        self._looked_at = 0.0

    def watch(self, base: Baseline, full_nodes: int) -> RegrowWatch | None:
        """What looks for the way back of an attempt; None where it has all its nodes."""
        self.kept.forget(base.step.nodes)
        if len(base.step.nodes) >= full_nodes:
            return None
        self._nodes = ()
        return RegrowWatch(lambda: self.look(base))

    def look(self, base: Baseline) -> Sight:
        """Whether the step of ``base`` could start on all nodes; called in a thread.

        The checkpoint is looked at every time, nodes and Slurm now and then.

        Raises:
            SlurmError: Slurm does not answer.
        """
        saved = newest_checkpoint(self._launch.settings)  # first: the rest may take a while
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S or not self._nodes:
            self._nodes = ()
            self._nodes = self._full_start(base)
            self._looked_at = now
        return Sight(self._nodes, saved)

    def _full_start(self, base: Baseline) -> tuple[str, ...]:
        after = take_aftermath(self._gateway, base.job.job_id, base.step.nodes, base.config)
        if not after.answered:
            raise SlurmError(after.trouble)
        if after.job is None or after.nodes is None or after.config is None:
            return ()
        away = self.kept.away(after.job, after.nodes, after.config)
        self.kept.give_up(after.job, time.time())
        snapshot = self._standing(base, after)
        snapshot = replace(snapshot, unusable=snapshot.unusable | away)
        start = full_start(snapshot, self._launch.settings, time.time())
        return start.nodes if isinstance(start, Restart) else ()

    def away(self, after: Aftermath, config: ClusterConfig | None) -> frozenset[str]:
        """Kept nodes that cannot be used in a recovery: not back yet, or lost again."""
        if not self.kept.names or after.nodes is None or config is None:
            return frozenset()
        return self.kept.away_now(after.nodes, config)

    def close(self, job_id: int | None) -> None:
        """Leave no dead node in the job: declared DOWN, it would take the job with it."""
        if job_id is None or not self.kept.names:
            return
        try:
            job = self._gateway.job(job_id)
        except SlurmError:
            return
        if not job.is_over:
            self.kept.give_up(job, float("inf"))
