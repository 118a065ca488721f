"""``hpresume check``: is this node healthy, and what justifies doing something about it."""

from __future__ import annotations

import json
import os
import time
from typing import Annotated

import typer

from hpresume.cli.interrupt import interruptible
from hpresume.cli.options import AsJson, Only, Skip
from hpresume.errors import HpresumeError, UsageError
from hpresume.health import mark, report, runner, strikes
from hpresume.health.checks.slurm_node import own_node
from hpresume.health.env import DEFAULT_PATH
from hpresume.health.model import AnyCheck, Result
from hpresume.health.policy import Policy, load_policy
from hpresume.health.registry import CHECKS, choose
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.runner import Runner

#: slurmd ends HealthCheckProgram after 60 s, the checks' own time included.
_SLURM_TIMEOUT_S = 10.0


def check(
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="quick (seconds), prolog, or deep (minutes, puts load on the node).",
        ),
    ] = "quick",
    only: Only = None,
    skip: Skip = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show all checks, their limits and sources.")
    ] = False,
    as_json: AsJson = False,
    mark_: Annotated[
        bool,
        typer.Option("--mark", help="Mark this node in Slurm (root; for HealthCheckProgram)."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 for warnings too, with 3 for unknowns.")
    ] = False,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="A fault counts at once, without its strikes.")
    ] = False,
    policy_file: Annotated[
        str | None, typer.Option("--policy", metavar="FILE", help="Instead of the system's file.")
    ] = None,
    root: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="Where the node's file system is, seen from a container."
        ),
    ] = "/",
) -> None:
    """Check this node's health. Exit code 1: a fault that keeps jobs off it."""
    policy = load_policy(policy_file)
    if at_once:
        policy = policy.at_once()
    if list_:
        checks = choose(policy, profile, only or [c.name for c in CHECKS], skip or ())
        if as_json:
            typer.echo(json.dumps(report.listed(checks, policy), indent=1))
        else:
            typer.echo(report.listing(checks, policy))
        return
    is_root = os.geteuid() == 0
    if mark_ and not is_root:
        raise UsageError("--mark needs root: only root may mark a node in Slurm")
    if not os.path.isdir(root):
        raise UsageError(f"--root {root}: no such directory")
    environ = {**os.environ}
    environ.setdefault("PATH", DEFAULT_PATH)
    checks = choose(policy, profile, only or (), skip or ())
    if not checks and (only or skip):
        raise UsageError("--only and --skip leave no check: name another")
    node = runner.Node(root, environ, is_root)

    def progress(running: AnyCheck) -> None:
        limit = policy.check(running.name).timeout_s
        _print(f"running {running.name} (at most {limit:g} s) ...", err=True)

    now = time.time()
    with interruptible():
        results = runner.run(checks, policy, node, now, progress)
    results = _with_strikes(results, policy, now, write=is_root, root=root)
    marking = _mark(results, environ) if mark_ else ""
    if as_json:
        found = report.document(
            results, profile=profile, node=_name(environ), time=now, mark=marking or None
        )
        _print(json.dumps(found, indent=1))
    else:
        lines = [report.line(result) for result in results]
        lines += [
            report.summary(results) or f"no check is in profile {profile}",
            report.left_out(results),
            marking,
        ]
        _print("\n".join(line for line in lines if line))
    raise typer.Exit(report.exit_code(results, strict=strict))


def _print(text: str, *, err: bool = False) -> None:
    """Print; a reader that is gone or a log on a full disk is no fault of the node."""
    try:
        typer.echo(text, err=err)
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2 if err else 1)  # what is left in the buffer goes there at the end
        os.close(nowhere)
        if not err:
            _print(f"hpresume: the results cannot be printed: {error.strerror}", err=True)


def _with_strikes(
    results: tuple[Result, ...], policy: Policy, now: float, *, write: bool, root: str
) -> tuple[Result, ...]:
    path = os.path.join(root, strikes.STATE_FILE.lstrip("/"))
    counted, after = strikes.counted(results, strikes.read(path), policy, now)
    if write:
        try:
            strikes.write(path, after)
        except OSError as error:
            _print(f"hpresume: {path}: strikes are not kept: {error.strerror}", err=True)
    return counted


def _mark(results: tuple[Result, ...], environ: dict[str, str]) -> str:
    """Mark the node; what was done, in words."""
    name = _name(environ)
    gateway = CliGateway(
        Runner(environ), read_timeout_s=_SLURM_TIMEOUT_S, write_timeout_s=_SLURM_TIMEOUT_S
    )
    try:
        node = own_node(gateway, name)
        if node is None:
            return f"mark: Slurm knows no node {name}: nothing done"
        action = mark.decide(node, results)
        mark.execute(action, node.name, gateway)
    except HpresumeError as error:
        # The next run tries again; what the checks found is still worth saying.
        return f"mark: {name} cannot be marked: {error}"
    if isinstance(action, mark.SetNode):
        return f"mark: {node.name} set {action.state}: {action.reason}"
    if isinstance(action, mark.ClearNode):
        return f"mark: {node.name} resumed: {action.why}"
    return f"mark: {node.name} left alone: {action.why}"


def _name(environ: dict[str, str]) -> str:
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
