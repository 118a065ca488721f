"""``hpresume deep-check``: idle nodes under load, and every two of them with each other."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hpresume.cli.interrupt import interruptible
from hpresume.cli.options import AsJson, Only, Skip
from hpresume.errors import SlurmDeniedError, SlurmError, UsageError
from hpresume.health.checks.pair import NAME
from hpresume.health.deep import report, run
from hpresume.health.deep.occupy import Slurm
from hpresume.health.deep.steps import Profile
from hpresume.health.policy import load_policy
from hpresume.health.registry import choose
from hpresume.slurm import nodeset
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.runner import Runner

#: A year, Slurm's own limit of a reservation; infinity among what is above.
_LONGEST_WAIT_S = 365 * 86400


def deep_check(
    nodes: Annotated[list[str], typer.Argument(metavar="NODES", help="Such as n[1-8].")],
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="How long to wait for busy nodes.", min=0, max=_LONGEST_WAIT_S
        ),
    ] = 0.0,
    only: Only = None,
    skip: Skip = None,
    mark: Annotated[
        bool, typer.Option("--mark/--no-mark", help="Mark nodes that are bad in Slurm.")
    ] = True,
    as_json: AsJson = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with 1 for warnings too, 3 for unknown or left out."),
    ] = False,
    policy_file: Annotated[
        str | None,
        typer.Option("--policy", metavar="FILE", help="Instead of the system's; on all nodes."),
    ] = None,
) -> None:
    """Check idle nodes and their network in depth.

    Side by side, and pair by pair. Needs root. Nodes with jobs are left alone.
    Exit code 1: a fault that keeps jobs off a node.
    """
    policy = load_policy(policy_file)
    try:
        names = tuple(dict.fromkeys(name for text in nodes for name in nodeset.expand(text)))
    except SlurmError as error:
        raise UsageError(f"NODES: {error}") from error
    if not names:
        raise UsageError("NODES: name the nodes, such as n[1-8]")
    if os.geteuid() != 0:
        raise SlurmDeniedError("deep-check needs root: the checks on the nodes run as root")
    chosen = _words(only)
    skipped = _words(skip)
    checks = choose(policy, "deep", chosen, skipped)
    if chosen and NAME not in {check.name for check in checks}:
        skipped = (*skipped, NAME)
    if not checks:
        raise UsageError("--only and --skip leave no check: name another")
    profile = Profile(policy, policy_file and os.path.abspath(policy_file), chosen, skipped)
    runner = Runner()
    slurm = Slurm(CliGateway(runner), runner)
    started = time.time()
    with interruptible(), _shown() as shown:
        found = run.deep_check(slurm, run.Request(names, profile, wait, mark), _Progress(shown))
    if as_json:
        typer.echo(json.dumps(report.document(found, time=started), indent=1))
    else:
        for line in report.lines(found):
            typer.echo(line)
    raise typer.Exit(report.exit_code(found, strict=strict))


def _words(texts: list[str] | None) -> tuple[str, ...]:
    return tuple(word.strip() for text in texts or () for word in text.split(",") if word.strip())


def _shown() -> Progress:
    console = Console(stderr=True, highlight=False)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _Progress:
    """Bars on a terminal, lines elsewhere."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def phase(self, name: str, total: int) -> Callable[[], None]:
        if not self._shown.console.is_terminal:
            self.say(f"{name}: {total}")
        task = self._shown.add_task(name, total=total)
        return lambda: self._shown.advance(task)

    def say(self, line: str) -> None:
        self._shown.console.print(line, markup=False, soft_wrap=True)
