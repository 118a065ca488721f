"""``hpresume clusters`` and ``hpresume groups``: instance groups, also live."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpresume.cli.options import AsJson
from hpresume.cli.recovery import CONFIG, Config, open_controllers_store
from hpresume.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hpresume.provision.model import State
    from hpresume.provision.show import GroupLine
    from hpresume.store import Event, Store

_WATCH_S = 1.0
_EVENTS = 8
_BAR = 24

Name = Annotated[str, typer.Argument(metavar="[CLUSTER]", help="Only this one.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Go on, with what is under way; Ctrl-C ends it.")
]


def clusters(
    cluster: Name = "", config: Config = CONFIG, watch: Watch = False, as_json: AsJson = False
) -> None:
    """Show clusters: status, nodes, what failed."""
    _show(cluster, config, watch, as_json, _cluster_lines, _clusters_table)


def groups(
    cluster: Name = "", config: Config = CONFIG, watch: Watch = False, as_json: AsJson = False
) -> None:
    """Show instance groups: status, counts, targets."""
    _show(cluster, config, watch, as_json, _group_lines, _groups_table)


def _cluster_lines(states: list[State]) -> Iterable[Any]:
    from hpresume.provision.show import cluster_lines

    return cluster_lines(states)


def _group_lines(states: list[State]) -> Iterable[Any]:
    from hpresume.provision.show import group_lines

    return group_lines(states)


def _show(
    cluster: str,
    config: str,
    watch: bool,
    as_json: bool,
    lines: Callable[[list[State]], Iterable[Any]],
    table: Callable[[list[State]], RenderableType],
) -> None:
    if watch and as_json:
        raise UsageError("--watch draws for people: use --json without it, as often as you like")
    store = open_controllers_store(config)
    try:
        if as_json:
            found = [asdict(line) for line in lines(_states(store, cluster))]
            typer.echo(json.dumps(found, indent=1))
            return
        from rich.console import Console

        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 200  # a line each, for grep
        if watch:
            _watch(console, store, cluster)
            return
        states = _states(store, cluster)
        if states:
            console.print(table(states))
        else:
            typer.echo("no clusters")
    finally:
        store.close()


def _states(store: Store, cluster: str) -> list[State]:
    from hpresume.provision.repository import load

    with store.read() as session:
        found = list(load(session).values())
    if not cluster:
        return found
    chosen = [s for s in found if cluster in (s.cluster.name, s.cluster.arn)]
    if not chosen:
        names = ", ".join(sorted(s.cluster.name for s in found)) or "none"
        raise UsageError(f"there is no cluster {cluster} (existing: {names})")
    return chosen


def _clusters_table(states: list[State]) -> RenderableType:
    from hpresume.provision.show import cluster_lines

    found = list(cluster_lines(states))
    return _table(
        ("CLUSTER", "STATUS", "UP", "TARGET", "SINCE"),
        [
            (
                line.name, line.status, str(line.current), str(line.target),
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.created_at)),
            )
            for line in found
        ],
        [(line.name, line.message) for line in found],
    )  # fmt: skip


def _groups_table(states: list[State]) -> RenderableType:
    from hpresume.provision.show import group_lines

    found = list(group_lines(states))
    several = len(states) > 1  # one name in every line would take the room of what matters
    return _table(
        (*("CLUSTER",) * several, "GROUP", "TYPE", "STATUS", "UP", "MIN", "TARGET", "WAITING FOR"),
        [
            (
                *(line.cluster,) * several, line.group, line.node_type, line.status,
                str(line.current), str(line.minimum), str(line.target), _waiting(line),
            )
            for line in found
        ],
        [(f"{line.cluster}/{line.group}" if several else line.group, line.message)
         for line in found],
    )  # fmt: skip


def _table(
    names: tuple[str, ...], rows: list[tuple[str, ...]], messages: list[tuple[str, str]]
) -> RenderableType:
    """Names and numbers in columns that are never cut short, what was said below them."""
    from rich.console import Group
    from rich.text import Text

    from hpresume.cli.grids import grid

    table = grid(names, rows)
    for column in table.columns:
        column.no_wrap = column.header != "WAITING FOR"
    return Group(table, *(Text(f"{of}: {message}") for of, message in messages if message))


def _waiting(line: GroupLine) -> str:
    counts = {**line.phases, "not begun": line.not_begun}
    return ", ".join(f"{count} {phase}" for phase, count in counts.items() if count)


def _watch(console: Console, store: Store, cluster: str) -> None:
    from hpresume.provision import history

    with _drawing(console) as draw:
        try:
            states = _states(store, cluster)
            while True:
                with store.read() as session:
                    told = history.latest(session, _EVENTS if not cluster else 10 * _EVENTS)
                names = {state.cluster.name for state in states}
                told = tuple(event for event in told if event.cluster in names)
                draw(picture(states, told[-_EVENTS:]))
                time.sleep(_WATCH_S)
                try:
                    states = _states(store, cluster)
                except UsageError:
                    console.print(f"cluster {cluster} is gone")
                    return
        except KeyboardInterrupt:
            pass


@contextmanager
def _drawing(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Draws one picture over the other; where that cannot be (a pipe), each new one below."""
    if console.is_terminal:
        from rich.live import Live

        with Live(console=console, auto_refresh=False) as live:
            yield lambda shown: live.update(shown, refresh=True)
        return
    last = ""

    def draw(shown: RenderableType) -> None:
        nonlocal last
        with console.capture() as drawn:
            console.print(shown)
        if drawn.get() != last:
            last = drawn.get()
            console.print(shown)

    yield draw


def picture(states: list[State], told: Iterable[Event]) -> RenderableType:
    """One frame: a bar for every group, and the newest events."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from hpresume.provision.show import cluster_lines, group_lines

    parts: list[RenderableType] = []
    for line in cluster_lines(states):
        parts.append(Text(f"{line.name}  {line.status}  {line.current}/{line.target}"))
        if line.message:
            parts.append(Text(line.message))
        grid = Table.grid(padding=(0, 2))
        for group in group_lines(s for s in states if s.cluster.name == line.name):
            bar = ProgressBar(max(group.target, 1), group.current, width=_BAR)
            counts = f"{group.current}/{group.target}"
            grid.add_row(f"  {group.group}", bar, counts, group.status, _waiting(group))
        parts.append(grid)
    if not parts:
        parts.append(Text("no clusters"))
    for event in told:
        when = time.strftime("%H:%M:%S", time.localtime(event.time))
        parts.append(Text(f"{when} {event.message}", overflow="ellipsis", no_wrap=True))
    return Group(*parts)
