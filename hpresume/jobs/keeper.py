"""The loop that watches over auto-resume jobs, in a thread of its own.

Apart from node recovery's, which looks at every node of the cluster in a pass: a
lost batch host has to be seen within seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from hpresume.errors import HpresumeError, LeadershipLostError, SlurmError, SlurmNotFoundError
from hpresume.jobs import table
from hpresume.jobs.decide import decide
from hpresume.jobs.inspect import Inspect
from hpresume.jobs.model import (
    KEEPS,
    Action,
    Begin,
    Check,
    Close,
    Effect,
    Forget,
    Halt,
    Policy,
    Return,
    SetNode,
    Step,
    Unreserve,
)
from hpresume.jobs.observe import Observer
from hpresume.recovery.model import Call, Outcome, Trouble
from hpresume.resume import finisher
from hpresume.slurm.admin import AdminGateway
from hpresume.slurm.models import Job, JobState
from hpresume.store import Event, Fence, Level, Store, events

log = logging.getLogger(__name__)

_LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}

#: Pause between passes while something is under way (s).
_BUSY_S = 0.2

#: Pause after something that Slurm refused (s).
_AFTER_TROUBLE_S = 2.0

#: How long returns that are over are remembered: a run of a job has one at most (s).
_REMEMBER_S = 7 * 86400.0


class Keeper:
    """The eyes and hands for auto-resume jobs.

    ``look`` probes nodes, ``inspect`` checks the health of one; ``recovery_wakes`` is
    called when something was done that node recovery has to see.
    """

    def __init__(
        self,
        gateway: AdminGateway,
        store: Store,
        fence: Callable[[], Fence | None],
        look: finisher.Look,
        inspect: Inspect,
        policy: Policy,
        recovery_wakes: Callable[[], None] = lambda: None,
    ) -> None:
        self._gateway = gateway
        self._store = store
        self._fence = fence
        self._look = look
        self._inspect = inspect
        self._policy = policy
        self._recovery_wakes = recovery_wakes
        self._observer = Observer(gateway, store, look, policy.probe_every_s)
        self._waking = threading.Event()
        self._closing = False
        self._not_before: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """End the pause between two passes."""
        self._waking.set()

    def close(self) -> None:
        """Begin nothing more; waits for the pass that is under way."""
        self._closing = True
        self._waking.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._closing:
            self._waking.clear()
            pause_s = self._policy.probe_every_s
            try:
                if self._fence() is None:
                    self._observer.forget()
                elif self.once():
                    pause_s = _BUSY_S
            except LeadershipLostError as error:
                log.warning("%s", error)
            except HpresumeError as error:
                log.warning("no look after jobs: %s", error)
            except Exception:
                log.exception("no look after jobs")
            self._waking.wait(pause_s)

    def once(self) -> bool:
        """One pass; whether something is under way. Raises SlurmError, StoreError."""
        now = time.time()
        snapshot = self._observer.observe(now, now - _REMEMBER_S)
        actions = decide(snapshot, self._policy, now)
        for action in actions:
            fence = self._fence()
            if fence is None:
                raise LeadershipLostError("this instance does not lead any more")
            about = _about(action)
            if 0.0 < self._not_before.get(about, 0.0) - now <= _AFTER_TROUBLE_S:
                continue
            try:
                self._one(action, fence)
            except SlurmError as error:
                # Slurm cannot, or will not, now: it is decided anew.
                log.warning("%s: %s", type(action).__name__, error)
                self._not_before[about] = now + _AFTER_TROUBLE_S
            else:
                self._not_before.pop(about, None)
        return bool(actions) or self._observer.is_busy(snapshot)

    def _one(self, action: Action, fence: Fence) -> None:
        match action:
            case Forget(jobs=jobs):
                with self._store.write(fence) as session:
                    table.forget(session, jobs)
                    table.forget_returns(session, time.time() - _REMEMBER_S)
            case Begin(new=new, message=message):
                self._save(new, fence, "host-lost", message, Level.WARNING)
            case Step():
                after = self._effect(action)
                event = action.event if after == action.after else ""
                self._save(after, fence, event, action.message, action.level)
            case Unreserve(name=name):
                self._orphan(name)
            case Check(report=report):
                self._observer.checks_begin(report.node, time.time())
                # A daemon: minutes of a check must not keep the process from its end.
                threading.Thread(
                    target=self._check, args=(report.node,), name="report-check", daemon=True
                ).start()
            case SetNode(node=node, state=state, reason=reason):
                self._set_node(node, state, reason)
            case Close(report=report, message=words, acted=acted):
                kind = "report-acted" if acted else "report-closed"
                self._observer.checks_forget(report.node)
                words = f"{report.node}: report of job {report.job_id}: {words}"
                with self._store.write(fence) as session:
                    table.close(session, report)
                    events.add(session, Event(time.time(), kind, words, node=report.node))
                log.info(words)
                self._recovery_wakes()
            case Halt(on=on, message=words):
                self._observer.halted = on
                if on:
                    with self._store.write(fence) as session:
                        events.add(session, Event(time.time(), "halt", words, Level.ERROR))
                    log.error(words)

    def _save(self, way: Return, fence: Fence, event: str, words: str, level: Level) -> None:
        with self._store.write(fence) as session:
            table.save(session, way)
            if event:
                details: dict[str, object] = {"job": way.job_id, "run": way.run}
                found = Event(time.time(), event, words, level, way.lost, details=details)
                events.add(session, found)
        if event:
            log.log(_LEVELS[level], words)

    # -- in Slurm -------------------------------------------------------------------

    def _effect(self, step: Step) -> Return:
        """Do what comes before the next phase; the return as it is to be written down."""
        way = step.before
        match step.effect:
            case Effect.KEEP:
                return self._keep(step)
            case Effect.DOWN:
                reason = f"Not responding: hpresume: lost with the script of job {way.job_id}"
                # Probed in this very pass.
                self._gateway.update_node(way.lost, State="DOWN", Reason=reason)
                self._recovery_wakes()
            case Effect.BRING_BACK:
                return self._bring_back(step)
            case Effect.RELEASE:
                self._unreserve(way.reservation, way.job_id)
        return step.after

    def _keep(self, step: Step) -> Return:
        way = step.before
        try:
            minutes = int(self._policy.keep_s // 60) + 2
            self._gateway.keep(way.reservation, way.keep, way.uid, minutes)
        except SlurmError as error:
            # Worth having, and not worth waiting for.
            log.warning("job %d: its places cannot be kept: %s", way.job_id, error)
            return replace(step.after, kept=False)
        return step.after

    def _bring_back(self, step: Step) -> Return:
        way = step.before
        exclude = finisher.choose(self._gateway, way.plan, self._look)
        if exclude is None:
            self._gateway.update_job(way.job_id, StartTime=f"now+{finisher.PUT_OFF_S:.0f}")
            return replace(way, look_at=step.after.look_at)
        if way.kept:
            try:
                finisher.bring_back(self._gateway, way.plan, exclude, way.reservation)
            except SlurmError as error:
                log.warning("job %d: it cannot have its places: %s", way.job_id, error)
            else:
                return step.after
        finisher.bring_back(self._gateway, way.plan, exclude)
        return step.after

    def _orphan(self, name: str) -> None:
        """Delete a reservation that a controller which was killed has left behind."""
        job_id = int(name.removeprefix(KEEPS))
        with self._store.read() as session:
            known = table.returns(session, time.time())
        if all(r.job_id != job_id for r in known):
            self._unreserve(name, job_id)
            log.warning("reservation %s was left behind: deleted", name)

    def _unreserve(self, name: str, job_id: int) -> None:
        """Delete a reservation; Slurm does not while a job is in it, so that leaves first."""
        try:
            job: Job | None = self._gateway.job(job_id)
        except SlurmNotFoundError:
            job = None
        inside = job is not None and job.reservation == name
        if inside and job is not None and job.state in (JobState.PENDING, JobState.RUNNING):
            self._gateway.update_job(job_id, ReservationName="")
        self._gateway.unreserve(name, within_s=0.0)

    def _set_node(self, name: str, state: str, reason: str) -> None:
        """Take a node out of service, unless somebody has by now."""
        node = self._gateway.nodes([name])[name]
        if node.is_down or (state != "DOWN" and not node.is_usable):
            return
        if state == "DOWN" and not self._is_silent(name):
            raise SlurmError(f"{name} answers again: it is not set DOWN")
        self._gateway.update_node(name, State=state, Reason=reason.replace('"', "'")[:240])
        self._recovery_wakes()

    def _is_silent(self, name: str) -> bool:
        """One last look, from a host that others answer."""
        nodes = self._gateway.nodes()
        asked = self._observer.with_witnesses([name], nodes)
        return any(f.node == name for f in self._look(asked, nodes, self._gateway.config()))

    def _check(self, node: str) -> None:
        try:
            outcome = self._inspect(node)
        except HpresumeError as error:
            outcome = Outcome(Call.CHECK, Trouble.TRANSIENT, str(error))
        except Exception as error:
            log.exception("check of %s", node)
            outcome = Outcome(Call.CHECK, Trouble.TRANSIENT, type(error).__name__)
        self._observer.checks_end(node, outcome)
        self.wake()


def _about(action: Action) -> str:
    """What an action is about, for pauses after trouble."""
    match action:
        case Step(before=before):
            return before.reservation
        case Unreserve(name=name):
            return name
        case SetNode(node=node):
            return node
    return ""
