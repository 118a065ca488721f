"""From an action to the next attempt's srun."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpresume.errors import SlurmError
from hpresume.resume import finisher, protection, stacks, terminal
from hpresume.resume.command import placement, reallocation
from hpresume.resume.controller import Controller
from hpresume.resume.decide import no_overlap
from hpresume.resume.environment import AttemptFacts, attempt_environment
from hpresume.resume.evidence import look_once
from hpresume.resume.execute import CHECK_AGAIN_S, Executor, OldStep, RungFailedError
from hpresume.resume.launch import Launch
from hpresume.resume.logbook import Logbook
from hpresume.resume.message import Requeues
from hpresume.resume.model import (
    Await,
    Grow,
    NodeFault,
    Reallocate,
    Requeue,
    Restart,
    Rung,
    Sign,
    Snapshot,
)
from hpresume.resume.observe import Aftermath, orphaned_steps
from hpresume.resume.process import Child, spawn
from hpresume.resume.report import listing, say
from hpresume.resume.resized import displaced, over_lost_cores
from hpresume.resume.watch import Watch
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import ClusterConfig, Job, Step
from hpresume.slurm.ports import master_port

if TYPE_CHECKING:
    from hpresume.resume.node_check import NodeHealth

#: Longest time for the end of old ranks on a node that came back, and the pause between looks (s).
_CLEAR_LIMIT_S = 15.0
_CLEAR_POLL_S = 0.2

#: Actions that start something again.
Resumption = Restart | Await | Grow | Requeue | Reallocate


def rung_of(action: Resumption) -> Rung:
    """The rung of the ladder that an action stands on. Pure."""
    match action:
        case Restart(rung=rung):
            return rung
        case Await():
            return Rung.REPLACE
        case Grow():
            return Rung.GROW
        case Requeue():
            return Rung.REQUEUE
    return Rung.NEW


class Recovery:
    """Leaves an attempt that failed and starts the next one.

    ``command`` and ``environ`` are those of the srun of the running attempt; further
    options can be put at ``insert_at``. Nothing
    is started before ``hold_until`` (monotonic s), when no rank of the old one runs.
    ``old_steps`` are ids of steps of earlier attempts in this run of the job.
    """

    def __init__(
        self,
        launch: Launch,
        gateway: SlurmGateway,
        executor: Executor,
        logbook: Logbook,
        controller: Controller,
    ) -> None:
        self._launch = launch
        self._gateway = gateway
        self._executor = executor
        self._logbook = logbook
        self._controller = controller
        self._miscounted = False
        self._told_around = False
        self.hold_until = 0.0
        self.old_steps: frozenset[str] = frozenset()
        self.command = list(launch.first_command)
        self.insert_at = launch.call.insert_at
        self.environ = dict(launch.first_environ)

    def leave(self, child: Child) -> int:
        """End what is left of an attempt for good; the exit code of its srun."""
        old = OldStep(child, None, None)
        self._executor.end_step(old, reachable=False)
        code = self._executor.reap(old)
        terminal.restore(self._launch.terminal)
        return code

    def carry_out(
        self,
        action: Resumption,
        snapshot: Snapshot,
        after: Aftermath,
        child: Child,
        step_id: str | None,
        watch: Watch | None,
    ) -> Child:
        """The next attempt, started.

        Raises:
            RungFailedError, SlurmError, OSError: this way does not work.
            MoreNodesLostError: decide again, with these faults.
            NodesBackError: decide again, with these nodes.
            InterruptedRecoveryError: somebody asked to end.
        """
        if isinstance(action, Reallocate):
            return self._reallocate(action, snapshot, child)
        job, config = snapshot.job, after.config
        if job is None or config is None:
            raise RungFailedError("Slurm does not know the job")
        old = self._old_step(action, snapshot, after, child, step_id, watch)
        if isinstance(action, Requeue):
            self._requeue(action, snapshot, job, config, old)
            raise RungFailedError("the job was not requeued")
        if isinstance(action, Await):
            self._executor.await_nodes(
                action, old, config, lambda: self._are_well(job, config, action.missing)
            )
            return self._start_over(job.job_id, action, old)
        self._wait(action.delay_s)
        if isinstance(action, Grow):
            timeout_s = self._launch.settings.grow_timeout
            new, gone = self._executor.grow(action, job, old, config, timeout_s)
            say(f"{listing(new)} merged into job {job.job_id}")
            return self._start_grown(snapshot, job.job_id, action, new, gone=gone)
        if job.tres_gres and displaced(job.nodes, snapshot.step.nodes, action.drop):
            self._miscounted = True
        overlap = self._executor.restart(action, job, old, config.kill_wait_s)
        if overlap and not config.overlaps_everything and (obstacle := no_overlap(snapshot)):
            raise RungFailedError(f"the dead step is not gone, and {obstacle} cannot start over it")
        overlap = overlap or (self._miscounted and snapshot.step.can_overlap)
        overlap = overlap or over_lost_cores(snapshot, action.nodes, shrunk=bool(action.drop))
        return self._start_on(job.job_id, action.nodes, overlap=overlap, tasks=action.tasks)

    def refreshed(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the job as it is now; an attempt to recover may have changed it."""
        try:
            job = self._gateway.job(snapshot.job.job_id) if snapshot.job else None
        except SlurmError:
            job = snapshot.job
        return replace(snapshot, job=job)

    def drop_beside(self, job: Job, step: Sequence[str], nodes: Sequence[str]) -> bool:
        """Take nodes out of the job beside a step that runs on ``step``."""
        orphans = self._orphans(self._gateway.steps(job.job_id), None, nodes, job.start_time)
        if job.tres_gres and displaced(job.nodes, step, nodes):
            self._miscounted = True
        return self._executor.drop(job, nodes, orphans)

    # -- what is left behind -------------------------------------------------------

    def _old_step(
        self,
        action: Restart | Await | Grow | Requeue,
        snapshot: Snapshot,
        after: Aftermath,
        child: Child,
        step_id: str | None,
        watch: Watch | None,
    ) -> OldStep:
        held = any(s.step_id == step_id for s in after.steps)
        orphans: tuple[str, ...] = ()
        if not isinstance(action, Await) and action.drop:
            since = snapshot.job.start_time if snapshot.job else 0.0
            orphans = self._orphans(after.steps, step_id, action.drop, since)
        return OldStep(
            child,
            self._logbook.job_id,
            step_id if held else None,
            watch,
            orphans,
            lambda: _newly_lost(snapshot, after),
            lambda: self._is_deserted(snapshot, step_id),
        )

    def _orphans(
        self, steps: Iterable[Step], own: str | None, dropped: Iterable[str], since: float
    ) -> tuple[str, ...]:
        """Other steps to cancel that lose a node with the drop; ``since`` the job's start.

        Never the one in which this process runs: it would end with it.
        """
        found = orphaned_steps(steps, own, dropped, self._logbook.protected_steps(since))
        around = self._launch.surrounding_step
        if around in found and not self._told_around:
            self._told_around = True
            say(
                f"step {self._logbook.job_id}.{around}, in which this srun runs, has lost its task"
                " there too: its own srun may wait for that at the end"
            )
        return tuple(step for step in found if step != around)

    def check(
        self, job: Job, config: ClusterConfig, nodes: Sequence[str]
    ) -> tuple[NodeHealth, ...]:
        """The health of nodes that came back, as far as the user wants it checked.

        What still runs there of earlier attempts is killed first.
        """
        from hpresume.resume import node_check

        haunted = tuple(
            node_check.NodeHealth(n, (f"ranks of step {step_id} may still run there",))
            for n, step_id in self._clear(job.job_id, nodes).items()
        )
        nodes = [n for n in nodes if all(n != ill.node for ill in haunted)]
        limit_s = self._launch.settings.health_check
        if not limit_s or not nodes:
            return haunted
        devices = bool(job.tres_gres and config.constrains_devices)
        srun, environ = self._launch.call.path, self._launch.environ
        return haunted + node_check.check(
            srun, job.job_id, nodes, environ, limit_s=limit_s, devices=devices
        )

    def _clear(self, job_id: int, nodes: Sequence[str]) -> dict[str, str]:
        """Have ranks of earlier attempts on ``nodes`` killed; where that fails, with the step.

        A node that was merely cut off still has them. Those that print nothing do not
        notice that their srun is gone (22.05: they lived on until the end of the job).
        """
        left = {
            step.step_id: [n for n in nodes if n in step.nodes]
            for step in self._gateway.steps(job_id)
            if step.step_id in self.old_steps and not set(nodes).isdisjoint(step.nodes)
        }
        for step_id in left:
            self._executor.kill_step(job_id, step_id)
        deadline = time.monotonic() + _CLEAR_LIMIT_S
        while left and time.monotonic() < deadline:
            for step_id, names in list(left.items()):
                if self._runs_nowhere(job_id, step_id, names):
                    del left[step_id]
            time.sleep(_CLEAR_POLL_S if left else 0.0)
        return {n: step_id for step_id, names in left.items() for n in names}

    def _runs_nowhere(self, job_id: int, step_id: str, nodes: Sequence[str]) -> bool:
        srun, environ = self._launch.call.path, self._launch.environ
        return stacks.is_deserted(srun, job_id, step_id, nodes, environ)

    def _are_well(self, job: Job, config: ClusterConfig, nodes: Sequence[str]) -> bool:
        """Whether nodes that came back may be used; what is not known is said only."""
        found = self.check(job, config, nodes)
        for health in found:
            say(health.text)
        return not any(health.faults for health in found)

    def _is_deserted(self, snapshot: Snapshot, step_id: str | None) -> bool:
        lost = {f.node for f in snapshot.verdict.faults}
        nodes = [n for n in snapshot.step.nodes if n not in lost]
        job_id = self._logbook.job_id
        if job_id is None or step_id is None or not nodes or not snapshot.step.can_overlap:
            return False
        return self._runs_nowhere(job_id, step_id, nodes)

    def _wait(self, delay_s: float) -> None:
        if delay_s > 0:
            say(f"waiting {delay_s:.1f} s before the next attempt")
            self._executor.pause(delay_s)

    # -- starting -----------------------------------------------------------------------

    def _reallocate(self, action: Reallocate, snapshot: Snapshot, child: Child) -> Child:
        self.leave(child)
        self._executor.release(self._logbook.job_id)
        self._wait(action.delay_s)
        self._logbook.job_id = None
        exclude = self._avoidable(action, snapshot)
        nodelist = self._launch.nodelist
        if nodelist is not None:
            nodelist = tuple(n for n in nodelist if n not in exclude)
        count = snapshot.step.num_nodes
        return self._start(reallocation(exclude, nodelist, count), AttemptFacts(0, 0))

    def _avoidable(self, action: Reallocate, snapshot: Snapshot) -> tuple[str, ...]:
        """The nodes to exclude: none but the user's where the partition is too small for that.

        Slurm would refuse the allocation. It gives out no node on which the lost job has not
        ended, so it starts once the node is back.
        """
        job, count = snapshot.job, snapshot.step.num_nodes
        try:
            nodes = self._gateway.nodes() if job else {}
        except SlurmError:
            return action.exclude
        if job is None or finisher.has_enough(nodes, job.partition, count, action.exclude):
            return action.exclude
        own = self._launch.excluded
        needed = [n for n in action.exclude if n not in own]
        say(f"partition {job.partition} is too small without {listing(needed)}: waiting for it")
        return tuple(n for n in action.exclude if n in own)

    def _start_grown(
        self, snapshot: Snapshot, job_id: int, action: Grow, new: Sequence[str], *, gone: bool
    ) -> Child:
        job = self._gateway.job(job_id)
        wanted = set(action.keep) | set(new)
        needed = len(action.keep) + action.count
        nodes = tuple(n for n in job.nodes if n in wanted)[:needed]
        if len(nodes) < needed:
            raise RungFailedError(f"job {job_id} got {len(nodes)} of {needed} nodes")
        overlap = not gone or over_lost_cores(snapshot, nodes, shrunk=True)
        return self._start_on(job_id, nodes, overlap=overlap)

    def _start_over(self, job_id: int, action: Await, old: OldStep) -> Child:
        """Start on nodes of which some are new machines; the dead step may linger."""
        gone = self._executor.wait_step_gone(job_id, old, 1.5)
        return self._start_on(job_id, action.nodes, overlap=not gone)

    def _start_on(
        self, job_id: int, nodes: Sequence[str], *, overlap: bool, tasks: int = 0
    ) -> Child:
        job = self._gateway.job(job_id)
        master = self._gateway.nodes(nodes[:1])[nodes[0]]
        facts = AttemptFacts(0, 0, job.nodes, tuple(nodes), master.address)
        chosen = self._launch.task_nodes
        options = placement(nodes, overlap=overlap, tasks=tasks, task_nodes=chosen)
        return self._start(options, facts)

    def _hold(self) -> None:
        """Wait for the ranks of a node that is cut off, which end with their lease."""
        left = self.hold_until - time.monotonic()
        if left > 0:
            say(f"waiting {left:.1f} s: then the ranks on what was lost have ended themselves")
            self._executor.pause(left)

    def _start(self, options: list[str], facts: AttemptFacts) -> Child:
        self._hold()
        book = self._logbook
        book.attempt += 1
        port = master_port(book.job_id or os.getpid(), os.getpid(), book.attempt)
        facts = replace(facts, attempt=book.attempt, master_port=port)
        self.environ = attempt_environment(self._launch.environ, facts)
        self.command = self._launch.again.attempt(options)
        self.insert_at = self._launch.again.insert_at
        terminal.restore(self._launch.terminal)
        child = spawn(self.command, self.environ)
        book.begun(facts.step_nodes)
        return child

    def _requeue(
        self, action: Requeue, snapshot: Snapshot, job: Job, config: ClusterConfig, old: OldStep
    ) -> None:
        requested = tuple(n for n in job.requested_nodes if n not in action.exclude)
        plan = finisher.Finishing(
            job.job_id, job.restarts, action.num_nodes, action.exclude, requested
        )
        self._hold()
        taken = self._executor.interruptible(lambda: self._controller.requeue(_request(plan)))
        if taken:
            say("the controller keeps the job's places and brings it back")
            plan = replace(plan, patience_s=finisher.PATIENCE_S)
        elif config.kills_detached_processes and action.fast:
            # Shrunk, it would come back with fewer nodes, and nobody to give them back.
            dead = action.waits_for_nodes or bool(action.drop)
            action = replace(action, fast=False, drop=(), waits_for_nodes=dead)
        self._logbook.record("requeue", exclude=list(action.exclude), fast=action.fast)
        expected = protection.requeue_seconds(
            config,
            fast=action.fast,
            waits_for_nodes=action.waits_for_nodes,
            lingers=action.lingers,
        )
        say(f"the job should run again in about {expected:.0f} s, if nodes are free")
        log = self._logbook.path.with_suffix(".finisher.log")
        # Slurm's tools may be on this process's PATH only.
        environ = {**self._launch.environ, "PATH": os.environ.get("PATH", os.defpath)}
        self._executor.requeue(
            action,
            job,
            old,
            lambda: finisher.start(plan, str(log), environ),
            2.0 * config.slurmd_timeout_s + 60.0,
            self._returned(snapshot, job, config),
        )

    def _returned(
        self, snapshot: Snapshot, job: Job, config: ClusterConfig
    ) -> Callable[[], tuple[str, ...]]:
        """What tells the lost nodes of the job once all are back and well; else none."""
        lost = {f.node for f in snapshot.verdict.faults if f.sign is Sign.LOST}
        names = tuple(n for n in job.nodes if n in lost)
        checked = float("-inf")

        def look() -> tuple[str, ...]:
            nonlocal checked
            now = time.monotonic()
            if not names or now - checked < CHECK_AGAIN_S:
                return ()
            if not self._executor.are_back(names, config):
                return ()
            checked = now
            if config.launches_after_prolog_only:
                return names  # no step may be tried there, not even a check
            return names if self._are_well(job, config, names) else ()

        return look


def _request(plan: finisher.Finishing) -> Requeues:
    return Requeues(plan.job_id, plan.restarts, plan.num_nodes, plan.exclude, plan.requested)


def _newly_lost(snapshot: Snapshot, after: Aftermath) -> tuple[NodeFault, ...]:
    """Nodes that were good when the decision was made and do not answer now."""
    known = {f.node for f in snapshot.verdict.faults}
    job, config = snapshot.job, after.config
    if job is None or config is None or not after.nodes:
        return ()
    return look_once([n for n in job.nodes if n not in known], after.nodes, config)
