"""Carries out what was recorded: looks, plans, writes the plan down, and only then acts.

One step is short and never blocks on the outside: calls run in threads, and what they
bring is applied at the beginning of the next step. A process that is killed anywhere leaves a
database from which the next one goes on: a launch is asked for again with the same client
token, a script is waited for, everything else is done once more.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from hpresume.errors import (
    HpresumeError,
    LeadershipLostError,
    ProviderError,
    ProviderTransientError,
    ResourceNotFoundError,
)
from hpresume.providers.model import Machine, Provider
from hpresume.provision import checking, outcomes
from hpresume.provision.alarms import Alarms, AlarmWatch
from hpresume.provision.book import Book
from hpresume.provision.crew import Crew
from hpresume.provision.draft import Draft
from hpresume.provision.jobs import Job, Jobs
from hpresume.provision.model import Leave, Node, Phase, State
from hpresume.provision.observed import Observed, SlurmNode, Task, Work
from hpresume.provision.outcomes import Outcome
from hpresume.provision.plan import plan
from hpresume.provision.policy import Policy
from hpresume.provision.ports import (
    DeepChecks,
    Hardware,
    Scripts,
    SlurmEntries,
    SlurmSide,
    slurm_entries,
)
from hpresume.store.holds import Holds

_log = logging.getLogger(__name__)

#: How long events are kept (s), and how often old ones are deleted.
KEEP_EVENTS_S = 90 * 86400.0
_HOUR_S = 3600.0

#: A cluster that is deleted waits so long for slurm.conf to be cleared (s): its Slurm may be gone.
CLEAR_S = 60.0

#: This part's name among those that have nodes in hand.
OWNER = "provisioning"


@dataclass(frozen=True)
class Pace:
    """Seconds between looks at the provider and at Slurm, between two steps at least, and so on.

    ``configure_s`` is between two changes of slurm.conf: before Slurm 23.11 each restarts
    slurmctld, so nodes that come up together go in together.
    """

    look_s: float = 5.0
    configure_s: float = 10.0
    step_s: float = 0.05
    idle_s: float = 1.0


@dataclass
class _View:
    """What is known of one cluster's Slurm."""

    side: SlurmSide | None
    configured: Mapping[str, str] | None = None
    entries: SlurmEntries | None = None
    nodes: Mapping[str, SlurmNode] | None = None
    nodes_at: float = 0.0
    looked_at: float = float("-inf")
    configure_after: float = float("-inf")
    problem: str = ""
    failing_since: float | None = None
    busy: set[str] = field(default_factory=set)

    @property
    def failing_s(self) -> float:
        """For how long slurm.conf could not be changed (s)."""
        return 0.0 if self.failing_since is None else time.monotonic() - self.failing_since


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
        self._provider = provider
        self._clock = clock
        self._policy = policy or Policy()
        self._pace = pace or Pace()
        self._slurm = slurm or (lambda _: None)
        self._holds = holds or Holds()
        self._jobs = Jobs(provider, scripts, attributes or (lambda _state, _node: {}))
        self._default_partition = default_partition
        self._hardware = hardware or {}
        self._calls = Crew(width, "provider")
        self._runs = Crew(256, "scripts")
        self._looks = Crew(4, "look")
        self._deep_checks = deep_checks
        self._alarms = AlarmWatch(alarms, self._looks.submit, self._pace.look_s)
        self._done: queue.SimpleQueue[tuple[str, Outcome | None, tuple[str, ...]]] = (
            queue.SimpleQueue()
        )
        #: Calls under way, and the host names they are about.
        self._under_way: dict[tuple[str, ...], str] = {}
        self._others: frozenset[str] = frozenset()
        #: Until when a node was in another's hands.
        self._others_until: dict[str, float] = {}
        self._views: dict[str, _View] = {}
        self._machines: Mapping[str, Machine] | None = None
        self._machines_at = 0.0
        self._looked_at = float("-inf")
        self._looking = False
        self._awake = threading.Event()
        self._forgot_at = 0.0

    def wake(self) -> None:
        """Something changed: step soon."""
        self._awake.set()
        self._woken()

    def close(self) -> None:
        """Start nothing more; what is under way is left to itself."""
        for crew in (self._calls, self._runs, self._looks):
            crew.close()

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
        self._apply_outcomes()
        self._look_at_machines()
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
        return not self._under_way and self._done.empty()

    @property
    def is_busy(self) -> bool:
        """Whether a node is in motion, so that looks are worth their cost."""
        return bool(self._holds.of(OWNER)) or bool(self._others) or not self.is_idle

    def _step_cluster(self, state: State) -> None:
        cluster_id = state.cluster.cluster_id
        view = self._views.get(cluster_id)
        if view is None:
            view = self._views[cluster_id] = _View(self._slurm(state))
        self._look_at_slurm(cluster_id, view)
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
                self._start(state, view, work)
        for run in made.checks:
            self._start_check(cluster_id, run)
        for machine_id in made.strays:
            self._end_stray(cluster_id, machine_id)
        self._configure(state, view)

    def _observed(self, state: State, view: _View) -> Observed:
        return Observed(
            machines=self._machines,
            machines_at=self._machines_at,
            has_slurm=view.side is not None,
            configured=view.configured,
            slurm=view.nodes,
            is_cleared=view.side is None
            or state.cluster.controller_up_at is None
            or view.entries == SlurmEntries()
            or view.failing_s >= CLEAR_S,
            slurm_at=view.nodes_at,
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
        others = self._holds.keep(OWNER, names | set(self._under_way.values()))
        # What the provider told while recovery changed machines is not true any more: such a
        # node is left alone until a look that began after recovery had let go of it.
        now = self._clock()
        for name in self._others_until.keys() - others:
            self._others_until[name] = min(self._others_until[name], now)
            if self._machines_at > self._others_until[name]:
                del self._others_until[name]
        self._others_until.update(dict.fromkeys(others, math.inf))
        self._others = frozenset(self._others_until)

    # Work that is started

    def _start(self, state: State, view: _View, work: Work) -> None:
        node = work.node
        key = (work.task, node.logical_id, node.token)
        if key in self._under_way:
            return
        job = self._jobs.of(work.task)
        self._under_way[key] = node.name
        crew = self._runs if work.task is Task.SCRIPTS else self._calls
        cluster_id = state.cluster.cluster_id
        crew.submit(lambda: self._carry_out(job, state, view, node, cluster_id, key))

    def _carry_out(
        self,
        job: Job,
        state: State,
        view: _View,
        node: Node,
        cluster_id: str,
        key: tuple[str, ...],
    ) -> None:
        outcome: Outcome | None = outcomes.look_again(node)
        try:
            outcome = job(state, view.side, node)
        except HpresumeError as error:
            _log.warning("%s of %s: %s", key[0], node.name, error)
            outcome = outcomes.look_again(node, str(error))
        finally:
            self._done.put((cluster_id, outcome, key))
            if key[0] in (Task.SCRIPTS, Task.RESUME):
                view.looked_at = float("-inf")  # joining waits for a look from after them
            self.wake()

    def _start_check(self, cluster_id: str, run: checking.Run) -> None:
        key = ("check", run.operation, run.group)
        if key in self._under_way:
            return
        self._under_way[key] = ""  # the nodes are in hand already, as such that are checked

        def check() -> None:
            outcome = checking.not_run(run, "there are no deep health checks here")
            try:
                if self._deep_checks is not None:
                    outcome = checking.ended(run, self._deep_checks.run(run))
            except HpresumeError as error:
                _log.warning("deep health check of %s: %s", run.group, error)
                outcome = checking.not_run(run, str(error))
            finally:
                self._done.put((cluster_id, outcome, key))
                self.wake()

        self._runs.submit(check)

    def _end_stray(self, cluster_id: str, machine_id: str) -> None:
        key = ("stray", cluster_id, machine_id)
        if key in self._under_way:
            return
        self._under_way[key] = ""

        def end() -> None:
            try:
                machine = self._provider.describe(machine_id)
                if machine is None or machine.state.is_gone:
                    return  # given up since the list was made
                _log.warning("machine %s belongs to no node any more: it is given up", machine_id)
                self._provider.terminate(machine_id)
            except ProviderError as error:
                _log.warning("machine %s: %s", machine_id, error)
            finally:
                self._done.put((cluster_id, None, key))

        self._calls.submit(end)

    # What comes back

    def _apply_outcomes(self) -> None:
        brought: dict[str, list[tuple[Outcome | None, tuple[str, ...]]]] = {}
        while True:
            try:
                cluster_id, outcome, key = self._done.get_nowait()
            except queue.Empty:
                break
            brought.setdefault(cluster_id, []).append((outcome, key))
        for cluster_id, results in brought.items():

            def work(
                draft: Draft, results: list[tuple[Outcome | None, tuple[str, ...]]] = results
            ) -> None:
                for outcome, _ in results:
                    if outcome is not None:
                        outcome(draft, self._policy)

            try:
                self._book.change(cluster_id, self._clock(), work)
            except ResourceNotFoundError:
                pass
            except HpresumeError:
                # Not written: what the calls brought must not get lost.
                for outcome, key in results:
                    self._done.put((cluster_id, outcome, key))
                raise
            for _, key in results:
                self._under_way.pop(key, None)
            self.wake()

    # Looks

    def _look_at_machines(self) -> None:
        now = time.monotonic()
        if self._looking or now - self._looked_at < self._pace.look_s or not self._book.states:
            return
        self._looking = True
        self._looked_at = now

        def look() -> None:
            begun = self._clock()
            try:
                machines = {machine.machine_id: machine for machine in self._provider.list()}
                self._machines, self._machines_at = machines, begun
            except ProviderError as error:
                level = logging.INFO if isinstance(error, ProviderTransientError) else logging.ERROR
                _log.log(level, "%s: %s", self._provider.name, error)
            finally:
                self._looking = False
                self.wake()

        self._looks.submit(look)

    def _look_at_slurm(self, cluster_id: str, view: _View) -> None:
        now = time.monotonic()
        side = view.side
        if side is None or "look" in view.busy or now - view.looked_at < self._pace.look_s:
            return
        view.looked_at = now
        view.busy.add("look")

        def look() -> None:
            begun = self._clock()
            try:
                view.nodes, view.nodes_at = side.look(), begun
            except HpresumeError as error:
                view.nodes = None
                _log.info("slurm of %s: %s", cluster_id, error)
            finally:
                view.busy.discard("look")
                self.wake()

        self._looks.submit(look)

    def _configure(self, state: State, view: _View) -> None:
        """Have the entries put into slurm.conf, where that is not under way and its pause over."""
        side = view.side
        if side is None or "configure" in view.busy or state.cluster.controller_up_at is None:
            return
        wanted = slurm_entries(state, self._default_partition, self._hardware)
        now = time.monotonic()
        if wanted == view.entries or now < view.configure_after:
            return
        cluster_id = state.cluster.cluster_id
        before = view.entries or SlurmEntries()
        gone = wanted.gone | (before.names - wanted.names)
        entries = replace(wanted, gone=gone, before=before.partitions)
        view.busy.add("configure")

        def configure() -> None:
            try:
                side.configure(entries)
                view.entries = entries
                view.configured = {entry.name: entry.address for entry in entries.nodes}
                view.looked_at = float("-inf")
                view.failing_since = None
                self._tell_of_slurm(cluster_id, view, "")
                view.configure_after = time.monotonic() + self._pace.configure_s
            except HpresumeError as error:
                view.configure_after = time.monotonic() + self._policy.retry_s
                view.failing_since = view.failing_since or now
                self._tell_of_slurm(cluster_id, view, str(error))
            finally:
                view.busy.discard("configure")
                self.wake()

        self._looks.submit(configure)

    def _tell_of_slurm(self, cluster_id: str, view: _View, problem: str) -> None:
        """Say what is wrong, and that it is over; events of a cluster are in the log as well."""
        before, view.problem = view.problem, problem
        if not problem and not before:
            return
        if problem and problem != before and cluster_id not in self._book.states:
            _log.error("slurm.conf of %s, which is gone: %s", cluster_id, problem)
        self._done.put((cluster_id, outcomes.slurm_refuses(problem, before), ()))
