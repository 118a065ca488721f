"""``hpresume controller``, ``nodes``, ``replace``, ``reboot`` and ``events``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpresume.cli.extras import require_sqlalchemy
from hpresume.cli.options import AsJson
from hpresume.errors import HpresumeError, SlurmError, StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpresume.controller.config import ControllerConfig
    from hpresume.slurm.admin import AdminGateway
    from hpresume.slurm.models import Node
    from hpresume.store import Event, Store

CONFIG = "/etc/hpresume/controller.toml"
_FOLLOW_S = 1.0

Config = Annotated[str, typer.Option("--config", metavar="FILE", help="The controller's file.")]
NodeNames = Annotated[
    str, typer.Argument(metavar="NODES", help="Names in Slurm, such as n7 or n[1-4],n9.")
]
Now = Annotated[bool, typer.Option("--now", help="Do not wait for running jobs: they are killed.")]


def controller(
    config: Config = CONFIG,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; touch nothing.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="One pass, then end.")] = False,
) -> None:
    """Recover nodes and provision groups, as a service.

    Reboots or replaces bad nodes, provisions instance groups, serves the cluster API: as the file
    says. Needs root and the package's extra "controller"; docs/recovery.md.
    """
    require_sqlalchemy()
    from hpresume.controller.config import load
    from hpresume.controller.main import run

    if not run(load(config), dry_run=dry_run, once=once) and once:
        raise typer.Exit(1)


def nodes(
    config: Config = CONFIG,
    all_: Annotated[
        bool, typer.Option("--all", help="Also nodes that nothing is said of.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show bad nodes, and what is done about them.

    State, fault, phase of recovery, since when, and what comes next.
    """
    require_sqlalchemy()
    from hpresume.controller.show import all_lines
    from hpresume.provision.repository import load
    from hpresume.recovery import table
    from hpresume.store import lease

    known = _gateway(config).nodes()
    with open_controllers_store(config).read() as session:
        active, states = table.active(session), load(session)
        leader = lease.leader(session, time.time())
    now = time.time()
    shown = all_lines(known, active, states.values(), now)
    if not all_:
        shown = tuple(line for line in shown if line.fault or line.phase)
    if as_json:
        typer.echo(json.dumps([asdict(line) for line in shown], indent=1))
        return
    if not leader:
        typer.echo("no controller leads now: nothing is done before one is started", err=True)
    if not shown:
        typer.echo(f"{len(known)} nodes, none with a fault")
        return
    from hpresume.cli.grids import show

    columns = ["NODE", "STATE", "FAULT", "PHASE", "SINCE", "NEXT"]
    rows = [[x.node, x.state, x.fault, x.phase, x.for_people(now), x.next_step] for x in shown]
    if states:
        columns.insert(1, "GROUP")
        rows = [[row[0], x.group, *row[1:]] for row, x in zip(rows, shown, strict=True)]
    show(columns, rows)


def replace(
    nodes: NodeNames,
    now: Now = False,
    config: Config = CONFIG,
    as_json: AsJson = False,
) -> None:
    """Order the replacement of nodes.

    The same as scontrol update nodename=NODES state=fail reason=Action:Replace.
    """
    _order(config, nodes, "Replace", now=now, as_json=as_json)


def reboot(
    nodes: NodeNames,
    now: Now = False,
    config: Config = CONFIG,
    as_json: AsJson = False,
) -> None:
    """Order the reboot of nodes.

    The same as scontrol update nodename=NODES state=fail reason=Action:Reboot.
    """
    _order(config, nodes, "Reboot", now=now, as_json=as_json)


