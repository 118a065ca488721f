"""``hpresume usage``: what the instances of provisioned clusters have used."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from hpresume.cli.extras import require_sqlalchemy
from hpresume.cli.recovery import CONFIG, Config
from hpresume.errors import UsageError

if TYPE_CHECKING:
    from hpresume.provision.metering import Usage

_FORMATS = ("table", "csv", "json")
_LEVELS = ("cluster", "group", "instance")


def usage(
    cluster: Annotated[
        str, typer.Argument(metavar="[CLUSTER]", help="Name or ARN; all clusters without it.")
    ] = "",
    by: Annotated[str, typer.Option(metavar="LEVEL", help="cluster, group or instance.")] = "group",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From then on: 2026-01-31, 2026-01-31T12:00:00Z.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Up to then; now without it.")] = "",
    format_: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
    database: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="HPRESUME_DATABASE",
            help="The controller's; without it the one that its file names.",
        ),
    ] = "",
    config: Config = CONFIG,
) -> None:
    """Show metered time per cluster ARN, group and instance."""
    if format_ not in _FORMATS:
        raise UsageError(f"--format {format_}: use {', '.join(_FORMATS)}")
    if by not in _LEVELS:
        raise UsageError(f"--by {by}: use {', '.join(_LEVELS)}")
    begin = _time("--since", since) if since else 0.0
    end = _time("--until", until) if until else time.time()
    if begin >= end:
        raise UsageError(f"--since {since}: must be before {until or 'now'}")
    require_sqlalchemy()
    from hpresume.provision import metering
    from hpresume.store import open_store

    store = open_store(database or _url(config), make=False)
    try:
        with store.read() as session:
            found = metering.intervals(session, cluster)
    finally:
        store.close()
    if cluster and not found:
        raise UsageError(f"no time of a cluster {cluster} was metered; hpresume usage shows all")
    rows = metering.usage(found, begin, end)
    if by != "instance":
        rows = metering.totals(rows, by_group=by == "group")
    if format_ == "csv":
        typer.echo(metering.as_csv(rows), nl=False)
    elif format_ == "json":
        typer.echo(metering.as_json(rows))
    else:
        _show(rows, by)


def _url(config: str) -> str:
    """The database of the controller's file; its default on a host that has no such file."""
    from hpresume.controller.config import load
    from hpresume.store import DEFAULT_URL

    if config == CONFIG and not os.path.exists(config):
        return DEFAULT_URL
    return load(config).database


def _time(option: str, text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(
            f"{option} {text}: write a date or a time, as 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None


def _show(rows: list[Usage], by: str) -> None:
    if not rows:
        typer.echo("no time was metered")
        return
    table = Table(box=None, pad_edge=False)
    names = ["cluster"]
    names += [] if by == "cluster" else ["group", "type"]
    names += ["instance"] if by == "instance" else ["instances"]
    for name in names:
        table.add_column(name, no_wrap=True)
    table.add_column("hours", justify="right", no_wrap=True)
    for row in rows:
        cells = [row.cluster_arn]
        cells += [] if by == "cluster" else [row.group, row.instance_type]
        cells.append(row.instance_id if by == "instance" else str(row.instances))
        table.add_row(*cells, f"{row.seconds / 3600:.3f}{' *' if row.is_running else ''}")
    console = Console(width=200, soft_wrap=True, highlight=False)
    console.print(table)
    if any(row.is_running for row in rows):
        console.print("* still running")
