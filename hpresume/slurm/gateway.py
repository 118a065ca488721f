"""What hpresume asks of Slurm, whoever answers.

Backends: ``hpresume.slurm.cli`` (Slurm's own tools, always there) and
``hpresume.slurm.pyslurm_backend`` (optional; reads only, the rest goes to the
tools). Every call is bounded in time, retries transient answers within that
bound, and raises:

* ``SlurmNotFoundError``: no such job, step or node;
* ``SlurmDeniedError``: Slurm or its configuration forbids it, for good;
* ``SlurmTransientError`` / ``SlurmTimeoutError``: the bound passed while Slurm
  could not answer;
* ``SlurmError``: anything else, with Slurm's own words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hpresume.slurm.models import ClusterConfig, DonorSpec, Job, Node, Step


class SlurmGateway(Protocol):
    """The calls, each documented by the command it stands for."""

    def config(self) -> ClusterConfig:
        """``scontrol show config``."""
        ...

    def nodes(self, names: Iterable[str] | None = None) -> dict[str, Node]:
        """``scontrol show node``: by name; all nodes for ``None``."""
        ...

    def job(self, job_id: int) -> Job:
        """``scontrol show job``."""
        ...

    def own_jobs(self) -> tuple[Job, ...]:
        """The caller's jobs that have not ended."""
        ...

    def steps(self, job_id: int) -> tuple[Step, ...]:
        """``scontrol show step``: the steps of a job that slurmctld still holds.

        An empty tuple for a job without steps or a job that is gone.
        """
        ...

    def job_comment(self, job_id: int) -> str:
        """``squeue --format=%k``: the comment that a job's owner set; empty for none."""
        ...

    def expand(self, expression: str) -> tuple[str, ...]:
        """The host names in a node list expression, in its order."""
        ...

    def set_job_nodes(self, job_id: int, nodes: Iterable[str]) -> None:
        """Shrink a running job to ``nodes`` (``update JobId NodeList``).

        Leaves no ``slurm_job_*_resize`` script behind. ``SlurmDeniedError``
        where the batch host is not among ``nodes``, and for a job that has been
        resized on a cluster with ``ClusterConfig.resizes_jobs_once``.
        """
        ...

    def grow_job(self, donor: DonorSpec, timeout_s: float) -> tuple[str, ...]:
        """Merge new nodes into a running job; the new nodes' names.

        Waits at most ``timeout_s`` for free nodes; then the donor job is
        cancelled and ``SlurmTimeoutError`` is raised. Nothing is left behind
        in any outcome. ``SlurmDeniedError`` before there is a donor where Slurm
        would refuse the merge: jobs with generic resources, exclusive jobs on
        clusters with GresTypes, extern steps, no permit_job_expansion.
        """
        ...

    def update_job(self, job_id: int, **fields: str) -> None:
        """``scontrol update jobid=…`` with the given fields."""
        ...

    def update_node(self, name: str, **fields: str) -> None:
        """``scontrol update nodename=…`` with the given fields, for one node."""
        ...

    def reboot_node(self, name: str, reason: str) -> None:
        """``scontrol reboot ASAP``: no new jobs, and RebootProgram once the node is idle.

        The node is resumed when it comes back within ResumeTimeout.
        """
        ...

    def requeue(self, job_id: int) -> None:
        """``scontrol requeue``; a job that waits already is not an error."""
        ...

    def cancel(self, job_id: int, step_id: str | None = None, signal: str | None = None) -> None:
        """``scancel``; a job or step that is gone already is not an error."""
        ...
