"""What is known of one cluster's Slurm: looks at it, and the entries that slurm.conf is to have."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hpresume.errors import HpresumeError
from hpresume.provision.model import State
from hpresume.provision.observed import SlurmNode
from hpresume.provision.ports import SlurmEntries, SlurmSide

_log = logging.getLogger(__name__)

#: A cluster that is deleted waits so long for slurm.conf to be cleared (s): its Slurm may be gone.
CLEAR_S = 60.0

#: Least time between two times at which nodes that Slurm has lost are put there again (s).
PUT_BACK_S = 300.0


@dataclass(frozen=True)
class Surroundings:
    """What the views of all clusters share.

    ``submit`` runs a call in a thread, ``woken`` is called at its end. ``entries`` are what a
    state calls for. ``tell`` gets a cluster's id, what keeps slurm.conf from being changed (empty:
    nothing does any more) and what kept it before; ``lost`` its id and the nodes that Slurm had and
    has no more. ``look_s`` is between two looks,
    ``configure_s`` between two changes of slurm.conf, ``retry_s`` after one that failed (s).
    """

    submit: Callable[[Callable[[], None]], None]
    woken: Callable[[], None]
    clock: Callable[[], float]
    entries: Callable[[State], SlurmEntries]
    tell: Callable[[str, str, str], None]
    lost: Callable[[str, frozenset[str]], None]
    look_s: float
    configure_s: float
    retry_s: float


class SlurmView:
    """One cluster's Slurm, ``side``; None where it is not managed.

    ``configured`` are the nodes that slurm.conf has of ours as last applied, with their addresses,
    ``nodes`` all nodes as Slurm has them, None while that is not known, ``seen_at`` when the look
    at them began (Unix s).
    """

    def __init__(self, cluster_id: str, side: SlurmSide | None, around: Surroundings) -> None:
        self.side = side
        self.configured: Mapping[str, str] | None = None
        self.nodes: Mapping[str, SlurmNode] | None = None
        self.seen_at = 0.0
        self._cluster_id = cluster_id
        self._around = around
        self._looking = False
        self._looked_at = float("-inf")
        self._configuring = False
        self._configure_after = float("-inf")
        self._configured_at = 0.0
        #: Nodes that Slurm was seen to have since the last change of slurm.conf.
        self._had: frozenset[str] = frozenset()
        self._put_back_after = float("-inf")
        self._entries: SlurmEntries | None = None
        self._problem = ""
        self._failing_since: float | None = None

    def is_cleared(self, state: State) -> bool:
        """Whether slurm.conf has nothing of the cluster, or is given up."""
        return (
            self.side is None
            or state.cluster.controller_up_at is None
            or self._entries == SlurmEntries()
            or self._failing_s >= CLEAR_S
        )

    @property
    def _failing_s(self) -> float:
        """For how long slurm.conf could not be changed (s)."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    def look_soon(self) -> None:
        """What was seen is outdated: the next look waits for nothing."""
        self._looked_at = float("-inf")

    def look(self) -> None:
        """Begin a look where it is time for one."""
        now = time.monotonic()
        side = self.side
        if side is None or self._looking or now - self._looked_at < self._around.look_s:
            return
        self._looking, self._looked_at = True, now

        def look() -> None:
            begun = self._around.clock()
            try:
                self.nodes, self.seen_at = side.look(), begun
            except HpresumeError as error:
                self.nodes = None
                _log.info("slurm of %s: %s", self._cluster_id, error)
            finally:
                self._looking = False
                self._around.woken()

        self._around.submit(look)

    def configure(self, state: State) -> None:
        """Have the entries put into slurm.conf, where that is not under way and its pause over."""
        side = self.side
        if side is None or self._configuring or state.cluster.controller_up_at is None:
            return
        wanted = self._around.entries(state)
        now = time.monotonic()
        lost = self._lost() if now >= self._put_back_after else frozenset()
        if (wanted == self._entries and not lost) or now < self._configure_after:
            return
        if lost:
            # Seldom: each may restart slurmctld, and whoever took them out may do it again.
            self._put_back_after = now + PUT_BACK_S
            self._around.lost(self._cluster_id, lost)
        before = self._entries or SlurmEntries()
        gone = wanted.gone | (before.names - wanted.names)
        entries = replace(wanted, gone=gone, before=before.partitions)
        self._configuring = True

        def configure() -> None:
            try:
                side.configure(entries)
                self._entries = entries
                self.configured = {entry.name: entry.address for entry in entries.nodes}
                self._had, self._configured_at = frozenset(), self._around.clock()
                self.look_soon()
                self._failing_since = None
                self._tell("")
                self._configure_after = time.monotonic() + self._around.configure_s
            except HpresumeError as error:
                self._configure_after = time.monotonic() + self._around.retry_s
                self._put_back_after = float("-inf")
                self._failing_since = self._failing_since or now
                self._tell(str(error))
            finally:
                self._configuring = False
                self._around.woken()

        self._around.submit(configure)

    def _lost(self) -> frozenset[str]:
        """Nodes that Slurm had and has no more: somebody else has changed slurm.conf.

        One that it never had is none of them: putting it there again would not help.
        """
        nodes = self.nodes
        if nodes is None or self.seen_at <= self._configured_at:
            return frozenset()
        self._had |= set(self.configured or ()) & set(nodes)
        return self._had - set(nodes)

    def _tell(self, problem: str) -> None:
        before, self._problem = self._problem, problem
        if problem or before:
            self._around.tell(self._cluster_id, problem, before)
