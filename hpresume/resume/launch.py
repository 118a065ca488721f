"""What the supervisor is handed: one srun to protect, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpresume.config import ResumeSettings
from hpresume.resume.command import SrunCall
from hpresume.resume.journal import Past
from hpresume.resume.terminal import TerminalState


@dataclass(frozen=True)
class Launch:
    """The user's call, the settings in force, and what earlier runs left behind.

    ``job_id`` is that of the allocation the step runs in, None where srun makes
    its own (``allocates``) or where the user gave no plain number for it, as in
    ``--jobid=5_2``. ``run`` counts the starts of the job, from 0. ``key`` names
    the step in the journal. ``again`` is the call of later attempts. ``excluded`` and
    ``nodelist`` are the user's ``-x`` and ``-w``; ``task_nodes`` is the node of every task
    where the user chose that. ``can_overlap`` is False with srun's ``--exclusive``;
    ``exact`` is True where it takes a part of its nodes' cores only (``-c``, ``--exact``);
    ``tasks_follow_nodes`` is True where the user did not fix the number of tasks; ``wait_s``
    is srun's ``-W``, None where the configuration decides; ``output`` and ``error`` are its
    ``-o`` and ``-e``. ``terminal``
    holds the terminal's settings before the first attempt. That one was started as
    ``first_command`` in ``first_environ``, and asked for ``first_nodes`` too, if there are any.
    """

    call: SrunCall
    again: SrunCall
    settings: ResumeSettings
    environ: dict[str, str]
    job_id: int | None
    past: Past
    run: int
    key: str
    excluded: frozenset[str] = frozenset()
    nodelist: tuple[str, ...] | None = None
    task_nodes: tuple[str, ...] = ()
    can_overlap: bool = True
    exact: bool = False
    allocates: bool = False
    tasks_follow_nodes: bool = False
    wait_s: int | None = None
    output: str = ""
    error: str = ""
    terminal: TerminalState | None = None
    first_nodes: frozenset[str] = frozenset()
    first_command: tuple[str, ...] = ()
    first_environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def original_nodes(self) -> int:
        """Node count with which this run of the job began; 0 where it is not known."""
        count = self.environ.get("SLURM_JOB_NUM_NODES", "")
        return int(count) if count.isascii() and count.isdigit() else 0

    @property
    def here(self) -> str:
        """The node on which slurmstepd started this process; empty on a login host."""
        return self.environ.get("SLURMD_NODENAME", "")

    @property
    def surrounding_step(self) -> str:
        """Id of the step of the same job in which this process runs; empty without one."""
        inside = self.environ.get("SLURM_JOB_ID", "") == f"{self.job_id}"
        return self.environ.get("SLURM_STEP_ID", "") if inside else ""
