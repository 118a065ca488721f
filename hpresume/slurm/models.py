"""Frozen views of Slurm's nodes, jobs, steps and configuration.

Standard library only: the supervisor loads this module at every srun. Node
lists are tuples of plain host names in Slurm's own order; expressions such as
``n[1-3]`` never leave ``hpresume.slurm``. Times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

#: Base states and flags in which Slurm runs nothing on a node or is about to.
_UNUSABLE = frozenset(
    {
        "DOWN",
        "FAIL",
        "FAILING",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "NOT_RESPONDING",
        "ERROR",
        "INVAL",
        "INVALID_REG",
        "FUTURE",
        "UNKNOWN",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POWER_DOWN",
        "POWERING_UP",
        "REBOOT_ISSUED",
    }
)


@dataclass(frozen=True)
class Node:
    """One node as slurmctld sees it.

    ``states`` holds the tokens of ``State=`` in upper case, the base state and
    all flags (``IDLE``, ``ALLOCATED``, ``DRAIN``, ``NOT_RESPONDING`` for the
    trailing ``*``, …); ``port`` is slurmd's TCP port (0: not known);
    ``boot_time`` and ``slurmd_start_time`` are 0.0 where Slurm does not know.
    ``reason`` is without the ``[user@time]`` that Slurm appends; that is in
    ``reason_user`` and ``reason_time``. ``features`` are the active ones of
    ``available_features``.
    """

    name: str
    states: frozenset[str]
    address: str = ""
    hostname: str = ""
    port: int = 0
    reason: str = ""
    boot_time: float = 0.0
    slurmd_start_time: float = 0.0
    cpus: int = 0
    gres: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    comment: str = ""
    memory_mb: int = 0
    reason_user: str = ""
    reason_time: float = 0.0
    extra: str = ""
    available_features: tuple[str, ...] = ()

    def has(self, *tokens: str) -> bool:
        """Whether any of ``tokens`` is among the state tokens."""
        return not self.states.isdisjoint(tokens)

    @property
    def is_down(self) -> bool:
        """Slurm has declared the node dead."""
        return self.has("DOWN")

    @property
    def is_failing(self) -> bool:
        """Somebody marked the node FAIL (``FAILING`` while jobs still run)."""
        return self.has("FAIL", "FAILING")

    @property
    def is_draining(self) -> bool:
        """Somebody drained the node."""
        return self.has("DRAIN", "DRAINED", "DRAINING")

    @property
    def is_usable(self) -> bool:
        """Whether a new step may be placed on the node."""
        return self.states.isdisjoint(_UNUSABLE)

    @property
    def is_free(self) -> bool:
        """Whether a new job could have the whole node now."""
        return self.is_usable and self.has("IDLE") and not self.has("COMPLETING", "RESERVED")


class JobState(StrEnum):
    """Base states of a job that hpresume tells apart."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    OTHER = "OTHER"


@dataclass(frozen=True)
class Job:
    """One job.

    ``state`` is the base state; ``flags`` further tokens (``COMPLETING``,
    ``REQUEUED``, ``CONFIGURING``, …). ``nodes`` is empty while the job waits.
    ``batch_host`` is empty for allocations without a batch script.
    ``end_time`` 0.0 means no limit. ``requeue`` is Slurm's Requeue=1.
    ``tres_gres`` holds the job's generic resources (``gres/gpu`` → count) from
    its allocated TRES or its request, empty for a job without GRES.
    ``exclusive`` is True where no other job may share the nodes
    (``OverSubscribe=NO`` or ``EXCLUSIVE``). ``cpus_by_node`` is the job's share
    of every node it runs on. ``resize_time`` 0.0 means that the job's size has
    never been changed; it outlives a requeue. ``array_job`` is the id of the
    job's array, 0 for a job that is in none; ``array_task`` is None also for the
    one record that stands for all tasks of an array that have not started yet.
    ``preempt_time`` is when it was preempted, which is before it ends where there is
    a GraceTime; 0.0 where it was not, or that is not known.
    """

    job_id: int
    state: JobState
    flags: frozenset[str] = frozenset()
    name: str = ""
    user_id: int = -1
    account: str = ""
    partition: str = ""
    qos: str = ""
    reservation: str = ""
    features: str = ""
    nodes: tuple[str, ...] = ()
    num_nodes: int = 0
    num_cpus: int = 0
    num_tasks: int = 0
    min_memory_per_node_mb: int = 0
    min_memory_per_cpu_mb: int = 0
    requested_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    batch: bool = False
    batch_host: str = ""
    alloc_host: str = ""
    alloc_sid: int = 0
    requeue: bool = False
    restarts: int = 0
    start_time: float = 0.0
    end_time: float = 0.0
    exclusive: bool = False
    tres_gres: dict[str, int] = field(default_factory=dict)
    work_dir: str = ""
    reason: str = ""
    cpus_by_node: dict[str, int] = field(default_factory=dict)
    resize_time: float = 0.0
    preempt_time: float = 0.0
    array_job: int = 0
    array_task: int | None = None

    @property
    def is_being_preempted(self) -> bool:
        """Whether this run of the job is in the grace time of its preemption."""
        return self.state is JobState.RUNNING and 0.0 < self.start_time <= self.preempt_time

    @property
    def address(self) -> str:
        """What Slurm's tools take for this job and no other.

        The last task to start keeps the array's id as its job id, and for that
        id the tools act on all tasks. The bare id of another task is ignored by
        scancel without a word (before 23.02).
        """
        if self.array_task is None:
            return str(self.job_id)
        return f"{self.array_job}_{self.array_task}"

    @property
    def is_unstarted_array(self) -> bool:
        """Whether this is no single job but all waiting tasks of an array."""
        return bool(self.array_job) and self.array_task is None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended for good (it may still be completing)."""
        return self.state not in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)

    @property
    def is_resized(self) -> bool:
        """Whether the job's size was changed in this run."""
        return bool(self.resize_time) and self.resize_time >= self.start_time

    @property
    def is_completing(self) -> bool:
        """Whether slurmctld still waits for nodes to release the job."""
        return "COMPLETING" in self.flags


