"""What shim and wrapper ask for, and the attempt that was started for it.

Loaded at every srun: neither dataclasses nor typing.
"""

from __future__ import annotations

from hpresume.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hpresume.resume.journal import Past
    from hpresume.resume.process import Child
    from hpresume.resume.signals import SignalPipe
    from hpresume.resume.terminal import TerminalState

_USAGE = (
    "usage: hpresume supervise (--plugin | --wrapper) --srun=PATH [--command-index=N]"
    " [--slurm=RELEASE] [--set NAME=VALUE] -- srun ARGUMENTS…"
)


class Request:
    """The command line of ``hpresume supervise``, which shim and wrapper write."""

    def __init__(self, args: Sequence[str]) -> None:
        self.plugin = False
        self.srun = ""
        self.command_index = -1
        self.release = ""  # of Slurm, such as 22.05; empty where nobody knows yet
        self.flags: list[tuple[str, str]] = []
        self.argv: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            name, _, value = word.partition("=")
            if word == "--":
                self.argv = rest
                break
            if word == "--plugin":
                self.plugin = True
            elif word == "--wrapper":
                self.plugin = False
            elif name == "--srun" and value:
                self.srun = value
            elif name == "--command-index" and value.isdecimal() and len(value) < 9:
                self.command_index = int(value)
            elif name == "--slurm" and value.replace(".", "").isdecimal():
                self.release = value
            elif word == "--set" and rest and "=" in rest[0]:
                key, _, text = rest.pop(0).partition("=")
                self.flags.append((key, text))
            else:
                raise UsageError(f"unknown argument {word!r}; {_USAGE}")
        if not self.srun or not self.argv:
            raise UsageError(_USAGE)


class FirstAttempt:
    """The srun that runs already, with all that was found out before its start.

    ``argv[:command_index]`` are srun's own words; further options go in at
    ``insert_at``. ``settings`` are those that are not the default; ``past`` is None
    where nobody had to look. ``started`` is Unix time. ``first_nodes`` are the nodes,
    with commas, that were asked for on top of ``command``, in ``command_environ``;
    empty where none were.
    """

    def __init__(
        self,
        request: Request,
        environ: dict[str, str],
        argv: list[str],
        command_index: int,
        insert_at: int,
        settings: dict[str, Any],
        past: Past | None,
    ) -> None:
        self.srun = request.srun
        self.plugin = request.plugin
        self.environ = environ
        self.argv = argv
        self.command_index = command_index
        self.insert_at = insert_at
        self.settings = settings
        self.past = past
        self.terminal: TerminalState | None = None
        self.started = 0.0
        self.first_nodes = ""
        self.command: list[str] = []
        self.command_environ: dict[str, str] = {}

    def runs(self, child: Child, signals: SignalPipe, started: float) -> None:
        """It was started."""
        self.child = child
        self.signals = signals
        self.started = started
