"""Root of the ``hpresume`` command line; every sub-command has a file of its own."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
import typer.main

from hpresume import __version__
from hpresume.cli import api, check, clusters, deep_check, devcluster, recovery, usage
from hpresume.entrypoint import main as entrypoint
from hpresume.errors import HpresumeError

app = typer.Typer(
    name="hpresume",
    help=(
        "Auto-resume for training steps on Slurm.\n\n"
        "A step is protected by srun --auto-resume=1; that needs none of these commands."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hpresume {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


app.add_typer(devcluster.app, name="devcluster")
app.add_typer(api.app, name="api")
app.command("check")(check.check)
app.command("usage")(usage.usage)
app.command("deep-check")(deep_check.deep_check)
for _command in (
    recovery.controller,
    recovery.nodes,
    recovery.replace,
    recovery.reboot,
    recovery.events,
    clusters.clusters,
    clusters.groups,
):
    app.command(_command.__name__)(_command)


@app.command("env", context_settings={"ignore_unknown_options": True, "help_option_names": []})
def env(arguments: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS]")] = None) -> None:
    """Print this step's nodes as variables, for eval."""
    # Only listed here: __main__ answers it before typer is loaded.
    raise typer.Exit(entrypoint.main(arguments or []))


def main(args: list[str]) -> int:
    """Run one command line (without the program's name) and return the exit code.

    A mistake in it, or an HpresumeError, becomes one line on standard error and its
    own exit code.
    """
    command = typer.main.get_command(app)
    try:
        code = command.main(args=args, prog_name="hpresume", standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except HpresumeError as error:
        print(f"hpresume: {error}", file=sys.stderr)
        return error.exit_code
    except typer.Abort:
        return 130
    except Exception as error:
        # Told by its shape: newer releases of typer have a click of their own.
        if not hasattr(error, "format_message"):
            raise
        print(_mistake(error), file=sys.stderr)
        return int(getattr(error, "exit_code", 2))
    return code if isinstance(code, int) else 0


def _mistake(error: Any) -> str:
    message: str = error.format_message()
    context = getattr(error, "ctx", None)
    if "\n" in message:  # the help of a group that was named alone
        return message
    path = context.command_path if context else "hpresume"
    return f"{path}: {message.rstrip('.')}; see {path} --help"
