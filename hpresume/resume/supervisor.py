"""The loop around the attempts: run one, say why it ended, decide, carry out.

``main`` has started the first attempt already when this module is loaded.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpresume.errors import SlurmError
from hpresume.resume import protection, stacks
from hpresume.resume.attempt import AttemptEnd, AttemptLoop
from hpresume.resume.controller import Controller
from hpresume.resume.decide import decide, stranded, suppose
from hpresume.resume.evidence import look_once
from hpresume.resume.execute import (
    Executor,
    InterruptedRecoveryError,
    MoreNodesLostError,
    NodesBackError,
    RungFailedError,
)
from hpresume.resume.hang_watch import HangWatch
from hpresume.resume.inquest import Inquest
from hpresume.resume.late_start import LateStart
from hpresume.resume.launch import Launch
from hpresume.resume.logbook import Logbook
from hpresume.resume.model import (
    Action,
    Cause,
    Context,
    Finish,
    GiveUp,
    NodeFault,
    Restart,
    Sign,
    Snapshot,
    StepShape,
    Verdict,
)
from hpresume.resume.observe import (
    Aftermath,
    Baseline,
    busy_nodes,
    context_of,
    haunted_nodes,
    take_aftermath,
    take_baseline,
)
from hpresume.resume.output import OutputFile
from hpresume.resume.output import find as find_output
from hpresume.resume.process import Child
from hpresume.resume.recovery import Recovery, Resumption, rung_of
from hpresume.resume.report import describe, listing, say
from hpresume.resume.signals import SignalPipe
from hpresume.resume.watch import Watch
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import ClusterConfig, Job, JobState

if TYPE_CHECKING:
    from hpresume.resume.regrow import RegrowWatch
    from hpresume.resume.regrowth import Regrowth

#: Longest wait for nodes to report to a slurmctld that was started anew (s).
_UNHEARD_PATIENCE_S = 60.0

#: Time for an old watch step to end in good order (s).
_WATCH_PATIENCE_S = 0.5


class Supervisor:
    """Everything between the first attempt's start and the exit code."""

    def __init__(self, launch: Launch, gateway: SlurmGateway, signals: SignalPipe) -> None:
        self._launch = launch
        self._settings = launch.settings
        self._gateway = gateway
        self._signals = signals
        self._logbook = Logbook(launch)
        self._executor = Executor(gateway, signals)
        self._controller = Controller(launch.settings.controller)
        self._recovery = Recovery(launch, gateway, self._executor, self._logbook, self._controller)
        self._inquest = Inquest(launch, signals, self._executor.pause)
        self._stranded: frozenset[str] = frozenset()
        self._config: ClusterConfig | None = None
        self._announced = False
        self._placed: tuple[str, ...] = ()
        self._full_nodes = 0
        self._late = LateStart(launch, gateway, self._executor, self._recovery, self._logbook)
        self._last_standing: Snapshot | None = None
        self._past_steps: set[str] = set()
        self._step_id = ""
        self._outputs: tuple[int | str, ...] = ()
        if launch.settings.output_timeout:
            self._outputs = find_output(launch.output, launch.error, launch.job_id)
        self._regrowth: Regrowth | None = None
        if launch.settings.regrows:
            from hpresume.resume.regrowth import Regrowth

            check = self._recovery.check
            self._regrowth = Regrowth(launch, gateway, check, self._drop_kept, self._seen)

    def run(self, child: Child, started: float) -> int:
        """Supervise until nothing is left to do; the exit code of srun's kind."""
        while True:
            end, child = self._watch(child, started)
            try:
                following = self._after(end, child)
            except InterruptedRecoveryError as error:
                self._recovery.leave(child)
                self._logbook.finished(error.exit_code, f"{error}", for_good=False)
                say(f"{error} received while recovering: ending")
                return error.exit_code
            finally:
                if end.watch is not None:
                    end.watch.stop(patience_s=_WATCH_PATIENCE_S)
            if isinstance(following, int):
                self._settle()
                self._controller.flush()
                return following
            child, started = following, time.time()
            self._late.next_attempt()

    def _settle(self) -> None:
        if self._regrowth is not None:
            self._regrowth.close(self._logbook.job_id)
        try:
            self._executor.settle()
        except InterruptedRecoveryError:
            pass  # somebody is in a hurry

    # -- one attempt ------------------------------------------------------------

    def _watch(self, child: Child, started: float) -> tuple[AttemptEnd, Child]:
        def prepare() -> Baseline | None:
            job_id = self._launch.job_id
            dead = self._dead_steps(self._logbook.job_id)
            base = take_baseline(self._gateway, job_id, loop.child.pid, self._config, dead)
            if base is None and job_id is not None:
                self._late.find_out(job_id, time.time() - started, dead)
            return base

        def make_watch(base: Baseline, now: float) -> Watch:
            kept = self._regrowth.kept.names if self._regrowth is not None else frozenset()
            names = [n for n in base.job.nodes if n not in kept] or base.step.nodes
            return Watch(
                self._launch.call.path,
                base.job.job_id,
                {n: base.target(n) for n in names},
                self._launch.environ,
                self._settings.heartbeat,
                self._settings.silence_s,
                now,
                self._settings.heartbeat_file,
                (f"{base.job.job_id}.{base.step.step_id}", self._settings.fence_s),
            )

        def examine(nodes: Sequence[str]) -> str:
            step_id, srun = self._step_id, self._launch.call.path
            job_id = self._logbook.job_id or 0
            return stacks.collect(srun, job_id, step_id, nodes, self._launch.environ)

        output = OutputFile(self._outputs, time.monotonic()) if self._outputs else None
        loop = AttemptLoop(
            child, self._signals, self._gateway, self._settings,
            prepare, make_watch, self._watched, started,
            HangWatch(self._settings, output, examine), self._why_stay,
            self._late.instead_of,
        )  # fmt: skip
        return loop.run(), loop.child

    def _watched(self, base: Baseline) -> RegrowWatch | None:
        self._config = base.config
        self._logbook.job_id = base.job.job_id
        self._placed = base.step.nodes
        self._step_id = base.step.step_id
        self._past_steps.add(f"{base.job.job_id}.{base.step.step_id}")
        self._recovery.old_steps = self._dead_steps(base.job.job_id, base.step.step_id)
        self._logbook.watched(base)
        self._last_standing = self._standing(base)
        if not self._announced:
            self._announced = True
            for line in protection.lines(
                self._last_standing, self._settings, sees_output=bool(self._outputs)
            ):
                say(line)
        if self._context(base.job) is Context.BATCH and base.job.requeue:
            within_s = protection.lost_host_seconds(
                base.config, len(base.step.nodes), plugin=self._launch.call.plugin
            )
            self._controller.protect(base.job.job_id, base.job.batch_host, within_s)
        if self._regrowth is None:
            return None
        return self._regrowth.watch(base, self._full_nodes)

    def _dead_steps(self, job_id: int | None, own: str | None = None) -> frozenset[str]:
        """Ids of steps of earlier attempts, which slurmctld may still hold."""
        parts = [step.split(".") for step in self._past_steps]
        return frozenset(step for job, step in parts if job == f"{job_id}" and step != own)

    def _drop_kept(self, job: Job, nodes: Sequence[str]) -> bool:
        return self._recovery.drop_beside(job, self._placed, nodes)

    def _why_stay(self, faults: tuple[NodeFault, ...]) -> str:
        """Why a step that runs well should not leave marked nodes; empty: it can."""
        if self._last_standing is None:
            return "nothing is known of the job yet"
        action = suppose(self._last_standing, self._settings, faults)
        return action.reason if isinstance(action, GiveUp | Finish) else ""

    def _standing(self, base: Baseline) -> Snapshot:
        """The snapshot of a step that runs well."""
        return Snapshot(
            context=self._context(base.job),
            verdict=Verdict(Cause.COMPLETED),
            exit_code=0,
            step=self._shape(base, base.job),
            config=base.config,
            job=base.job,
            unusable=base.unusable | self._inquest.unhealthy(base.nodes) | self._stranded,
            busy=base.busy,
            history=self._logbook.history,
            original_nodes=self._launch.original_nodes,
            here=self._launch.here,
        )

    def _context(self, job: Job | None) -> Context:
        if self._launch.allocates:
            return Context.STANDALONE
        return Context.ATTACHED if job is None else context_of(job, self._launch.environ)

    def _shape(self, base: Baseline | None, job: Job | None) -> StepShape:
        """What the step needs; for an attempt too short to be looked at, what the last one had.

        The whole job where there was none.
        """
        tasks = 0
        if base is not None:
            nodes, count = base.step.nodes, base.step.num_nodes or len(base.step.nodes)
            if self._launch.tasks_follow_nodes and base.step.num_tasks % max(1, count) == 0:
                tasks = base.step.num_tasks // max(1, count)
        elif self._placed:
            nodes, count = self._placed, len(self._placed)
        else:
            nodes = job.nodes if job else ()
            count = len(nodes)
        self._full_nodes = max(self._full_nodes, count)
        launch = self._launch
        return StepShape(
            nodes, self._full_nodes, launch.excluded, launch.can_overlap, tasks, launch.exact
        )

    # -- after it ------------------------------------------------------------------

    def _after(self, end: AttemptEnd, child: Child) -> Child | int:
        """What follows: another child, or the exit code to end with."""
        if end.exit_code == 0 and not end.stopped_for and not end.found:
            self._logbook.finished(0, "completed")
            return 0
        self._recovery.old_steps = self._dead_steps(self._logbook.job_id)
        if end.stacks:
            self._keep_stacks(end.stacks)
        names = end.baseline.step.nodes if end.baseline else ()
        after = take_aftermath(self._gateway, self._logbook.job_id, names, self._config)
        self._config = after.config
        nodes = self._shape(end.baseline, after.job).nodes
        verdict = self._inquest.verdict(end, after, nodes)
        if verdict.cause is Cause.COMPLETED:
            self._logbook.finished(0, "completed")
            return 0
        self._logbook.ended(end, verdict)
        return self._resume(end, after, verdict, child)

    def _keep_stacks(self, text: str) -> None:
        """What every rank was doing, beside the journal."""
        name = f".step{self._step_id}.attempt{self._logbook.attempt}.stacks.txt"
        path = self._logbook.path.with_suffix(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            say(f"the ranks' stacks cannot be kept: {path}: {error.strerror}")
        else:
            say(f"the training hangs; what its ranks are doing is in {path}")

    def _resume(
        self, end: AttemptEnd, after: Aftermath, verdict: Verdict, child: Child
    ) -> Child | int:
        snapshot = self._snapshot(end, after, verdict)
        action = self._decide(snapshot)
        self._controller.blame(self._logbook.job_id, verdict.faults)
        lived = end.ended - end.started
        if not isinstance(action, Finish):
            attempt = self._logbook.attempt
            say(f"attempt {attempt} ended after {lived:.1f} s: {verdict.cause}: {verdict.text}")
            if after.unheard:
                after = self._heard_of(after, verdict)
                snapshot = self._snapshot(end, after, verdict)
                action = self._decide(snapshot)
        while not isinstance(action, Finish | GiveUp):
            say(describe(action))
            self._logbook.acts(action)
            following = self._try(action, snapshot, end, after, child)
            if isinstance(following, Child):
                if isinstance(action, Restart):
                    self._placed = action.nodes
                    if self._regrowth is not None:
                        self._regrowth.kept.keep(action.keep, action.keep_until)
                took = time.time() - end.seen_at
                grows = verdict.cause is Cause.REGROW
                since = "the last one was left" if grows else "the failure was seen"
                say(f"attempt {self._logbook.attempt} started {took:.1f} s after {since}")
                return following
            snapshot = following
            action = self._decide(snapshot)
        return self._end(action, snapshot, child)

    def _heard_of(self, after: Aftermath, verdict: Verdict) -> Aftermath:
        """The aftermath once slurmctld has heard of every node that answers us.

        Before, it starts no step there, and good nodes would be taken for bad ones.
        """
        began, told = time.monotonic(), False
        blamed = {f.node for f in verdict.faults}
        while time.monotonic() - began < _UNHEARD_PATIENCE_S:
            silent = after.unheard - blamed
            if silent and after.job and after.nodes and after.config:
                lost = look_once(after.job.nodes, after.nodes, after.config)
                silent -= {f.node for f in lost}
            if not silent:
                break
            if not told:
                told = True
                say(f"slurmctld has not heard of {listing(sorted(silent))} yet: waiting for it")
            self._executor.pause(0.5)
            after = take_aftermath(self._gateway, self._logbook.job_id, blamed, self._config)
        return after

    def _try(
        self,
        action: Resumption,
        snapshot: Snapshot,
        end: AttemptEnd,
        after: Aftermath,
        child: Child,
    ) -> Child | Snapshot:
        """The next attempt, or what is known after this way has failed."""
        step_id = end.baseline.step.step_id if end.baseline else None
        self._recovery.hold_until = end.fenced_at
        try:
            return self._recovery.carry_out(action, snapshot, after, child, step_id, end.watch)
        except MoreNodesLostError as more:
            say(str(more))
            self._logbook.blamed(more.faults, time.time())
            self._controller.blame(self._logbook.job_id, more.faults)
            return _with_faults(self._recovery.refreshed(snapshot), more.faults)
        except NodesBackError as back:
            say(str(back))
            return with_returned(self._recovery.refreshed(snapshot), back.nodes)
        except (RungFailedError, SlurmError, OSError) as error:
            say(f"that failed: {error}")
            failed = (*snapshot.failed, (rung_of(action), str(error)))
            return replace(self._recovery.refreshed(snapshot), failed=failed)

    def _end(self, action: Finish | GiveUp, snapshot: Snapshot, child: Child) -> int:
        code = self._recovery.leave(child)
        if isinstance(action, GiveUp):
            code = code or 1  # srun may end with 0 after the loss of a node
            say(f"not resumed: {action.reason}; exit code {code}")
        # A job that Slurm took back or ended may run again, with the budgets as they are.
        job = snapshot.job
        runs = job is not None and job.state is JobState.RUNNING and not job.is_being_preempted
        for_good = runs or snapshot.context is Context.STANDALONE
        self._logbook.finished(code, action.reason, for_good=for_good)
        return code

    def _snapshot(self, end: AttemptEnd, after: Aftermath, verdict: Verdict) -> Snapshot:
        away: frozenset[str] = frozenset()
        if self._regrowth is not None:
            away = self._regrowth.away(after, after.config)
        return replace(
            self._seen(end.baseline, after),
            verdict=verdict,
            exit_code=end.exit_code,
            unusable=after.unusable | away | self._inquest.unhealthy(after.nodes or {}),
            lost_since=end.lost_since,
            finisher=self._controller.watches,
            jitter=random.random(),  # noqa: S311 - spreads restarts, guards nothing
        )

    def _seen(self, base: Baseline | None, after: Aftermath) -> Snapshot:
        """What Slurm says now of the job and its steps; no verdict, no faults."""
        own = base.step.step_id if base else None
        job = after.job
        dead = self._dead_steps(job.job_id if job else None, own)
        alive = [s for s in after.steps if s.step_id not in dead]
        return Snapshot(
            context=self._context(job),
            verdict=Verdict(Cause.COMPLETED),
            exit_code=0,
            step=self._shape(base, job),
            config=after.config,
            job=job,
            unusable=after.unusable,
            busy=busy_nodes(alive, own),
            history=self._logbook.history,
            original_nodes=self._launch.original_nodes,
            here=self._launch.here,
            haunted=haunted_nodes(after.steps, dead),
        )

    def _decide(self, snapshot: Snapshot) -> Action:
        # One that has to stay in the job would seem to be good again at the next failure.
        now_stranded = stranded(snapshot)
        unusable = snapshot.unusable | (self._stranded - now_stranded)
        self._stranded |= now_stranded
        snapshot = replace(snapshot, unusable=unusable)
        return decide(snapshot, self._settings, time.time())


def with_returned(snapshot: Snapshot, nodes: Sequence[str]) -> Snapshot:
    """The snapshot after lost nodes came back before Slurm missed them. Pure."""
    verdict = snapshot.verdict
    faults = tuple(
        NodeFault(f.node, Sign.REBOOTED, "is back: its tasks are gone") if f.node in nodes else f
        for f in verdict.faults
    )
    unusable = snapshot.unusable - set(nodes)
    return replace(snapshot, verdict=replace(verdict, faults=faults), unusable=unusable)


def _with_faults(snapshot: Snapshot, faults: tuple[NodeFault, ...]) -> Snapshot:
    """The snapshot after further nodes turned out to be lost. Pure."""
    verdict = replace(
        snapshot.verdict,
        cause=Cause.NODE_FAILURE,
        faults=(*snapshot.verdict.faults, *faults),
    )
    return replace(snapshot, verdict=verdict)
