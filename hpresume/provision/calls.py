"""The calls that are under way outside, each once, and what they bring."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable

from hpresume.errors import HpresumeError, ProviderError, ResourceNotFoundError
from hpresume.providers.model import Provider
from hpresume.provision import checking, outcomes
from hpresume.provision.book import Book
from hpresume.provision.crew import Crew
from hpresume.provision.draft import Draft
from hpresume.provision.jobs import Jobs
from hpresume.provision.model import State
from hpresume.provision.observed import Task, Work
from hpresume.provision.outcomes import Outcome
from hpresume.provision.policy import Policy
from hpresume.provision.ports import DeepChecks
from hpresume.provision.slurm_view import SlurmView

_log = logging.getLogger(__name__)

_Key = tuple[str, ...]


class Calls:
    """Begins calls in threads; what they bring is kept until it is applied.

    ``width`` calls of the provider and of Slurm run at once. ``woken`` is called when a call has
    brought something.
    """

    def __init__(
        self,
        provider: Provider,
        jobs: Jobs,
        deep_checks: DeepChecks | None,
        width: int,
        woken: Callable[[], None],
    ) -> None:
        self._provider = provider
        self._jobs = jobs
        self._deep_checks = deep_checks
        self._woken = woken
        self._calls = Crew(width, "provider")
        self._runs = Crew(256, "scripts")
        self._done: queue.SimpleQueue[tuple[str, Outcome | None, _Key]] = queue.SimpleQueue()
        #: Calls under way, and the host names they are about.
        self._under_way: dict[_Key, str] = {}

    @property
    def names(self) -> frozenset[str]:
        """The host names that calls are about."""
        return frozenset(self._under_way.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way and self._done.empty()

    def close(self) -> None:
        """Start nothing more; what is under way is left to itself."""
        self._calls.close()
        self._runs.close()

    # What is begun

    def begin(self, state: State, view: SlurmView, work: Work) -> None:
        """Do work on a node."""
        node = work.node
        key = (work.task, node.logical_id, node.token)
        if key in self._under_way:
            return
        self._under_way[key] = node.name
        job = self._jobs.of(work.task)

        def carry_out() -> None:
            outcome: Outcome | None = outcomes.look_again(node)
            try:
                outcome = job(state, view.side, node)
            except HpresumeError as error:
                _log.warning("%s of %s: %s", work.task, node.name, error)
                outcome = outcomes.look_again(node, str(error))
            finally:
                self._done.put((state.cluster.cluster_id, outcome, key))
                if work.task in (Task.SCRIPTS, Task.RESUME):
                    view.look_soon()  # joining waits for a look from after them
                self._woken()

        crew = self._runs if work.task is Task.SCRIPTS else self._calls
        crew.submit(carry_out)

    def check(self, cluster_id: str, run: checking.Run) -> None:
        """Run a deep health check."""
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
                self._woken()

        self._runs.submit(check)

    def end_stray(self, cluster_id: str, machine_id: str) -> None:
        """Give up a machine that belongs to no node."""
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

    def bring(self, cluster_id: str, outcome: Outcome) -> None:
        """Have something applied that no call of this class has brought."""
        self._done.put((cluster_id, outcome, ()))

    def apply(self, book: Book, policy: Policy, clock: Callable[[], float]) -> None:
        """Write down what came back. Raises HpresumeError where that fails: it is kept then."""
        brought: dict[str, list[tuple[Outcome | None, _Key]]] = {}
        while True:
            try:
                cluster_id, outcome, key = self._done.get_nowait()
            except queue.Empty:
                break
            brought.setdefault(cluster_id, []).append((outcome, key))
        for cluster_id, results in brought.items():

            def work(draft: Draft, results: list[tuple[Outcome | None, _Key]] = results) -> None:
                for outcome, _ in results:
                    if outcome is not None:
                        outcome(draft, policy)

            try:
                book.change(cluster_id, clock(), work)
            except ResourceNotFoundError:
                pass
            except HpresumeError:
                # Not written: what the calls brought must not get lost.
                for outcome, key in results:
                    self._done.put((cluster_id, outcome, key))
                raise
            for _, key in results:
                self._under_way.pop(key, None)
            self._woken()
