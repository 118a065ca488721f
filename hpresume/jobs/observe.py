"""What is known of auto-resume jobs now; Slurm is asked for what matters only.

While all batch hosts answer, a pass is one connection to each, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from hpresume.errors import SlurmNotFoundError
from hpresume.jobs import table
from hpresume.jobs.model import KEEPS, Guarded, Phase, Pulse, Report, Return, Snapshot
from hpresume.recovery.model import JobOn, Outcome, lately
from hpresume.recovery.observe import waited_for
from hpresume.resume.finisher import Look
from hpresume.resume.waits import WAITS_FOR
from hpresume.slurm.admin import AdminGateway
from hpresume.slurm.models import ClusterConfig, Job, Node
from hpresume.store import Store

#: Nodes that are asked too, so that one silent host is told from a cut network.
_WITNESSES = 8

#: How often the addresses of nodes, the jobs that run, and reservations are read (s).
_REFRESH_S = 15.0

#: Pause between probes of a host that may be lost (s).
_AGAIN_S = 0.2

#: How often all nodes are read while something is under way (s).
_LOOK_S = 1.0


class Observer:
    """The eyes of one instance; what it keeps between passes is only what it saw."""

    def __init__(
        self, gateway: AdminGateway, store: Store, look: Look, probe_every_s: float
    ) -> None:
        self._gateway = gateway
        self._probe_every_s = probe_every_s
        self._store = store
        self._look = look
        self._lock = threading.Lock()
        self._checking: set[str] = set()
        self._checked: dict[str, float] = {}
        self._outcomes: dict[str, Outcome] = {}
        self.forget()

    def forget(self) -> None:
        """Begin anew: another instance led meanwhile."""
        self.halted = False
        self._silent: dict[str, Pulse] = {}
        self._asked: frozenset[str] = frozenset()
        self._unknown: frozenset[str] = frozenset()
        self._nodes: Mapping[str, Node] = {}
        self._config: ClusterConfig | None = None
        self._refreshed = self._looked = self._probed = float("-inf")

    def observe(self, now: float, remember: float) -> Snapshot:
        """What is known at ``now``; returns from after ``remember`` too (both Unix s)."""
        with self._store.read() as session:
            guarded = table.guarded(session)
            returns = table.returns(session, remember)
            reports = table.reports(session)
        open_ = [r for r in returns if r.phase is not Phase.DONE]
        running, reservations = self._refresh(now, guarded, open_, reports)
        asked = self._probe(now, guarded, open_, reports)
        matters = bool(self._silent or open_ or reports)
        if matters:
            self._see_nodes(now)
        watched = {r.node for r in reports} | {
            r.lost for r in open_ if r.phase in (Phase.KEEPING, Phase.LEAVING)
        }
        watched |= {g.host for g in guarded} & self._silent.keys()
        with self._lock:
            checking = frozenset(self._checking)
            outcomes, checked = dict(self._outcomes), dict(self._checked)
        return Snapshot(
            guarded=guarded,
            returns=returns,
            reports=reports,
            asked=asked,
            silent=dict(self._silent),
            nodes=self._nodes,
            jobs=self._jobs(guarded, open_),
            holders=self._holders({name for name in watched if name}),
            running=running,
            reservations=reservations,
            checking=checking,
            checked=checked,
            outcomes=outcomes,
            halted=self.halted,
        )

    def is_busy(self, snapshot: Snapshot) -> bool:
        """Whether the next look should come soon."""
        open_ = [r for r in snapshot.returns if r.phase is not Phase.DONE]
        return bool(open_) or self._suspects(snapshot.guarded, open_)

    def with_witnesses(self, names: Iterable[str], nodes: Mapping[str, Node]) -> list[str]:
        """The nodes, and some others that should answer."""
        wanted = sorted(set(names))
        others = (n for n, node in nodes.items() if node.is_usable and n not in wanted)
        return wanted + [name for _, name in zip(range(_WITNESSES), others, strict=False)]

    # -- checks, which run in threads of their own -------------------------------------

    def checks_begin(self, node: str, now: float) -> None:
        """A health check is under way."""
        with self._lock:
            self._checking.add(node)
            self._checked[node] = now

    def checks_end(self, node: str, outcome: Outcome) -> None:
        """It is over."""
        with self._lock:
            self._checking.discard(node)
            self._outcomes[node] = outcome

    def checks_forget(self, node: str) -> None:
        """What it found has been used."""
        with self._lock:
            self._outcomes.pop(node, None)

    # -- inner -----------------------------------------------------------------------

    def _refresh(
        self,
        now: float,
        guarded: Sequence[Guarded],
        open_: Sequence[Return],
        reports: Sequence[Report],
    ) -> tuple[frozenset[int] | None, frozenset[str] | None]:
        """What changes slowly, now and then."""
        if lately(self._refreshed, _REFRESH_S, now):
            return None, None
        reservations = frozenset(
            one.name for one in self._gateway.reservations() if one.name.startswith(KEEPS)
        )
        running: frozenset[int] | None = None
        if guarded:
            running = frozenset(holder.job_id for holder in self._gateway.holders())
        if guarded or open_ or reports:
            self._see_nodes(now)
            self._config = self._gateway.config()
        self._refreshed = now
        return running, reservations

    def _see_nodes(self, now: float) -> None:
        """Read all nodes, if that is not just done."""
        if not lately(self._looked, _LOOK_S, now):
            self._looked = now
            self._nodes = self._gateway.nodes()

    def _probe(
        self,
        now: float,
        guarded: Sequence[Guarded],
        open_: Sequence[Return],
        reports: Sequence[Report],
    ) -> frozenset[str]:
        """Ask the kernels of all nodes that matter; the nodes that were asked last.

        Half a second if some of them are silent, so no oftener than it has to be.
        """
        names = {g.host for g in guarded} | {r.node for r in reports}
        names |= {r.lost for r in open_ if r.lost and r.phase in (Phase.KEEPING, Phase.LEAVING)}
        if not names:
            self._silent, self._asked = {}, frozenset()
            return self._asked
        pause_s = _AGAIN_S if self._suspects(guarded, open_) else self._probe_every_s
        if lately(self._probed, pause_s, now) and names <= self._asked | self._unknown:
            return self._asked
        self._probed = now
        if self._config is None:
            self._config = self._gateway.config()
        if any(n not in self._nodes or self._nodes[n].is_down for n in names):
            self._see_nodes(now)
        # What is DOWN in Slurm is known to be lost, and asking it takes half a second.
        self._unknown = frozenset(
            n for n in names if n not in self._nodes or self._nodes[n].is_down
        )
        names -= self._unknown
        asked = self.with_witnesses(names, self._nodes)
        found = {fault.node for fault in self._look(asked, self._nodes, self._config)}
        before = self._silent
        self._silent = {
            name: Pulse(before[name].since, before[name].failed + 1)
            if name in before and before[name].since <= now
            else Pulse(now, 1)
            for name in sorted(found)
        }
        self._asked = frozenset(asked)
        return self._asked

    def _suspects(self, guarded: Sequence[Guarded], open_: Sequence[Return]) -> bool:
        """Whether a batch host may be lost, and it is not known yet."""
        leaving = {r.lost for r in open_ if r.phase in (Phase.KEEPING, Phase.LEAVING)}
        known = {r.lost for r in open_} - leaving
        return bool(({g.host for g in guarded} - known) & self._silent.keys())

    def _jobs(self, guarded: Sequence[Guarded], open_: Sequence[Return]) -> dict[int, Job | None]:
        ids = {g.job_id for g in guarded if g.host in self._silent.keys() | self._unknown}
        ids |= {r.job_id for r in open_}
        found: dict[int, Job | None] = {}
        for job_id in sorted(ids):
            try:
                found[job_id] = self._gateway.job(job_id)
            except SlurmNotFoundError:
                found[job_id] = None
        return found

    def _holders(self, names: set[str]) -> dict[str, tuple[JobOn, ...]]:
        if not names:
            return {}
        waits = {
            job_id: waited_for(self._gateway.comment(job_id))
            for job_id in self._gateway.commented(WAITS_FOR)
        }
        found: dict[str, list[JobOn]] = {}
        for holder in self._gateway.holders():
            for name in names.intersection(holder.nodes):
                waiting = name in waits.get(holder.job_id, ()) and not holder.completing
                found.setdefault(name, []).append(JobOn(holder.job_id, holder.completing, waiting))
        return {name: tuple(jobs) for name, jobs in found.items()}
