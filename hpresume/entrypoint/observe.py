"""Ask Slurm where this task stands, within a bound."""

from __future__ import annotations

import time
from dataclasses import replace

from hpresume.entrypoint.model import Snapshot, Task, choose_nodes
from hpresume.errors import (
    MissingDependencyError,
    SlurmError,
    SlurmNotFoundError,
    SlurmTransientError,
)
from hpresume.slurm import parse
from hpresume.slurm.runner import Runner

#: Longest wait for one answer; scontrol itself would try for 20 s.
_ATTEMPT_TIMEOUT_S = 5.0


class Slurm:
    """The questions of an entry point; all of them together end in ``timeout_s``.

    The step is asked for by its full id: for the last task of a job array,
    whose job id is the array's too, Slurm would list the steps of all tasks.
    """

    def __init__(self, runner: Runner, timeout_s: float) -> None:
        self._runner = runner
        self._deadline = time.monotonic() + timeout_s

    def step_nodes(self, job_id: int, step_id: str) -> tuple[str, ...]:
        """The nodes in slurmctld's record of a step."""
        text = self._ask("show", "step", f"{job_id}.{step_id}")
        for step in parse.steps(text, job_id):
            if step.step_id == step_id:
                return step.nodes
        raise SlurmNotFoundError(f"Slurm has no record of step {job_id}.{step_id}")

    def job_nodes(self, job_id: int) -> tuple[str, ...]:
        """The nodes that a job has now."""
        # Only here: what runs in a step does without.
        from hpresume.slurm.cli import CliGateway

        left = max(self._deadline - time.monotonic(), 0.1)
        gateway = CliGateway(
            self._runner, read_timeout_s=left, attempt_timeout_s=min(left, _ATTEMPT_TIMEOUT_S)
        )
        return gateway.job(job_id).nodes

    def address(self, node: str) -> str:
        """A node's NodeAddr."""
        found = parse.nodes(self._ask("show", "node", node))
        if node not in found:
            raise SlurmNotFoundError(f"Slurm knows no node {node}")
        return found[node].address

    def _ask(self, *words: str) -> str:
        argv = ("scontrol", "-a", "-o", *words)

        def once(timeout_s: float) -> str:
            return self._runner.check(argv, timeout_s)

        left = max(self._deadline - time.monotonic(), 0.1)
        try:
            return once(min(left, _ATTEMPT_TIMEOUT_S))
        except SlurmTransientError as error:
            first = error
            if time.monotonic() >= self._deadline:
                raise
        # Not before: tenacity takes longer to import than most answers take.
        from hpresume.slurm.retry import until

        return until(self._deadline, once, _ATTEMPT_TIMEOUT_S, first)


def observe(task: Task, slurm: Slurm) -> Snapshot:
    """Slurm's answers for ``task``, as far as there are any.

    A step that slurmctld does not know is no reason to stop (a restart can lose
    it); any other failure is, since the next question would end the same way.
    """
    snapshot = Snapshot(task)
    try:
        if task.step_id:
            try:
                step_nodes = slurm.step_nodes(task.job_id, task.step_id)
                snapshot = replace(snapshot, step_nodes=step_nodes)
            except SlurmNotFoundError as error:
                snapshot = replace(snapshot, trouble=str(error))
        if not choose_nodes(snapshot)[0]:
            snapshot = replace(snapshot, job_nodes=slurm.job_nodes(task.job_id))
        nodes, _ = choose_nodes(snapshot)
        if nodes:
            snapshot = replace(snapshot, master_address=slurm.address(nodes[0]))
    except (SlurmError, MissingDependencyError) as error:
        return replace(snapshot, trouble=str(error))
    return snapshot
