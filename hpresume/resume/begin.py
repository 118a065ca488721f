"""From the started child to the supervisor: reads what ``main`` had no time for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpresume.config import ResumeSettings
from hpresume.errors import JournalError, SlurmError, UsageError
from hpresume.resume.command import SrunCall
from hpresume.resume.journal import Journal, Past, node_names, past_of, read, step_key
from hpresume.resume.launch import Launch
from hpresume.resume.logbook import journal_path
from hpresume.resume.model import Cause
from hpresume.resume.placing import nodes_given, placed_again, task_nodes
from hpresume.resume.report import listing, say
from hpresume.resume.request import FirstAttempt
from hpresume.resume.supervisor import Supervisor
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.srun_help import with_table
from hpresume.slurm.srun_options import SplitArgv, split_argv, without_options


def journal_of(environ: dict[str, str], values: Mapping[str, Any], argv: Sequence[str]) -> Past:
    """What earlier runs of this job did with this step."""
    job_id = _number(environ.get("SLURM_JOB_ID", ""))
    settings = ResumeSettings(**values)
    path = journal_path(environ, settings, job_id)
    key = step_key(argv)
    try:
        past = past_of(read(path), key)
    except JournalError as error:
        say(f"warning: {error}; the budgets start afresh")
        return Past()
    run = _number(environ.get("SLURM_RESTART_COUNT", "")) or 0
    if past.open_attempt is not None:
        past = _close_open_attempt(Journal(path, key, run), past, past.open_attempt, settings)
    if past.attempts:
        how = "this job was requeued" if past.requeued else "Slurm started this job again"
        bad = f"; nodes that failed: {listing(sorted(past.bad_nodes))}" if past.bad_nodes else ""
        say(f"{how}: going on with attempt {past.attempts + 1}{bad}")
    return past


def places_of(environ: dict[str, str], srun: str, argv: Sequence[str]) -> list[str]:
    """Options for the first attempt of a job that was started again, where they are needed.

    ``argv`` are srun's own words. srun refuses a ``-w`` with nodes that are not in the job, and
    the nodes that failed are not, since it came back without them.
    """
    nodes, options = placed_again(_options(srun, argv), environ)
    if options:
        say(f"not all nodes that srun names are in the job any more: starting on {listing(nodes)}")
    return options


def _close_open_attempt(
    journal: Journal, past: Past, record: Mapping[str, Any], settings: ResumeSettings
) -> Past:
    """Write down the end of an attempt whose supervisor could not: Slurm ended its job.

    Nodes of it that Slurm has declared DOWN since are to blame.
    """
    names = node_names(record)
    try:
        nodes = _gateway(settings).nodes(names)
    except SlurmError:
        nodes = {}
    down = [name for name in names if name in nodes and nodes[name].is_down]
    cause = Cause.NODE_FAILURE if down else Cause.UNKNOWN
    now = time.time()
    try:
        if down:
            evidence = [f"{n} is DOWN in Slurm ({nodes[n].reason})" for n in down]
            journal.write("fault", now, nodes=down, evidence=evidence)
        journal.write(
            "ended",
            now,
            attempt=past.attempts,
            cause=cause.value,
            without_progress=past.without_progress,
            why=f"Slurm ended the job under its supervisor on {record.get('host')}",
        )
    except JournalError as error:
        say(f"warning: {error}")
    return replace(past, bad_nodes=past.bad_nodes | set(down), open_attempt=None)


def supervise(first: FirstAttempt) -> int:
    """Supervise the srun that ``main`` started; the exit code of the last attempt."""
    environ, settings = first.environ, ResumeSettings(**first.settings)
    split = _options(first.srun, first.argv[: first.command_index])
    call = SrunCall(first.srun, tuple(first.argv), first.insert_at, first.plugin)
    nodelist, chosen = nodes_given(split, "nodelist"), task_nodes(split, environ)
    joined = _allocation(split, environ)
    launch = Launch(
        call=call,
        again=_again(call, split, placed=bool(nodelist), chosen=bool(joined and chosen)),
        settings=settings,
        environ=environ,
        job_id=_number(joined),
        allocates=not joined,
        past=first.past or Past(),
        run=_number(environ.get("SLURM_RESTART_COUNT", "")) or 0,
        key=step_key(first.argv),
        excluded=frozenset(nodes_given(split, "exclude")),
        nodelist=nodelist or None,
        task_nodes=chosen,
        can_overlap=not (split and split.given("exclusive")) and "SLURM_EXCLUSIVE" not in environ,
        exact=_is_exact(split, environ),
        tasks_follow_nodes=not chosen and _tasks_follow_nodes(split, environ),
        wait_s=_number((split.value_of("wait") if split else "") or environ.get("SLURM_WAIT", "")),
        output=(split.value_of("output") if split else "") or environ.get("SLURM_STDOUTMODE", ""),
        error=(split.value_of("error") if split else "") or environ.get("SLURM_STDERRMODE", ""),
        terminal=first.terminal,
        first_nodes=frozenset(filter(None, first.first_nodes.split(","))),
        first_command=tuple(first.command),
        first_environ=first.command_environ,
    )
    elsewhere = other_cluster(split, environ)
    if elsewhere:
        say(f"warning: the step goes to another cluster ({elsewhere}) and is not protected there")
    supervisor = Supervisor(launch, _gateway(settings), first.signals)
    return supervisor.run(first.child, first.started)


def _gateway(settings: ResumeSettings) -> SlurmGateway:
    if settings.slurm_backend == "cli":
        return CliGateway()
    from hpresume.slurm.select import open_gateway

    return open_gateway(settings.slurm_backend)


def _options(srun: str, argv: Sequence[str]) -> SplitArgv | None:
    """The user's options; None where only the real srun can make sense of them."""
    try:
        return with_table(srun, lambda table: split_argv(argv, table))
    except (UsageError, SlurmError):
        return None


