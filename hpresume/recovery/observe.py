"""Everything a decision needs, in one go; one failure and there is no snapshot."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hpresume.errors import SlurmError, SlurmNotFoundError
from hpresume.recovery import table
from hpresume.recovery.calls import Calls
from hpresume.recovery.check import RESERVATION
from hpresume.recovery.model import JobOn, Origin, Phase, Policy, Recovery, Snapshot
from hpresume.resume.evidence import look_once
from hpresume.resume.waits import WAITS_FOR
from hpresume.slurm import nodeset
from hpresume.slurm.admin import AdminGateway
from hpresume.slurm.models import ClusterConfig, Node
from hpresume.store import Store
from hpresume.store.holds import Holds

#: This part's name among those that have nodes in hand.
OWNER = "recovery"

#: Nodes of which one has to answer before others count as silent.
_WITNESSES = 3

#: With a longer pause between two observations, something was missed, or the clock was set (s).
_GAP_S = 120.0

#: Most nodes that one job can wait for: any user may write anything there.
_MOST_WAITED = 1000

_WAITS = re.compile(re.escape(WAITS_FOR) + r"(\S+)")


#: (names, nodes, configuration) → those whose kernel does not answer, though others do.
Look = Callable[[Sequence[str], Mapping[str, Node], ClusterConfig], Collection[str]]


def lost(names: Sequence[str], nodes: Mapping[str, Node], config: ClusterConfig) -> list[str]:
    """Ask slurmd's ports from this host."""
    return [fault.node for fault in look_once(names, nodes, config)]


@dataclass
class Observer:
    """The eyes of one controller; remembers since when nodes are silent."""

    gateway: AdminGateway
    store: Store
    calls: Calls
    policy: Policy
    look: Look = lost
    holds: Holds = field(default_factory=Holds)
    by_hand: Callable[[], frozenset[str]] = frozenset
    silent: dict[str, float] = field(default_factory=dict)
    swept_at: float = 0.0
    watched_since: float = 0.0
    _observed_at: float = float("-inf")
    _config: ClusterConfig | None = None

    def hold(self) -> None:
        """Have in hand what the table says is acted on. Raises StoreError."""
        with self.store.read() as session:
            active = table.active(session)
        self._hold(active)

    def observe(self, now: float) -> Snapshot:
        """What is known at ``now`` (Unix s). Raises SlurmError, StoreError."""
        with self.store.read() as session:
            active = table.active(session)
            past = table.past(session, now - max(self.policy.attempts_window_s, 3600.0))
            notices = table.notices(session)
        # Before Slurm is asked: whether or not it answers, these nodes are ours.
        held = self._hold(active)
        nodes = self.gateway.nodes()
        self._confirm_missing([r.node for r in active if r.node not in nodes])
        interesting = {recovery.node for recovery in active}
        interesting |= {name for name, node in nodes.items() if node.is_down or node.is_failing}
        waits = self._waits() if self.policy.automatic or interesting else {}
        interesting |= {name for names in waits.values() for name in names}
        jobs = self._jobs(interesting, waits) if interesting else {}
        self._look(nodes, self._suspects(jobs, active), now)
        maintenance = self._maintenance() if interesting else frozenset()
        if not 0.0 <= now - self._observed_at <= _GAP_S:
            self.watched_since = now
        self._observed_at = now
        # Last: what has been taken must not be lost with an observation that fails.
        in_flight, outcomes = self.calls.take()
        return Snapshot(
            nodes=nodes,
            jobs=jobs,
            silent=dict(self.silent),
            maintenance=maintenance,
            active=active,
            past=past,
            in_flight=in_flight,
            outcomes=outcomes,
            notices=notices,
            swept_at=self.swept_at,
            held=held,
            by_hand=self.by_hand(),
            watched_since=self.watched_since,
        )

    def _confirm_missing(self, names: Sequence[str]) -> None:
        """Ask for the nodes alone: a recovery ends for good with its node."""
        for name in names:
            with contextlib.suppress(SlurmNotFoundError):
                self.gateway.nodes([name])
                raise SlurmError(f"Slurm knows node {name}, and left it out of its list")

    def _hold(self, active: Iterable[Recovery]) -> frozenset[str]:
        """Have in hand what is acted on; what others have.

        A recovery that only waits leaves its node to others, until it takes it.
        """
        taken = self.holds.of(OWNER)
        acting = {r.node for r in active if r.phase.is_acting or r.node in taken}
        return self.holds.keep(OWNER, acting)

    def _waits(self) -> dict[int, frozenset[str]]:
        """Nodes that running jobs wait for, in their owners' own words."""
        found: dict[int, frozenset[str]] = {}
        for job_id in self.gateway.commented(WAITS_FOR):
            names = waited_for(self.gateway.comment(job_id))
            if names:
                found[job_id] = names
        return found

    def _jobs(
        self, interesting: Iterable[str], waits: Mapping[int, frozenset[str]]
    ) -> dict[str, tuple[JobOn, ...]]:
        found: dict[str, list[JobOn]] = {}
        wanted = set(interesting)
        for holder in self.gateway.holders():
            for name in wanted.intersection(holder.nodes):
                waiting = name in waits.get(holder.job_id, ()) and not holder.completing
                found.setdefault(name, []).append(JobOn(holder.job_id, holder.completing, waiting))
        return {name: tuple(jobs) for name, jobs in found.items()}

    def _suspects(
        self, jobs: Mapping[str, Sequence[JobOn]], active: Iterable[Recovery]
    ) -> frozenset[str]:
        working = {recovery.node for recovery in active if recovery.phase.is_acting}
        looked = {name for name, held in jobs.items() if all(job.waits for job in held)}
        looked |= {
            recovery.node
            for recovery in active
            if recovery.phase is Phase.WAITING and recovery.origin is Origin.SILENT
        }
        return frozenset(looked - working)

    def _look(self, nodes: Mapping[str, Node], suspects: frozenset[str], now: float) -> None:
        """Ask the kernels of nodes that may be dead."""
        suspects = suspects & nodes.keys()
        if not suspects:
            self.silent.clear()
            return
        if self._config is None:
            self._config = self.gateway.config()
        others = (name for name, node in nodes.items() if node.is_usable and name not in suspects)
        witnesses = [name for _, name in zip(range(_WITNESSES), others, strict=False)]
        found = suspects.intersection(self.look([*suspects, *witnesses], nodes, self._config))
        self.silent = {name: self.silent.get(name, now) for name in sorted(found)}

    def _maintenance(self) -> frozenset[str]:
        return frozenset(
            name
            for one in self.gateway.reservations()
            if one.active and one.is_maintenance and not one.name.startswith(RESERVATION)
            for name in one.nodes
        )


def waited_for(comment: str) -> frozenset[str]:
    """The nodes that a job's comment says its step waits for. Pure."""
    match = _WAITS.search(comment)
    try:
        return frozenset(nodeset.expand(match[1], _MOST_WAITED)) if match else frozenset()
    except SlurmError:  # whatever a user wrote there
        return frozenset()
