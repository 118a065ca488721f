"""The gateway over pyslurm, for reading; everything else goes to the tools.

pyslurm speaks to slurmctld without starting a process (half the time of a
tool's call, after an import of a tenth of a second), so it pays for programs
that read for hours. It cannot be bounded in time from here: Slurm's library
holds the interpreter until MessageTimeout. Where pyslurm has no answer (a
controller that does not respond, a job's state that Slurm's library does not
tell whole, a property that another release of pyslurm does not have), the
tools are asked instead.

Written against the classes of pyslurm 22.5.3 and 25.11: ``Nodes``, ``Job``,
``JobSteps``. Importing pyslurm ends the process where Slurm's configuration
cannot be found: import this through ``hpresume.slurm.select``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hpresume.errors import SlurmError, SlurmNotFoundError
from hpresume.slurm import nodeset
from hpresume.slurm.answers import classify
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.models import ClusterConfig, DonorSpec, Job, JobState, Node, Step
from hpresume.slurm.states import node_states
from hpresume.slurm.values import id_count

T = TypeVar("T")


class _NoAnswerError(Exception):
    """pyslurm cannot say it; the tools can."""


class PyslurmGateway:
    """Implements ``SlurmGateway``: ``pyslurm`` is the imported module."""

    def __init__(self, pyslurm: Any, cli: CliGateway | None = None) -> None:
        self._pyslurm = pyslurm
        self._cli = cli if cli is not None else CliGateway()

    # --- reading ---------------------------------------------------------------

    def config(self) -> ClusterConfig:
        """``scontrol show config``: pyslurm's differs between releases."""
        return self._cli.config()

    def nodes(self, names: Iterable[str] | None = None) -> dict[str, Node]:
        """All nodes in one call, or those with ``names``."""
        wanted = None if names is None else tuple(dict.fromkeys(names))
        if wanted == ():
            return {}
        return self._ask(lambda: self._nodes(wanted), lambda: self._cli.nodes(wanted))

    def job(self, job_id: int) -> Job:
        """One job."""
        return self._ask(
            lambda: _job(self._pyslurm.Job.load(job_id)), lambda: self._cli.job(job_id)
        )

    def own_jobs(self) -> tuple[Job, ...]:
        """The caller's jobs that have not ended: squeue filters them on its own."""
        return self._cli.own_jobs()

    def steps(self, job_id: int) -> tuple[Step, ...]:
        """The steps of a job that slurmctld still holds."""
        try:
            return self._ask(lambda: self._steps(job_id), lambda: self._cli.steps(job_id))
        except SlurmNotFoundError:
            return ()

    def expand(self, expression: str) -> tuple[str, ...]:
        """The host names in a node list expression, in its order."""
        return nodeset.expand(expression)

    # --- acting, by the tools ----------------------------------------------------

    def set_job_nodes(self, job_id: int, nodes: Iterable[str]) -> None:
        """Shrink a running job to ``nodes``."""
        self._cli.set_job_nodes(job_id, nodes)

    def grow_job(self, donor: DonorSpec, timeout_s: float) -> tuple[str, ...]:
        """Merge new nodes into a running job; the new nodes' names."""
        return self._cli.grow_job(donor, timeout_s)

    def update_job(self, job_id: int, **fields: str) -> None:
        """Change fields of a job."""
        self._cli.update_job(job_id, **fields)

    def update_node(self, name: str, **fields: str) -> None:
        """By the tools."""
        self._cli.update_node(name, **fields)

    def job_comment(self, job_id: int) -> str:
        """By the tools."""
        return self._cli.job_comment(job_id)

    def reboot_node(self, name: str, reason: str) -> None:
        """``scontrol reboot ASAP``."""
        self._cli.reboot_node(name, reason)

    def requeue(self, job_id: int) -> None:
        """Put a batch job back into the queue."""
        self._cli.requeue(job_id)

    def cancel(self, job_id: int, step_id: str | None = None, signal: str | None = None) -> None:
        """Cancel or signal a job or step."""
        self._cli.cancel(job_id, step_id, signal)

    # --- inner ------------------------------------------------------------------

    def _ask(self, by_pyslurm: Callable[[], T], by_tools: Callable[[], T]) -> T:
        """pyslurm's answer; the tools' where it has none, or an error of its own."""
        try:
            return by_pyslurm()
        except self._pyslurm.RPCError as error:
            kind, line = classify(str(error))
            if kind is SlurmNotFoundError:
                raise SlurmNotFoundError(line) from error
        except (_NoAnswerError, SlurmError, AttributeError, TypeError, ValueError, KeyError):
            pass
        return by_tools()

    def _nodes(self, wanted: tuple[str, ...] | None) -> dict[str, Node]:
        found = {node.name: node for node in map(_node, self._pyslurm.Nodes.load().values())}
        if wanted is None:
            return found
        missing = [name for name in wanted if name not in found]
        if missing:
            raise _NoAnswerError  # hidden from this user, or not there: the tools tell
        return {name: found[name] for name in wanted}

    def _steps(self, job_id: int) -> tuple[Step, ...]:
        loaded = self._pyslurm.JobSteps.load(job_id).values()
        if any(step.job_id != job_id for step in loaded):
            raise _NoAnswerError  # another task of the array with this id
        return tuple(_step(step, job_id) for step in loaded)


