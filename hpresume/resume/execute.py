"""Carrying out an action: leave the old attempt, prepare the next.

Everything here is bounded in time and can be interrupted by a signal that
asks the supervisor to end. A rung that turns out impossible raises
``RungFailedError``; the ladder then goes on without it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hpresume.errors import HpresumeError, SlurmError, SlurmNotFoundError, SlurmTransientError
from hpresume.resume import waits
from hpresume.resume.background import Background, detached
from hpresume.resume.evidence import look_once
from hpresume.resume.model import Await, Grow, NodeFault, Requeue, Restart
from hpresume.resume.process import Child
from hpresume.resume.report import listing, say
from hpresume.resume.signals import ENDING, SignalPipe
from hpresume.resume.watch import Watch
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import ClusterConfig, DonorSpec, Job

T = TypeVar("T")

#: How often slurmctld is asked whether the old step is gone (s). Starting the
#: new srun earlier costs its own two-second retry pause.
_POLL_S = 0.04

#: How often nodes are looked at while an old step does not end (s).
_LOOK_AGAIN_S = 1.5

#: How often a node that is to come back is looked for, and how often that is told (s).
_AWAIT_POLL_S = 1.0
_TELL_S = 15.0

#: How long a node that came back ill is left before it is checked again (s).
CHECK_AGAIN_S = 30.0

#: How often lost nodes are looked for while Slurm is to notice their loss (s).
_LOOK_BACK_S = 3.0

#: Time for a step to end in good order before its job is requeued (s).
_LEAVE_S = 2.0

#: When nodes are looked at for the first time; most steps are gone by then (s).
_FIRST_LOOK_S = 0.7

#: Time from the end of a large step to the requeue of its job (s). Its slurmstepd
#: wait for that of the dead node, 3 s a level of their tree; the end of the job
#: would start their UnkillableStepTimeout, after which slurmd drains their nodes.
_SETTLE_TREE_S = 9.0

#: When the old step's tasks are killed through slurmctld as well (s).
_NUDGE_AFTER_S = 6.0


@dataclass(frozen=True)
class OldStep:
    """The attempt to leave: its srun, its step where it is known, its watch step.

    ``orphans`` are other steps of the job that lose a node with the drop;
    ``look`` finds nodes that were lost since; ``is_deserted`` says whether
    surely none of its ranks runs any more.
    """

    child: Child
    job_id: int | None
    step_id: str | None
    watch: Watch | None = None
    orphans: tuple[str, ...] = ()
    look: Callable[[], tuple[NodeFault, ...]] = tuple
    is_deserted: Callable[[], bool] = bool


class RungFailedError(HpresumeError):
    """A rung of the ladder could not be carried out."""


class MoreNodesLostError(HpresumeError):
    """Nodes were lost while the loss of others was dealt with."""

    def __init__(self, faults: tuple[NodeFault, ...]) -> None:
        super().__init__("; ".join(f"{f.node} {f.evidence}" for f in faults))
        self.faults = faults


class NodesBackError(HpresumeError):
    """Lost nodes are back, and the job with them: Slurm will not requeue it any more."""

    def __init__(self, nodes: Sequence[str]) -> None:
        super().__init__(f"{listing(nodes)} came back before Slurm noticed the loss")
        self.nodes = tuple(nodes)


class InterruptedRecoveryError(HpresumeError):
    """Somebody asked the supervisor to end while it was recovering."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class Executor:
    """The I/O behind the actions, for one supervisor."""

    def __init__(self, gateway: SlurmGateway, signals: SignalPipe) -> None:
        self._gateway = gateway
        self._signals = signals
        self._left_at = float("-inf")

    # -- waiting ----------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Wait; raises ``InterruptedRecoveryError`` when asked to end."""
        deadline = time.monotonic() + seconds
        while True:
            self._check_signals()
            left = deadline - time.monotonic()
            if left <= 0:
                return
            select.select([self._signals.fd], [], [], left)

    def _check_signals(self) -> None:
        for received in self._signals.read():
            if received.signum in ENDING or received.signum == signal.SIGINT:
                raise InterruptedRecoveryError(received.signum)

    def settle(self) -> None:
        """Let slurmstepd of a step that was left behind get over it, before the job may end.

        The end of the job would start their UnkillableStepTimeout, and slurmd
        would drain their nodes for nothing.
        """
        left = self._left_at + _SETTLE_TREE_S - time.monotonic()
        if left > 0:
            self.pause(left)

    def interruptible(self, call: Callable[[], T]) -> T:
        """Run a slow call; a signal that asks to end does not wait for it."""
        task = Background(call)
        while not task.done():
            select.select([self._signals.fd, task.fd], [], [], 1.0)
            self._check_signals()
        return task.result()

    # -- rungs ------------------------------------------------------------------

    def end_step(self, old: OldStep, *, reachable: bool) -> None:
        """Have the tasks of an attempt killed whose srun still runs.

        Through slurmctld, with srun left to take the news: a slurmstepd that
        finds its srun dead tries for two seconds to tell it of the tasks' end.
        Not while a dead node is in the step (``reachable`` False): scancel would
        wait 40 s for it. Then the end of srun has to do.
        """
        if old.child.poll() is not None:
            return
        if reachable and old.step_id is not None and old.job_id is not None:
            self.kill_step(old.job_id, old.step_id)
        else:
            old.child.send(signal.SIGKILL)

    def reap(self, old: OldStep) -> int:
        """Make sure that the old srun is dead; its exit code.

        An old srun that is still ending could send its kill to the new step.
        """
        old.child.send(signal.SIGKILL)
        return old.child.wait()

    def restart(self, action: Restart, job: Job, old: OldStep, kill_wait_s: int) -> bool:
        """End the old step, drop nodes; whether to start with ``--overlap``."""
        dropped = self.drop(job, action.drop, old.orphans) if action.drop else True
        self.end_step(old, reachable=dropped and not action.overlap)
        limit = 1.5 if action.overlap else kill_wait_s + 10.0
        gone = self.wait_step_gone(job.job_id, old, limit)
        self.reap(old)
        return action.overlap or not dropped or not gone

    def drop(self, job: Job, nodes: Iterable[str], orphans: Iterable[str]) -> bool:
        """Take nodes out of the job, as it is now; False where Slurm refuses.

        Orphans are cancelled: their srun would not hear of the loss any more.
        """
        off = set(nodes)
        try:
            current = self._gateway.job(job.job_id)
            keep = [n for n in current.nodes if n not in off]
            if len(keep) < len(current.nodes):
                self._gateway.set_job_nodes(job.job_id, keep)
        except SlurmError as error:
            if not self._has_left(job.job_id, off):
                say(f"{listing(sorted(off))} cannot be dropped from job {job.job_id}: {error}")
                return False
        for step_id in orphans:
            say(
                f"step {job.job_id}.{step_id} ran on {listing(sorted(off))} too and is not"
                " protected: cancelled"
            )
            self.kill_step(job.job_id, step_id, signame=None)
        return True

    def _has_left(self, job_id: int, nodes: set[str]) -> bool:
        """Whether the supervisor of another step of the job was faster."""
        try:
            return nodes.isdisjoint(self._gateway.job(job_id).nodes)
        except SlurmError:
            return False

    def wait_step_gone(self, job_id: int, old: OldStep, limit_s: float) -> bool:
        """Wait until slurmctld has let go of a step; False where it does not.

        That is past the limit, or as soon as no rank of the step is left.

        Raises:
            MoreNodesLostError: another node was lost, which the step waits for.
        """
        if old.step_id is None:
            return True
        began = time.monotonic()
        looked = began - _LOOK_AGAIN_S + _FIRST_LOOK_S
        nudged = False
        while (now := time.monotonic()) - began < limit_s:
            try:
                steps = self._gateway.steps(job_id)
            except SlurmTransientError:
                steps = None
            if steps is not None and all(s.step_id != old.step_id for s in steps):
                return True
            if not nudged and now - began > _NUDGE_AFTER_S:
                nudged = True
                self.kill_step(job_id, old.step_id)
            if now - looked > _LOOK_AGAIN_S:
                faults = old.look()
                if faults:
                    raise MoreNodesLostError(faults)
                if old.is_deserted():
                    self._left_at = now
                    return False
                looked = time.monotonic()
            self.pause(_POLL_S)
        return False

    def kill_step(self, job_id: int, step_id: str, signame: str | None = "KILL") -> None:
        """Begin to cancel a step; not waited for: scancel may take 40 s over a dead node."""

        def cancel() -> None:
            try:
                self._gateway.cancel(job_id, step_id, signame)
            except SlurmError:
                pass  # only a nudge; whoever waits for the end has a limit

        detached(cancel)

    def grow(
        self, action: Grow, job: Job, old: OldStep, config: ClusterConfig, timeout_s: float
    ) -> tuple[tuple[str, ...], bool]:
        """Drop the bad nodes and merge new ones in.

        The new nodes' names, and whether slurmctld has let go of the old step.
        """
        if action.drop and not self.drop(job, action.drop, old.orphans):
            raise RungFailedError("the bad nodes cannot be dropped")
        self.end_step(old, reachable=True)
        gone = self.wait_step_gone(job.job_id, old, config.kill_wait_s + 10.0)
        self.reap(old)
        donor = donor_for(action, job, time.time())
        try:
            new = self.interruptible(lambda: self._gateway.grow_job(donor, timeout_s))
        except SlurmError as error:
            raise RungFailedError(str(error)) from error
        except InterruptedRecoveryError:
            self._cancel_donors(job.job_id)
            raise
        return new, gone

    def _cancel_donors(self, job_id: int) -> None:
        try:
            for other in self._gateway.own_jobs():
                if other.name.startswith(f"hpresume-grow-{job_id}-"):
                    self._gateway.cancel(other.job_id)
        except SlurmError as error:
            say(f"the job that was to bring new nodes may still wait: {error}")

    def await_nodes(
        self,
        action: Await,
        old: OldStep,
        config: ClusterConfig,
        are_well: Callable[[], bool],
    ) -> None:
        """Hold the allocation until lost nodes are back under their names.

        A node is back when slurmctld takes it as usable and its slurmd answers at
        the address that slurmctld knows now; while it is gone, the first may still
        be true, since slurmctld has not noticed. Then it is checked, and checked again
        now and then while it is ill.
        """
        self.end_step(old, reachable=False)
        if old.watch is not None:
            old.watch.stop()
        self.reap(old)
        told_slurm = old.job_id is not None and waits.tell(
            self._gateway, old.job_id, action.missing
        )
        try:
            self._until_back(action, old, config, are_well)
        finally:
            if told_slurm and old.job_id is not None:
                waits.tell(self._gateway, old.job_id, ())

    def _until_back(
        self, action: Await, old: OldStep, config: ClusterConfig, are_well: Callable[[], bool]
    ) -> None:
        began = told = time.monotonic()
        checked = began - CHECK_AGAIN_S
        while (now := time.monotonic()) - began < action.limit_s:
            if now - checked >= CHECK_AGAIN_S and self.are_back(action.missing, config):
                say(f"{listing(action.missing)} came back after {now - began:.0f} s")
                if self.interruptible(are_well):
                    return
                checked = time.monotonic()
            if now - told >= _TELL_S:
                told = now
                waited = f"{now - began:.0f} s of up to {action.limit_s:.0f} s"
                say(f"waiting for {listing(action.missing)}: {waited}")
            faults = old.look()
            if faults:
                raise MoreNodesLostError(faults)
            self.pause(_AWAIT_POLL_S)
        how = "in order " if checked > began else ""
        raise RungFailedError(
            f"{listing(action.missing)} did not come back {how}within {action.limit_s:.0f} s"
        )

    def are_back(self, names: Sequence[str], config: ClusterConfig) -> bool:
        """Whether slurmctld takes nodes as usable, and their slurmd answers where it says."""
        try:
            nodes = self._gateway.nodes(names)
        except SlurmError:
            return False
        if not all(nodes[n].is_usable for n in names):
            return False
        return not look_once(names, nodes, config, lone=True)

    def requeue(
        self,
        action: Requeue,
        job: Job,
        old: OldStep,
        start_finisher: Callable[[], None],
        patience_s: float,
        returned: Callable[[], tuple[str, ...]],
    ) -> None:
        """Give the job back to the queue; returns only if nothing happened.

        The finisher is started before, since the requeue ends this process. With
        a dead node in a job that cannot leave it, Slurm's own requeue is waited
        for, at most ``patience_s``: one that is asked for would start the job in
        the moment in which the node lets go, and slurmctld then loses count of
        the job's GPUs ("node offset invalid", seen with 22.05). A node that is booted
        sooner is never declared DOWN: ``returned`` tells which ones are back.

        Raises:
            NodesBackError: so Slurm will not requeue the job.
        """
        waits = action.waits_for_nodes
        if action.drop and not self.drop(job, action.drop, old.orphans):
            waits = True
        self.end_step(old, reachable=not waits)
        if not waits:
            self.wait_step_gone(job.job_id, old, _LEAVE_S)
        if old.watch is not None:
            old.watch.stop(patience_s=0.0 if waits else _LEAVE_S)
        if action.lingers and not waits:
            self.pause(_SETTLE_TREE_S)
        self.reap(old)
        try:
            if action.fast:
                start_finisher()
            if not waits:
                self._gateway.requeue(job.job_id)
        except (SlurmError, OSError) as error:
            raise RungFailedError(str(error)) from error
        self._await_end(patience_s if waits else 60.0, returned if waits else tuple)
        raise RungFailedError(
            "Slurm did not requeue the job"
            if waits
            else "Slurm accepted it, yet this script runs on"
        )

    def _await_end(self, seconds: float, returned: Callable[[], tuple[str, ...]]) -> None:
        deadline = time.monotonic() + seconds
        look: Background[tuple[str, ...]] | None = None
        look_at = time.monotonic() + _LOOK_BACK_S
        while (now := time.monotonic()) < deadline:
            for received in self._signals.read():
                if received.signum in ENDING:
                    os._exit(128 + received.signum)
            if look is not None and look.done():
                nodes, look = look.result(), None
                if nodes:
                    raise NodesBackError(nodes)
            if look is None and now >= look_at:
                look, look_at = Background(returned), now + _LOOK_BACK_S
            waited = [self._signals.fd, *([look.fd] if look is not None else [])]
            select.select(waited, [], [], 1.0)

    def release(self, job_id: int | None) -> None:
        """End the allocation that a killed srun left behind."""
        if job_id is None:
            return
        try:
            self._gateway.cancel(job_id)
        except SlurmNotFoundError:
            pass
        except SlurmError as error:
            say(f"the old allocation {job_id} may still be held: {error}")


def donor_for(action: Grow, job: Job, now: float) -> DonorSpec:
    """The job that brings new nodes, shaped like the one it is merged into. Pure."""
    per_node = job.num_cpus // max(1, len(job.nodes)) if job.nodes else 0
    minutes = max(1, int((job.end_time - now) // 60)) if job.end_time else 0
    return DonorSpec(
        target_job_id=job.job_id,
        num_nodes=action.count,
        partition=job.partition,
        qos=job.qos,
        account=job.account,
        reservation=job.reservation,
        features=job.features,
        exclude=action.exclude,
        exclusive=job.exclusive,
        cpus=per_node * action.count,
        memory_per_node_mb=job.min_memory_per_node_mb,
        memory_per_cpu_mb=job.min_memory_per_cpu_mb,
        time_limit_min=minutes,
    )
