"""Argument lists: the real srun of each attempt, and the watch step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Name of the watch step.
WATCH_NAME = "hpresume-watch"

#: Longest wait for a step that is to share the GPUs of its job (s).
DEVICES_LIMIT_S = 2

#: The job environment that would steer the watch step's srun.
_STEERING = ("SLURM_", "SRUN_", "SLURMD_", "SBATCH_", "SALLOC_", "PMI_", "PMI2_", "PMIX_")

#: Set in the steps of a supervisor's own; the plugin in slurmstepd looks for it.
OWN_STEP = "HPRESUME_OWN_STEP"

#: Kept: how to reach Slurm.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS"})


@dataclass(frozen=True)
class SrunCall:
    """The user's srun: its path, ``argv`` as typed, where options end.

    ``insert_at`` is the index in ``argv`` at which further options may be put:
    behind all options of the user, before a terminating ``--`` and the command.
    ``plugin`` says that the shim is installed, so that the real srun has to be
    told to leave this call alone.
    """

    path: str
    argv: tuple[str, ...]
    insert_at: int
    plugin: bool

    def attempt(self, extra: Sequence[str] = ()) -> list[str]:
        """The argument list of one attempt with ``extra`` options.

        The last value of an option wins in srun, so what is put here overrides
        what the user gave.
        """
        own = [*extra, *(["--auto-resume=0"] if self.plugin else [])]
        return [self.path, *self.argv[1 : self.insert_at], *own, *self.argv[self.insert_at :]]


def placement(
    nodes: Sequence[str], *, overlap: bool, tasks: int = 0, task_nodes: Sequence[str] = ()
) -> list[str]:
    """Options of a later attempt inside the allocation.

    ``--open-mode=append``: srun truncates the file of ``-o`` at every start. ``task_nodes`` is
    where the user put every task, if that is what he did; srun of 24.11 refuses ``--nodes`` then.
    """
    if task_nodes:
        options = [f"--nodelist={','.join(moved(task_nodes, nodes))}", "--distribution=arbitrary"]
    else:
        options = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}"]
    options.append("--open-mode=append")
    if overlap:
        options.append("--overlap")
    if tasks:
        options.append(f"--ntasks={tasks}")
    return options


def moved(names: Sequence[str], nodes: Sequence[str]) -> list[str]:
    """``names``, repeated or not, with those that are not among ``nodes`` replaced. Pure.

    Each by one of ``nodes`` that is not among ``names``, as long as there are any.
    """
    free = iter([n for n in nodes if n not in names])
    places: dict[str, str] = {n: n for n in names if n in nodes}
    for name in names:
        if name not in places:
            places[name] = next(free, nodes[len(places) % len(nodes)])
    return [places[name] for name in names]


def reallocation(
    exclude: Sequence[str], nodelist: Sequence[str] | None, count: int = 0
) -> list[str]:
    """Options of a later attempt that makes its own allocation.

    ``nodelist`` is what remains of the user's own ``-w``, None without one; the list alone
    may have told the number of nodes, which is ``count``.
    """
    options = ["--open-mode=append"]
    if exclude:
        options.append(f"--exclude={','.join(exclude)}")
    if nodelist:
        options.append(f"--nodelist={','.join(nodelist)}")
    if nodelist is not None and count:
        options.append(f"--nodes={count}")
    return options


def watch_command(
    srun: str, job_id: int, nodes: Sequence[str], agent: Sequence[str], *, devices: bool = False
) -> list[str]:
    """The watch step: one agent a node beside whatever runs there.

    It takes no GPUs and no memory of its own, survives the loss of nodes (-k)
    and is not ended by the first agent that stops (-W0). It asks for no number of
    CPUs: Slurm 21.08 then wants cores that no other step uses, --overlap or not.
    With ``devices`` it shares the GPUs that the job has, which a device cgroup hides
    from it otherwise; not every job can give them to such a step, and srun would wait
    for them for ever.
    """
    gres = [f"--immediate={DEVICES_LIMIT_S}"] if devices else ["--gres=none"]
    return [
        srun,
        f"--jobid={job_id}",
        f"--job-name={WATCH_NAME}",
        "--overlap",
        *gres,
        "--mem=0",
        "--no-kill",
        "--wait=0",
        "--kill-on-bad-exit=0",
        "--mpi=none",
        "--prolog=none",  # SrunProlog and SrunEpilog are for the user's steps
        "--epilog=none",
        "--cpu-bind=none",
        "--chdir=/",
        "--quiet",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        *agent,
    ]


def neutral_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would steer another srun or salloc.

    With the mark by which the plugin knows a step of a supervisor's own.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not name.lstrip("_").startswith(_STEERING)
    }
    return kept | {OWN_STEP: "1"}