def _node(node: Any) -> Node:
    gres = (f"{name}:{number}" for name, number in (node.configured_gres or {}).items())
    return Node(
        name=node.name,
        states=_node_states(node),
        address=node.address or "",
        hostname=node.hostname or "",
        port=node.slurmd_port or 0,
        reason=node.reason or "",
        reason_user=node.reason_user or "",
        reason_time=float(node.reason_time or 0),
        boot_time=float(node.boot_time or 0),
        slurmd_start_time=float(node.slurmd_start_time or 0),
        cpus=node.total_cpus or 0,
        memory_mb=node.real_memory or 0,
        gres=",".join(gres),
        partitions=tuple(node.partitions or ()),
        features=tuple(node.active_features or ()),
        comment=node.comment or "",
        extra=getattr(node, "extra", None) or "",
        available_features=tuple(node.available_features or ()),
    )


def _node_states(node: Any) -> frozenset[str]:
    """MIXED is found out by the tools, not by slurmctld, in older releases."""
    states = node_states(node.state)
    if "ALLOCATED" in states and 0 < (node.allocated_cpus or 0) < (node.effective_cpus or 0):
        return states - {"ALLOCATED"} | {"MIXED"}
    return states


def _job(job: Any) -> Job:
    # A flag (COMPLETING, …) hides the base state here too, and requests of a
    # waiting job for resources per job or task are not told by 22.5. Of an array
    # pyslurm takes the job that comes first, and it does not know task 0.
    if job.state not in JobState.__members__ or not job.allocated_nodes or job.array_id:
        raise _NoAnswerError
    layout = job.get_resource_layout_per_node()
    batch = bool(job.is_batch_job)
    over = JobState[job.state] not in (JobState.RUNNING, JobState.SUSPENDED)
    limited = isinstance(job.time_limit, int)
    return Job(
        job_id=job.id,
        state=JobState[job.state],
        name=job.name or "",
        user_id=job.user_id,
        account=job.account or "",
        partition=job.partition or "",
        qos=job.qos or "",
        reservation=job.reservation or "",
        features=",".join(job.constraints or ()),
        nodes=_names(job.allocated_nodes),
        num_nodes=job.num_nodes or 0,
        num_cpus=job.cpus or 0,
        num_tasks=job.ntasks or 0,
        min_memory_per_node_mb=job.memory_per_node or 0,
        min_memory_per_cpu_mb=job.memory_per_cpu or 0,
        requested_nodes=_names(job.required_nodes),
        excluded_nodes=_names(job.excluded_nodes),
        batch=batch,
        batch_host=(job.batch_host or "") if batch else "",
        alloc_host=job.submit_host or "",
        alloc_sid=getattr(job, "submit_session_id", None) or 0,
        requeue=bool(job.is_requeueable),
        restarts=job.requeue_count or 0,
        start_time=float(job.start_time or 0),
        end_time=float(job.end_time or 0) if limited or over else 0.0,
        exclusive=job.resource_sharing in ("NO", "EXCLUSIVE"),
        tres_gres=_gres(layout),
        work_dir=job.working_directory or "",
        reason="" if job.state_reason in (None, "None") else job.state_reason,
        cpus_by_node={
            name: id_count(str(held.get("cpu_ids") or "")) for name, held in layout.items()
        },
        resize_time=float(job.resize_time or 0),
    )


def _gres(layout: dict[str, Any]) -> dict[str, int]:
    """``{"n1": {"gres": {"gpu:a100": {"count": "4"}}}}`` → ``{"gres/gpu": 4}``."""
    total: dict[str, int] = {}
    for held in layout.values():
        for name, entry in (held.get("gres") or {}).items():
            key = f"gres/{name.split(':')[0]}"
            total[key] = total.get(key, 0) + int(entry["count"])
    return total


def _step(step: Any, job_id: int) -> Step:
    nodes = _names(step.allocated_nodes)
    return Step(
        job_id=job_id,
        step_id=str(step.id),
        state=step.state or "",
        nodes=nodes,
        num_nodes=len(nodes),
        num_tasks=step.ntasks or 0,
        name=step.name or "",
        start_time=float(step.start_time or 0),
        time_limit_s=step.time_limit * 60 if isinstance(step.time_limit, int) else 0,
        srun_host=step.srun_host or "",
        srun_pid=step.srun_process_id or 0,
    )


def _names(value: Any) -> tuple[str, ...]:
    """Names from an expression, which 25.11 hands out split at its commas."""
    if not value:
        return ()
    return nodeset.expand(value if isinstance(value, str) else ",".join(value))