@dataclass(frozen=True)
class Step:
    """One job step.

    ``step_id`` is the text behind the dot (``0``, ``batch``, ``extern``,
    ``interactive``). ``srun_host`` and ``srun_pid`` name the srun that started
    it (0 where unknown). ``time_limit_s`` 0 means none of its own.
    """

    job_id: int
    step_id: str
    state: str
    nodes: tuple[str, ...]
    num_nodes: int = 0
    num_tasks: int = 0
    name: str = ""
    start_time: float = 0.0
    time_limit_s: int = 0
    srun_host: str = ""
    srun_pid: int = 0


@dataclass(frozen=True)
class ClusterConfig:
    """The parts of ``scontrol show config`` that decide what can be done."""

    cluster_name: str
    version: tuple[int, int, int]
    slurmd_timeout_s: int
    kill_wait_s: int
    slurmd_port: int
    proctrack: str
    prolog_flags: frozenset[str]
    scheduler_parameters: tuple[str, ...]
    job_requeue: bool
    cred_expire_s: int = 120
    slurmdbd: bool = False
    gres_types: tuple[str, ...] = ()
    select_parameters: frozenset[str] = frozenset()
    wait_time_s: int = 0
    tcp_timeout_s: int = 2
    constrains_devices: bool = False

    @property
    def allocates_memory(self) -> bool:
        """Whether memory is a resource that jobs are given (``CR_…_Memory``)."""
        return any(name.endswith("_MEMORY") for name in self.select_parameters)

    @property
    def resizes_jobs_once(self) -> bool:
        """Whether a running job can change its size only once (``Job.resize_time``).

        Until 24.05, slurmctld gives a resized job a new database index and
        refuses every later update of that job until slurmdbd has sent one,
        for ever if there is no slurmdbd.
        """
        return self.version < (24, 11, 0) and not self.slurmdbd

    @property
    def overlaps_everything(self) -> bool:
        """Whether a step with ``--overlap`` gets all that another step of its job holds.

        Before 22.05 it shares no GPUs (release notes of 22.05), and with ``-c`` or
        ``--exact`` no cores either (seen with 21.08): srun waits for both for ever.
        """
        return self.version >= (22, 5, 0)

    @property
    def permits_expansion(self) -> bool:
        """Whether a job may be merged into another one."""
        return "permit_job_expansion" in self.scheduler_parameters

    @property
    def kills_detached_processes(self) -> bool:
        """Whether the end of a job reaches processes that left its session."""
        return self.proctrack == "proctrack/cgroup"

    @property
    def makes_extern_steps(self) -> bool:
        """Whether every job gets an extern step (PrologFlags=Contain, X11)."""
        return not self.prolog_flags.isdisjoint({"CONTAIN", "X11"})

    @property
    def launches_after_prolog_only(self) -> bool:
        """Whether a node that was booted, or joined later, takes no step of a job any more.

        With PrologFlags=Alloc (Contain and X11 imply it) slurmctld has the prolog run on all nodes
        of a job once, at its start. From 23.02 on, slurmd waits for that before it launches
        a step of a job that it does not know, and fails in the end; its node is drained then, and
        the job requeued and held [ran, 24.11; _wait_for_request_launch_prolog in slurmd's req.c].
        """
        return self.version >= (23, 2, 0) and not self.prolog_flags.isdisjoint(
            {"ALLOC", "CONTAIN", "X11"}
        )


@dataclass(frozen=True)
class DonorSpec:
    """The small job whose nodes are merged into another one (rung 4).

    ``cpus`` counts over all ``num_nodes``, which get equal shares; 0 means that
    none are asked for. ``exclude`` names nodes besides those the job has now.
    Slurm itself gives the donor the job's remaining time limit.
    """

    target_job_id: int
    num_nodes: int
    partition: str
    qos: str = ""
    account: str = ""
    reservation: str = ""
    features: str = ""
    exclude: tuple[str, ...] = ()
    exclusive: bool = False
    cpus: int = 0
    memory_per_node_mb: int = 0
    memory_per_cpu_mb: int = 0
    time_limit_min: int = 0