def events(
    config: Config = CONFIG,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Only about this node.")] = None,
    last: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="How many of the past.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as they come.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what has happened, to nodes and to instance groups."""
    require_sqlalchemy()
    from hpresume.provision import history
    from hpresume.store import events as stored

    store = open_controllers_store(config)
    with store.read() as session:
        found = stored.latest(session, last, node=node)
        newest = stored.last_id(session)
        of_groups = history.latest(session, last, node=node)
        newest_time = max((e.time for e in history.latest(session, 1)), default=0.0)
    told = _merged(found, of_groups)[-last:] if last else ()
    _print(told, as_json=as_json)
    if last and not told and not as_json:
        typer.echo("no events yet" + (f" of {node}" if node else ""), err=True)
    in_trouble = False
    while follow:
        time.sleep(_FOLLOW_S)
        try:
            with store.read() as session:
                found = stored.since(session, newest, node=node)
                of_groups = history.since(session, newest_time, node=node)
        except StoreError as error:  # a database that is started anew, say
            if not in_trouble:
                typer.echo(f"hpresume: {error}; it is tried again", err=True)
            in_trouble = True
            continue
        in_trouble = False
        _print(_merged(found, of_groups), as_json=as_json)
        newest = max((event.id for event in found), default=newest)
        newest_time = max((event.time for event in of_groups), default=newest_time)


def _merged(one: tuple[Event, ...], other: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(sorted((*one, *other), key=lambda event: event.time))


def _order(config: str, expression: str, what: str, *, now: bool, as_json: bool) -> None:
    require_sqlalchemy()
    from hpresume.controller.config import load
    from hpresume.controller.main import reach

    settings = load(config)
    gateway = reach(settings)[0]
    known = gateway.nodes()
    names = _ordered(expression, known, settings)
    left = 0
    for name in names:
        try:
            _order_one(gateway, known[name], what, now=now, as_json=as_json)
        except HpresumeError as error:
            if len(names) == 1:
                raise
            left += 1
            typer.echo(f"hpresume: {error}", err=True)
    if left:
        raise UsageError(f"{left} of {len(names)} nodes are left as they are")


def _ordered(
    expression: str, known: Mapping[str, Node], settings: ControllerConfig
) -> tuple[str, ...]:
    """The nodes that are meant: all of them can be ordered, or none is. Raises UsageError."""
    from hpresume.recovery.wanted import is_allowed
    from hpresume.slurm import nodeset

    try:
        names = tuple(dict.fromkeys(nodeset.expand(expression)))
    except SlurmError:
        names = ()
    if not names:
        raise UsageError(f"{expression!r} is no list of nodes: write n7 or n[1-4],n9")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"Slurm knows no node {nodeset.fold(unknown)}: nothing is ordered")
    forbidden = [name for name in names if not is_allowed(name, settings.policy)]
    if forbidden:
        raise UsageError(
            f"{settings.source} (nodes, never) forbids to touch {nodeset.fold(forbidden)}: "
            "nothing is ordered"
        )
    return names


def _order_one(gateway: AdminGateway, node: Node, what: str, *, now: bool, as_json: bool) -> None:
    name = node.name
    if "[hpresume recovery]" in node.reason and not node.is_usable:
        raise UsageError(f"{name} is being recovered already: see `hpresume nodes`")
    state, reason = "DOWN" if now else "FAIL", f"Action:{what}"
    # FAIL in any case: with ReturnToService=2, Slurm gives a node that is only DOWN back
    # as soon as its slurmd says a word (seen with 22.05).
    gateway.update_node(name, State="FAIL", Reason=reason)
    if now:
        gateway.update_node(name, State="DOWN", Reason=reason)
    if as_json:
        typer.echo(json.dumps({"node": name, "state": state, "reason": reason}))
    else:
        jobs = "its jobs are killed" if now else "after its running jobs"
        typer.echo(f"{name} is set {state}, {reason}: {jobs}; see `hpresume nodes`")


def _gateway(config: str) -> AdminGateway:
    from hpresume.controller.config import load
    from hpresume.controller.main import reach

    return reach(load(config))[0]


def open_controllers_store(config: str) -> Store:
    """The database that a controller's file names."""
    require_sqlalchemy()
    from hpresume.controller.config import load
    from hpresume.provision import tables  # noqa: F401 (its tables)
    from hpresume.recovery import table  # noqa: F401 (its tables)
    from hpresume.store import open_store

    return open_store(load(config).database, make=False)


def _print(found: tuple[Event, ...], *, as_json: bool) -> None:
    for event in found:
        if as_json:
            fields: dict[str, Any] = {**asdict(event), "level": event.level.value}
            typer.echo(json.dumps(fields))
        else:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
            typer.echo(f"{when} {event.level.value:7} {event.kind:16} {event.message}")