def _is_exact(split: SplitArgv | None, environ: dict[str, str]) -> bool:
    """Whether srun asks for certain cores; Slurm 21.08 takes -c from sbatch as well."""
    given = split and (split.given("cpus-per-task") or split.given("exact"))
    names = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_EXACT")
    return bool(given) or any(name in environ for name in names)


def _again(call: SrunCall, split: SplitArgv | None, *, placed: bool, chosen: bool) -> SrunCall:
    """The call of later attempts, which choose the nodes: srun takes no ``-r`` beside that.

    ``placed``: the user's own ``-w`` is known, and given again as far as it still holds.
    ``chosen``: so is the node of every task, and with it the number of nodes.
    """
    if split is None:
        return call
    unwanted = {"relative": True, "nodelist": placed, "nodes": chosen}
    names = [name for name, holds in unwanted.items() if holds]
    argv = without_options(call.argv, split.options, names)
    return replace(call, argv=tuple(argv), insert_at=call.insert_at + len(argv) - len(call.argv))


def _tasks_follow_nodes(split: SplitArgv | None, environ: dict[str, str]) -> bool:
    """Whether fewer nodes may mean fewer tasks: a number of tasks alone forbids it."""
    if split is None:
        return False
    per_node = split.given("ntasks-per-node") or "SLURM_NTASKS_PER_NODE" in environ
    fixed = split.given("ntasks") or "SLURM_NTASKS" in environ or "SLURM_NPROCS" in environ
    return per_node or not fixed


def _allocation(split: SplitArgv | None, environ: dict[str, str]) -> str:
    """The allocation that srun joins: ``--jobid``, or that of the environment.

    Since 23.02 it may be named as a task of an array (``5_2``), which says
    nothing about the number of its job.
    """
    given = split.value_of("jobid") if split else None
    return given or environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""


def other_cluster(split: SplitArgv | None, environ: Mapping[str, str]) -> str:
    """The clusters that srun may choose from (``-M``), where it is not this one alone. Pure."""
    given = split.value_of("clusters", "cluster") if split else None
    names = given or environ.get("SLURM_CLUSTERS", "")
    return "" if names == environ.get("SLURM_CLUSTER_NAME", "") else names


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else None
