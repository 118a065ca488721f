"""``hpresume devcluster``: a real Slurm cluster on this machine, and faults for it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.table import Table

from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.lifecycle import slurm_version
from hpresume.devcluster.plugin import default_plugin, default_supervisor
from hpresume.devcluster.requirements import require_root, require_tools
from hpresume.devcluster.spec import CONTROLLER, DEFAULT_NAME, ClusterSpec, parse_override
from hpresume.devcluster.store import cluster_names
from hpresume.errors import UsageError

app = typer.Typer(
    help=(
        "A Slurm cluster on this machine, to try things.\n\nReal daemons in namespaces; needs root."
    ),
    no_args_is_help=True,
)
_console = Console(stderr=True, highlight=False)

Name = Annotated[str, typer.Option("--name", help="Which cluster.")]
Host = Annotated[
    str, typer.Argument(help=f"A node (n1, n2, ...) or {CONTROLLER}.", show_default=False)
]


@app.command()
def up(
    nodes: Annotated[int, typer.Option(help="Number of nodes, 2 to 64.")] = 4,
    gpus_per_node: Annotated[int, typer.Option(help="Pretended GPUs of a node, 0 to 8.")] = 4,
    cpus_per_node: Annotated[int, typer.Option(help="CPUs of a node as Slurm counts them.")] = 2,
    memory: Annotated[int, typer.Option(help="RealMemory of a node, in MB.")] = 2000,
    slurmd_timeout: Annotated[int, typer.Option(help="SlurmdTimeout, in seconds.")] = 300,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A line of slurm.conf; may be repeated."),
    ] = None,
    cgroup: Annotated[bool, typer.Option("--cgroup", help="Use Slurm's cgroup plugins.")] = False,
    accounting: Annotated[
        bool, typer.Option("--accounting", help="slurmdbd, with a MariaDB of its own.")
    ] = False,
    configless: Annotated[
        bool, typer.Option("--configless", help="Nodes fetch slurm.conf from slurmctld.")
    ] = False,
    plugin: Annotated[Path | None, typer.Option(help="SPANK plugin to load.")] = None,
    supervisor: Annotated[
        Path | None, typer.Option(help="Program the plugin hands steps to.")
    ] = None,
    name: Name = DEFAULT_NAME,
) -> None:
    """Bring a cluster up: slurmctld on ctl, slurmd on n1, n2, ..."""
    require_root()
    require_tools(accounting=accounting)
    plugin = plugin.absolute() if plugin else default_plugin(slurm_version())
    if plugin is not None and supervisor is None:
        supervisor = default_supervisor()
    spec = ClusterSpec(
        name=name,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        cpus_per_node=cpus_per_node,
        memory_mb=memory,
        slurmd_timeout=slurmd_timeout,
        overrides=tuple(parse_override(text) for text in settings or ()),
        cgroup=cgroup,
        accounting=accounting,
        configless=configless,
        plugin=plugin,
        supervisor=supervisor.absolute() if supervisor else None,
    )
    with _console.status("starting") as status:

        def progress(line: str) -> None:
            _console.print(f"[green]✓[/] {line}")
            status.update("working")

        DevCluster.up(spec, progress=progress)
    command = "hpresume devcluster {verb}" + ("" if name == DEFAULT_NAME else f" --name {name}")
    lines = (
        (
            "run something",
            command.format(verb="exec") + f" --user trainer -- srun -N{nodes} hostname",
        ),
        ("break something", command.format(verb="crash") + " n2"),
        ("look", command.format(verb="status")),
        ("end it", command.format(verb="down")),
    )
    for purpose, line in lines:
        _console.print(f"{purpose + ':':17}{line}", soft_wrap=True, markup=False)


@app.command()
def crash(host: Host, name: Name = DEFAULT_NAME) -> None:
    """Power loss: the host falls silent at once."""
    DevCluster(name).crash(host)


@app.command()
def hang(host: Host, name: Name = DEFAULT_NAME) -> None:
    """Freeze every process of the host; its address still answers."""
    DevCluster(name).hang(host)


@app.command()
def thaw(host: Host, name: Name = DEFAULT_NAME) -> None:
    """Let a hanging host go on."""
    DevCluster(name).thaw(host)


@app.command()
def disconnect(host: Host, name: Name = DEFAULT_NAME) -> None:
    """Pull the host's network cable; its processes go on."""
    DevCluster(name).disconnect(host)


@app.command()
def reconnect(host: Host, name: Name = DEFAULT_NAME) -> None:
    """Plug the host's network cable in again."""
    DevCluster(name).reconnect(host)


@app.command()
def boot(
    host: Host,
    new_address: Annotated[
        bool, typer.Option("--new-address", help="Give it another IP address.")
    ] = False,
    report_boot: Annotated[
        bool, typer.Option("--report-boot", help="slurmd tells slurmctld of the reboot.")
    ] = False,
    name: Name = DEFAULT_NAME,
) -> None:
    """Start a fresh machine under the name of a crashed one."""
    DevCluster(name).boot(host, new_address=new_address, report_boot=report_boot)


@app.command()
def restart(
    daemon: Annotated[
        str, typer.Argument(help="slurmctld, slurmdbd or slurmd.", show_default=False)
    ],
    host: Annotated[str | None, typer.Argument(help="The node, for slurmd.")] = None,
    name: Name = DEFAULT_NAME,
) -> None:
    """Restart a Slurm daemon; running steps go on."""
    DevCluster(name).restart_daemon(daemon, host)


class _ExecCommand(typer.core.TyperCommand):
    """Keeps everything behind ``--`` as it is: it is another program's command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["command"] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


@app.command("exec", cls=_ExecCommand)
def exec_(
    context: typer.Context,
    host: Annotated[str, typer.Argument(help=f"A node, or {CONTROLLER}.")] = CONTROLLER,
    user: Annotated[str, typer.Option(help="trainer, other or root.")] = "root",
    cwd: Annotated[Path | None, typer.Option(help="Working directory; default: home.")] = None,
    name: Name = DEFAULT_NAME,
) -> None:
    """Run a command on a host, with this terminal and its exit code."""
    command: list[str] = context.meta["command"]
    if not command:
        raise UsageError("name the command behind --: hpresume devcluster exec [HOST] -- COMMAND")
    argv, environment = DevCluster(name).exec_argv(command, host, user, cwd=cwd)
    # nsenter has to outlive a keyboard interrupt to pass the command's exit code on
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.execvpe(argv[0], argv, environment)


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    name: Name = DEFAULT_NAME,
) -> None:
    """Show the hosts of a cluster."""
    seen = DevCluster(name).status()
    if as_json:
        print(json.dumps(asdict(seen), indent=1, default=str))
        return
    running = "running" if seen.running else "not running any more"
    print(f"cluster {seen.name}: {running}, SLURM_CONF={seen.slurm_conf}")
    table = Table()
    for column in ("host", "address", "machine", "Slurm"):
        table.add_column(column)
    for host in seen.hosts:
        table.add_row(host.name, host.address, host.condition, host.slurm_state)
    Console().print(table)


@app.command("list")
def list_() -> None:
    """Show all clusters of this machine."""
    for name in cluster_names():
        print(f"{name}\t{'running' if DevCluster(name).status().running else 'left over'}")


@app.command()
def down(
    name: Name = DEFAULT_NAME,
    everything: Annotated[bool, typer.Option("--all", help="All clusters.")] = False,
) -> None:
    """Take a cluster down and remove its files."""
    for each in cluster_names() if everything else [name]:
        if DevCluster(each).down():
            _console.print(f"cluster {each} is down")
        elif not everything:
            _console.print(f"there is no cluster {each}")
