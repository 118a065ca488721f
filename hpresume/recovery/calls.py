"""Calls to the provider and to nodes, in the background, so that a slow one holds up nobody.

A thread cannot be killed: the calls themselves have to be bounded in time, and a
recovery takes no other step while one of its calls is under way. Every call may
be made again by a controller that does not know of the first, also while the first still
goes on: whoever has lost the lead since touches nothing more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from hpresume.errors import (
    CapacityError,
    HpresumeError,
    LeadershipLostError,
    ProviderRefusedError,
)
from hpresume.providers.model import LaunchRequest, Machine, MachineState, Provider
from hpresume.recovery.model import Call, Outcome, Recovery, Trouble

log = logging.getLogger(__name__)

#: How often a provider is asked whether a machine is gone (s).
_POLL_S = 1.0

#: How long ``close`` waits for calls under way (s).
_CLOSE_S = 5.0

#: Whether the instance that began a call still leads.
Stands = Callable[[], bool]

#: A health check of a node: (node, jobs that wait for it, whether it may still act) → outcome.
Checks = Callable[[str, tuple[int, ...], Stands], Outcome]

#: How long one CLEAR waits for machines to be gone; the next call waits on (s).
_CLEAR_S = 60.0


class Calls:
    """What is under way, and what has ended since it was last asked.

    ``fence`` is this instance's under its present leadership, None while another one leads.
    ``submit`` runs a call, by default in a thread of its own. ``shaped`` adds to a launch
    what is known of the node elsewhere: its group, its instance type.
    """

    def __init__(
        self,
        provider: Provider,
        check: Checks,
        fence: Callable[[], object | None],
        *,
        shaped: Callable[[LaunchRequest], LaunchRequest] = lambda request: request,
        done: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
        submit: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._provider = provider
        self._check = check
        self._fence = fence
        self._shaped = shaped
        self._done = done
        self._sleep = sleep
        self._submit = submit or self._in_thread
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._lock = threading.Lock()
        self._running: dict[str, tuple[Call, str]] = {}
        self._ended: dict[str, Outcome] = {}

    def in_flight(self) -> Mapping[str, Call]:
        """Calls under way, by recovery."""
        with self._lock:
            return {uid: call for uid, (call, _) in self._running.items()}

    def take(self) -> tuple[Mapping[str, Call], Mapping[str, Outcome]]:
        """Calls under way, and ends of calls, each told once; as of one instant."""
        with self._lock:
            ended, self._ended = self._ended, {}
            return {uid: call for uid, (call, _) in self._running.items()}, ended

    def start(self, recovery: Recovery, call: Call, address: str, jobs: tuple[int, ...]) -> None:
        """Begin a call, unless this recovery has one under way."""
        with self._lock:
            if recovery.uid in self._running:
                return
            self._running[recovery.uid] = (call, recovery.node)
        self._submit(lambda: self._run(recovery, call, address, jobs))

    def background(self, work: Callable[[], None]) -> None:
        """Run something else in the same threads."""
        self._submit(work)

    def close(self, *, finish: bool = False) -> None:
        """Begin nothing more; wait a little for what is under way, or (``finish``) for its end."""
        for thread in self._threads if finish else ():
            thread.join()
        self._closed = True
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            left = list(self._running.values())
        for call, node in left:
            log.warning("%s: %s did not end: whoever leads next makes this call again", node, call)

    def _in_thread(self, work: Callable[[], None]) -> None:
        # A daemon: a call that hangs must not keep the process from its end.
        thread = threading.Thread(target=work, name="recovery", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    # -- the calls -----------------------------------------------------------------

    def _run(self, recovery: Recovery, call: Call, address: str, jobs: tuple[int, ...]) -> None:
        fence = self._fence()

        def stands() -> bool:
            return not self._closed and fence is not None and self._fence() == fence

        try:
            _insist(stands)
            outcome = self._call(recovery, call, address, jobs, stands)
        except HpresumeError as error:
            outcome = Outcome(call, _trouble(error), str(error))
        except Exception as error:
            # A provider's own mistake must not leave the recovery without an answer.
            log.exception("%s of %s", call, recovery.node)
            outcome = Outcome(call, Trouble.TRANSIENT, f"{type(error).__name__}: {error}")
        with self._lock:
            self._running.pop(recovery.uid, None)
            self._ended[recovery.uid] = outcome
        self._done()

    def _call(
        self, recovery: Recovery, call: Call, address: str, jobs: tuple[int, ...], stands: Stands
    ) -> Outcome:
        if call is Call.CLEAR:
            return self._clear(recovery, stands)
        if call is Call.LAUNCH:
            return Outcome(call, machine=self._launch(recovery, address))
        if call is Call.REBOOT:
            return self._reboot(recovery, stands)
        if call is Call.DESCRIBE:
            return Outcome(call, machine=self._provider.describe(recovery.machine_id))
        return self._check(recovery.node, jobs, stands)

    def _of(self, node: str) -> list[Machine]:
        found = [machine for machine in self._provider.list() if machine.node == node]
        return [machine for machine in found if machine.state is not MachineState.TERMINATED]

    def _clear(self, recovery: Recovery, stands: Stands) -> Outcome:
        deadline = time.monotonic() + _CLEAR_S
        asked: set[str] = set()
        while machines := self._of(recovery.node):
            for machine in machines:
                if machine.machine_id not in asked:
                    # Listed while this instance led: no successor's machine is among them.
                    _insist(stands)
                    self._provider.terminate(machine.machine_id)
                    asked.add(machine.machine_id)
            if not self._of(recovery.node):
                break
            if time.monotonic() >= deadline:
                left = ", ".join(machine.machine_id for machine in machines)
                return Outcome(Call.CLEAR, Trouble.TRANSIENT, f"{left} is not gone yet")
            self._sleep(_POLL_S)
        return Outcome(Call.CLEAR)

    def _launch(self, recovery: Recovery, address: str) -> Machine:
        request = LaunchRequest(recovery.token, recovery.node, address=address)
        return self._provider.launch(self._shaped(request))

    def _reboot(self, recovery: Recovery, stands: Stands) -> Outcome:
        machines = [machine for machine in self._of(recovery.node) if not machine.state.is_gone]
        if len(machines) != 1:
            words = f"the provider knows {len(machines)} machines of {recovery.node}"
            return Outcome(Call.REBOOT, Trouble.REFUSED, words)
        _insist(stands)
        self._provider.reboot(machines[0].machine_id)
        return Outcome(Call.REBOOT, machine=machines[0])


def _insist(stands: Stands) -> None:
    if not stands():
        raise LeadershipLostError("this instance does not lead any more")


def _trouble(error: HpresumeError) -> Trouble:
    if isinstance(error, CapacityError):
        return Trouble.CAPACITY
    if isinstance(error, ProviderRefusedError):
        return Trouble.REFUSED
    return Trouble.TRANSIENT
