"""From what was read to what is exported. Pure: no I/O, no clock.

Where the nodes of a step are taken from, first that fits:

1. slurmctld's record of the step;
2. SLURM_STEP_NODELIST, which srun sets anew for every step it starts (two
   records of slurmctld do not cover the step: that of one component of a
   heterogeneous step, and the one that a restarted slurmctld lost);
3. NODE_LIST of the supervisor;
4. slurmctld's record of the job: in a batch script or an interactive
   allocation this is the answer, as no step is running.

SLURM_JOB_NODELIST is never used: it describes the job as it was when the batch
script or the shell began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpresume.errors import SlurmError, UsageError
from hpresume.slurm import nodeset
from hpresume.slurm.ports import master_port

#: Ids from here on are steps without a number of their own (batch, interactive …).
_FIRST_SPECIAL_STEP = 0xFFFF_FFF0


@dataclass(frozen=True)
class Task:
    """What the environment says about this task.

    ``step_id`` is empty outside a step: in a batch script, in an interactive
    allocation, and where the SLURM_STEP_* variables belong to another job whose
    step submitted this one. ``num_nodes`` and ``node_id`` are -1 where unknown,
    ``port`` is 0 where nobody has chosen one.
    """

    job_id: int
    step_id: str = ""
    node: str = ""
    node_id: int = -1
    num_nodes: int = -1
    listed: tuple[str, ...] = ()
    announced: tuple[str, ...] = ()
    announced_master: str = ""
    announced_address: str = ""
    attempt: int = 1
    port: int = 0

    def fits(self, nodes: tuple[str, ...]) -> bool:
        """Whether ``nodes`` can be the nodes of this task's step."""
        return (
            bool(nodes)
            and (not self.node or self.node in nodes)
            and self.num_nodes in (-1, len(nodes))
        )


@dataclass(frozen=True)
class Snapshot:
    """A task and Slurm's answers; ``trouble`` says why answers are missing."""

    task: Task
    step_nodes: tuple[str, ...] = ()
    job_nodes: tuple[str, ...] = ()
    master_address: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class Entrypoint:
    """What a training script needs to know.

    ``node_rank`` is -1 for a process on none of the nodes (a shell on a login
    node). ``source`` says where the nodes were taken from.
    """

    node_list: tuple[str, ...]
    master_addr: str
    master_port: int
    node_rank: int
    source: str

    @property
    def master_node(self) -> str:
        """The first of the nodes."""
        return self.node_list[0]


def read_task(environ: Mapping[str, str]) -> Task:
    """The task described by the environment of this process."""
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    if not job:
        raise UsageError("SLURM_JOB_ID is not set: call this inside a Slurm job, best in its step")
    if not _is_number(job):
        raise UsageError(f"SLURM_JOB_ID={job!r} is not the number of a job")
    step_id = _step_id(environ)
    attempt = environ.get("HPRESUME_ATTEMPT", "")
    if attempt and not _is_number(attempt):
        raise UsageError(f"HPRESUME_ATTEMPT={attempt!r} is not a number")
    return Task(
        job_id=int(job),
        step_id=step_id,
        node=environ.get("SLURMD_NODENAME", ""),
        node_id=_number(environ, "SLURM_NODEID", -1),
        num_nodes=_number(environ, "SLURM_NNODES", -1) if step_id else -1,
        listed=_names(environ.get("SLURM_STEP_NODELIST", "")) if step_id else (),
        announced=_names(environ.get("NODE_LIST", "")) if step_id and attempt else (),
        announced_master=environ.get("MASTER_NODE", "") if attempt else "",
        announced_address=environ.get("MASTER_ADDR", "") if attempt else "",
        attempt=int(attempt) if attempt else 1 + _number(environ, "SLURM_RESTART_COUNT", 0),
        port=_chosen_port(environ.get("MASTER_PORT", "")),
    )


def choose_nodes(snapshot: Snapshot) -> tuple[tuple[str, ...], str]:
    """The nodes of the step and where they were taken from; empty if unknown."""
    task = snapshot.task
    for nodes, source in (
        (snapshot.step_nodes, "step"),
        (task.listed, "environment"),
        (task.announced, "supervisor"),
    ):
        if task.step_id and task.fits(nodes):
            return nodes, source
    return snapshot.job_nodes, "job"


def decide(snapshot: Snapshot) -> Entrypoint:
    """What to export. ``SlurmError`` where the nodes are not known."""
    task = snapshot.task
    nodes, source = choose_nodes(snapshot)
    if not nodes:
        why = snapshot.trouble or f"Slurm lists no nodes for job {task.job_id}"
        raise SlurmError(f"the nodes are not known: {why}")
    master = nodes[0]
    address = snapshot.master_address
    if not address and task.announced_master == master:
        address = task.announced_address
    if task.node in nodes:
        rank = nodes.index(task.node)
    else:
        rank = task.node_id if task.node_id < len(nodes) and not task.node else -1
    return Entrypoint(
        node_list=nodes,
        master_addr=address or master,
        master_port=task.port or master_port(task.job_id, task.step_id or "batch", task.attempt),
        node_rank=rank,
        source=source,
    )


def _step_id(environ: Mapping[str, str]) -> str:
    """The number of the step this process is a task of, or nothing.

    ``sbatch`` inside a step hands that step's variables on to a job that has
    nothing to do with it; SLURM_NNODES alone is set anew there.
    """
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    if not _is_number(step) or int(step) >= _FIRST_SPECIAL_STEP:
        return ""
    count, step_count = environ.get("SLURM_NNODES"), environ.get("SLURM_STEP_NUM_NODES")
    if count and step_count and count != step_count:
        return ""
    return step


def _chosen_port(text: str) -> int:
    if not text:
        return 0
    if not _is_number(text) or not 0 < int(text) < 65536:
        raise UsageError(f"MASTER_PORT={text!r} is not a port: unset it or take 1 to 65535")
    return int(text)


def _names(expression: str) -> tuple[str, ...]:
    try:
        return nodeset.expand(expression)
    except SlurmError:
        return ()


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if _is_number(text) else default


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
