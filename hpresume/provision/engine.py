"""Carries out what was recorded: looks, plans, writes the plan down, and only then acts.

One step is short and never blocks on the outside: calls run in threads, and what they
bring is applied at the beginning of the next step. A process that is killed anywhere leaves a
database from which the next one goes on: a launch is asked for again with the same client
token, a script is waited for, everything else is done once more.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping

from hpresume.errors import HpresumeError, LeadershipLostError
from hpresume.providers.model import Provider
from hpresume.provision import outcomes
from hpresume.provision.alarms import Alarms, AlarmWatch
from hpresume.provision.book import Book
from hpresume.provision.calls import Calls
from hpresume.provision.crew import Crew
from hpresume.provision.jobs import Jobs
from hpresume.provision.machine_watch import MachineWatch
from hpresume.provision.model import Leave, Node, Phase, State
from hpresume.provision.observed import Observed
from hpresume.provision.pace import Pace
from hpresume.provision.plan import plan
from hpresume.provision.policy import Policy
from hpresume.provision.ports import DeepChecks, Hardware, Scripts, SlurmSide, slurm_entries
from hpresume.provision.slurm_view import SlurmView, Surroundings
from hpresume.store.holds import Holds

_log = logging.getLogger(__name__)

#: How long events are kept (s), and how often old ones are deleted.
KEEP_EVENTS_S = 90 * 86400.0
_HOUR_S = 3600.0

#: This part's name among those that have nodes in hand.
OWNER = "provisioning"


class Engine:
    """Drives all clusters of a book with one provider.

    ``slurm`` gives the Slurm of a cluster, None for one that is not managed; ``holds``
    who has which node in hand: nothing is done to one that node recovery has; ``attributes``
    what the provider is told about a node; ``woken`` is called when a step is due.
    """

    def __init__(
        self,
        book: Book,
        provider: Provider,
        clock: Callable[[], float],
        *,
        policy: Policy | None = None,
        pace: Pace | None = None,
        slurm: Callable[[State], SlurmSide | None] | None = None,
        scripts: Scripts | None = None,
        holds: Holds | None = None,
        attributes: Callable[[State, Node], Mapping[str, str]] | None = None,
        default_partition: str = "",
        hardware: Mapping[str, Hardware] | None = None,
        alarms: Alarms | None = None,
        deep_checks: DeepChecks | None = None,
        width: int = 32,
        woken: Callable[[], None] = lambda: None,
    ) -> None:
        self._woken = woken
        self._book = book
        self._clock = clock
        self._policy = policy or Policy()
        self._pace = pace or Pace()
        self._slurm = slurm or (lambda _: None)
        self._holds = holds or Holds()
        jobs = Jobs(provider, scripts, attributes or (lambda _state, _node: {}))
        self._calls = Calls(provider, jobs, deep_checks, width, self.wake)
        self._looks = Crew(4, "look")
        self._machines = MachineWatch(provider, self._looks.submit, clock, self._pace.look_s)
        self._alarms = AlarmWatch(alarms, self._looks.submit, self._pace.look_s)
        self._around = Surroundings(
            submit=self._looks.submit,
            woken=self.wake,
            clock=clock,
            entries=lambda state: slurm_entries(state, default_partition, hardware),
            tell=self._tell_of_slurm,
            lost=self._tell_of_lost,
            look_s=self._pace.look_s,
            configure_s=self._pace.configure_s,
            retry_s=self._policy.retry_s,
        )
        self._views: dict[str, SlurmView] = {}
        self._others: frozenset[str] = frozenset()
        #: Until when a node was in another's hands.
        self._others_until: dict[str, float] = {}
        self._awake = threading.Event()
        self._forgot_at = 0.0

    def wake(self) -> None:
        """Something changed: step soon."""
        self._awake.set()
        self._woken()

    def close(self) -> None:
        """Start nothing more; what is under way is left to itself."""
        self._calls.close()
        self._looks.close()

    def run(self, stop: threading.Event) -> None:
        """Step until ``stop`` is set. Raises LeadershipLostError when another instance leads."""
        try:
            while not stop.is_set():
                self._awake.clear()
                try:
                    self.step()
                except LeadershipLostError:
                    raise
                except HpresumeError as error:
                    _log.error("provisioning: %s", error)
                self._awake.wait(self._pace.idle_s)
                stop.wait(self._pace.step_s)
        finally:
            self.close()

    def step(self) -> None:
        """One pass over all clusters."""
        self._calls.apply(self._book, self._policy, self._clock)
        if self._book.states:
            self._machines.look(self.wake)
        self._alarms.look(self._book.states.values(), self.wake)
        self._forget()
        self.hold()
        for state in list(self._book.states.values()):
            self._step_cluster(state)
        for cluster_id in set(self._views) - set(self._book.states):
            del self._views[cluster_id]

    def _forget(self) -> None:
        now = self._clock()
        if now - self._forgot_at >= _HOUR_S:
            self._forgot_at = now
            self._book.forget_events(now - KEEP_EVENTS_S)

    @property
    def states(self) -> Mapping[str, State]:
        """Every live cluster by its id."""
        return self._book.states

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._calls.is_idle

    @property
    def is_busy(self) -> bool:
        """Whether a node is in motion, so that looks are worth their cost."""
        return bool(self._holds.of(OWNER)) or bool(self._others) or not self.is_idle

    def _step_cluster(self, state: State) -> None:
        cluster_id = state.cluster.cluster_id
        view = self._views.get(cluster_id)
        if view is None:
            view = SlurmView(cluster_id, self._slurm(state), self._around)
            self._views[cluster_id] = view
        view.look()
        made = plan(state, self._observed(state, view), self._policy, self._clock())
        if not made.change.is_empty:
            if not self._book.commit(state, made.change):
                self.wake()
                return
            after = self._book.states.get(cluster_id)
            if after is None:
                return
            state = after
            self.wake()
            self.hold()
        for work in made.work:
            if self._holds.take(OWNER, work.node.name):
                self._calls.begin(state, view, work)
        for run in made.checks:
            self._calls.check(cluster_id, run)
        for machine_id in made.strays:
            self._calls.end_stray(cluster_id, machine_id)
        view.configure(state)

    def _observed(self, state: State, view: SlurmView) -> Observed:
        # Times before what was seen then: a look that ends in between must not make old ones new.
        return Observed(
            machines_at=self._machines.seen_at,
            machines=self._machines.machines,
            has_slurm=view.side is not None,
            configured=view.configured,
            slurm_at=view.seen_at,
            slurm=view.nodes,
            is_cleared=view.is_cleared(state),
            held=self._others,
            alarms=self._alarms.of(state),
        )

    def hold(self) -> None:
        """Have in hand every node that is in motion, and those that calls are about."""
        names = {
            node.name
            for state in self._book.states.values()
            for node in state.nodes.values()
            if node.phase is not Phase.RUNNING or node.leave is not Leave.STAY or node.checking
        }
        others = self._holds.keep(OWNER, names | self._calls.names)
        # What the provider told while recovery changed machines is not true any more: such a
        # node is left alone until a look that began after recovery had let go of it.
        now = self._clock()
        for name in self._others_until.keys() - others:
            self._others_until[name] = min(self._others_until[name], now)
            if self._machines.seen_at > self._others_until[name]:
                del self._others_until[name]
        self._others_until.update(dict.fromkeys(others, math.inf))
        self._others = frozenset(self._others_until)

    def _tell_of_slurm(self, cluster_id: str, problem: str, before: str) -> None:
        """Say what is wrong, and that it is over; events of a cluster are in the log as well."""
        if problem and problem != before and cluster_id not in self._book.states:
            _log.error("slurm.conf of %s, which is gone: %s", cluster_id, problem)
        self._calls.bring(cluster_id, outcomes.slurm_refuses(problem, before))

    def _tell_of_lost(self, cluster_id: str, names: frozenset[str]) -> None:
        self._calls.bring(cluster_id, outcomes.slurm_lost(names))
