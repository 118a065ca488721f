"""A step that does not begin, because its srun waits for what it will not get."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence

from hpresume.errors import SlurmError
from hpresume.resume.execute import Executor, OldStep
from hpresume.resume.launch import Launch
from hpresume.resume.logbook import Logbook
from hpresume.resume.observe import busy_nodes, find_step
from hpresume.resume.process import Child, spawn
from hpresume.resume.recovery import Recovery
from hpresume.resume.report import listing, say
from hpresume.slurm.gateway import SlurmGateway

#: Longest wait for a step to go whose srun was given up (s).
_LATE_STEP_S = 10.0

#: How long a step may take to begin before its cores are looked at (s).
_CORES_PATIENCE_S = 5.0

#: How long an attempt that was resumed waits for other steps before that is said (s).
_TELL_AFTER_S = 15.0


class LateStart:
    """Starts another srun where that of an attempt waits in vain."""

    def __init__(
        self,
        launch: Launch,
        gateway: SlurmGateway,
        executor: Executor,
        recovery: Recovery,
        logbook: Logbook,
    ) -> None:
        self._launch = launch
        self._gateway = gateway
        self._executor = executor
        self._recovery = recovery
        self._logbook = logbook
        self._asked_for = launch.first_nodes
        self._taken: frozenset[str] = frozenset()
        self._waits_in_vain = self._overlaps = self._in_vain_for_ever = False
        self._waits_for: tuple[str, ...] = ()
        self._told = False

    def next_attempt(self) -> None:
        """Another attempt has begun."""
        self._overlaps = self._told = False
        self._waits_for = ()

    def find_out(self, job_id: int, waited: float, dead: frozenset[str]) -> None:
        """Find out why there is no step after so many seconds, in the thread that asks Slurm.

        ``dead`` are ids of earlier attempts, which slurmctld may still hold.

        Cores that steps held while their job shrank stay taken for good (see
        ``over_lost_cores``). Another step's cores and GPUs are left to it; an attempt
        that was resumed had cores of its own, though, and may have to share them.
        """
        patient = waited < _CORES_PATIENCE_S or self._overlaps or not self._launch.can_overlap
        if patient and not self._asked_for:
            return
        steps = self._gateway.steps(job_id)
        self._taken = self._asked_for & busy_nodes(
            (s for s in steps if s.step_id not in dead), None
        )
        if patient:
            return
        job = self._gateway.job(job_id)
        # One whose node is gone for good stays in slurmctld until the job ends, with all it had.
        dead |= self._logbook.ended_steps(job.start_time)
        haunted = any(s.step_id in dead for s in steps)
        busy = busy_nodes((s for s in steps if s.step_id not in dead), None)
        resumed = self._logbook.attempt > self._launch.past.attempts + 1
        alone = not busy or (resumed and not job.tres_gres)
        self._waits_in_vain = (job.is_resized or haunted) and alone
        if self._waits_in_vain and (job.tres_gres or self._launch.exact):
            self._in_vain_for_ever = not self._gateway.config().overlaps_everything
        if resumed and not self._waits_in_vain and waited >= _TELL_AFTER_S:
            self._waits_for = tuple(
                s.step_id for s in steps if s.step_id not in dead and busy_nodes([s], None)
            )

    def instead_of(self, child: Child) -> Child:
        """The srun to wait for while there is no step: another one where ours waits in vain.

        It asked for the first node of the job, and a step that was started at the
        same time got that. Or it waits for cores that no step has.
        """
        job_id = self._launch.job_id
        if job_id is not None and self._taken:
            say(f"another step has taken {listing(sorted(self._taken))}: starting without that")
            self._asked_for = self._taken = frozenset()
            return self._begin_anew(job_id, child, ())
        if job_id is not None and self._waits_in_vain:
            self._waits_in_vain, self._overlaps = False, True
            why = (
                "the step does not begin: Slurm takes cores or GPUs for used that no step has any"
                " more, after the loss of a node or a change of the job's size"
            )
            if self._in_vain_for_ever:
                say(
                    f"{why}; before 22.05 it gives them to no step with GPUs, -c or --exact:"
                    f" the job has to start again (scontrol requeue {job_id})"
                )
                return child
            say(f"{why}; starting with --overlap")
            return self._begin_anew(job_id, child, ("--overlap",))
        if self._waits_for and not self._told:
            self._told = True
            say(
                "the step has not begun yet: it waits for cores or GPUs that other steps of this"
                f" job use ({', '.join(self._waits_for)}); with --overlap it would share them"
            )
        return child

    def _begin_anew(self, job_id: int, child: Child, options: Sequence[str]) -> Child:
        child.send(signal.SIGKILL)
        child.wait()
        # Its step may have begun in that very moment.
        with contextlib.suppress(SlurmError):
            found = find_step(self._gateway, job_id, child.pid)
            if found is not None:
                late = OldStep(child, job_id, found[1].step_id)
                self._executor.wait_step_gone(job_id, late, _LATE_STEP_S)
        command, at = self._recovery.command, self._recovery.insert_at
        return spawn([*command[:at], *options, *command[at:]], self._recovery.environ)
