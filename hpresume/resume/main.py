"""``hpresume supervise``: start the real srun at once, think afterwards.

What runs before the first attempt is kept to ``os`` and ``sys`` where nothing
else is asked for: it is felt at every srun. Settings are looked at only where
there are any, the journal only after a requeue.
"""

from __future__ import annotations

import os
import select
import time

from hpresume.errors import HpresumeError, UsageError
from hpresume.resume.request import FirstAttempt, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hpresume.resume.process import Child
    from hpresume.resume.signals import SignalPipe

#: What an attempt is told. Kept on the first one where the user has set it.
_OUR_VARIABLES = ("HPRESUME_ATTEMPT", "MASTER_PORT", "NODE_LIST", "MASTER_NODE", "MASTER_ADDR")

#: A step that ends within this time (s) costs no more than its start.
_SHORT_STEP_S = 0.3


def main(args: Sequence[str]) -> int:
    """Supervise one srun; the exit code is the step's own."""
    _occupy_standard_streams()
    try:
        return _supervise(Request(args))
    except HpresumeError as error:
        os.write(2, f"[Auto Resume] error: {error}\n".encode(errors="backslashreplace"))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # The step dies with this process; never let it look like the user's fault.
        import traceback

        traceback.print_exc()
        text = f"[Auto Resume] internal error, the step is ended: {error!r}\n"
        os.write(2, text.encode(errors="backslashreplace"))
        return 70


def _occupy_standard_streams() -> None:
    """Open those that the user closed, for this process alone.

    Or a pipe of the supervisor's gets the number of one, and its lines with it.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        if fd > 2:
            os.close(fd)
            return


def _supervise(request: Request) -> int:
    environ = dict(os.environ)
    argv, index, protect = _split(request)
    if not protect or index >= len(argv):
        # Off, or no command: the real srun has its own words for that.
        quiet = ["--auto-resume=0"] if request.plugin else []
        os.execve(request.srun, [argv[0], *argv[1:index], *quiet, *argv[index:]], environ)
    if ":" in argv[index:] or "SLURM_HET_SIZE" in environ:
        raise UsageError(
            "heterogeneous steps and jobs (components separated by ':') cannot be resumed;"
            " start one srun a component, or leave --auto-resume out"
        )
    _prepare_process(request.srun)
    if "HPRESUME_ATTEMPT" in environ:
        # Of the step this srun runs in, or whose task submitted this job.
        for name in _OUR_VARIABLES:
            environ.pop(name, None)
    insert_at = _insert_at(request, argv, index)
    own = ["--auto-resume=0"] if request.plugin else []
    settings: dict[str, Any] = {}
    if _has_settings(environ) or request.flags:
        settings = _settings(request, environ)
    past = None
    if environ.get("SLURM_RESTART_COUNT", "0") != "0":
        from hpresume.resume.begin import journal_of

        past = journal_of(environ, settings, argv)
    launched = FirstAttempt(request, environ, argv, index, insert_at, settings, past)
    attempt = past.attempts + 1 if past is not None else 1
    first = _first_environment(environ, attempt, request.srun, argv[1:insert_at])
    if attempt > 1:
        from hpresume.resume.begin import places_of

        places = places_of(environ, request.srun, argv[:index])
        own = ["--open-mode=append", *places, *own]
    launched.command = [request.srun, *argv[1:insert_at], *own, *argv[insert_at:]]
    launched.command_environ = first
    launched.first_nodes = _first_nodes(environ, request, argv[1:insert_at])
    if launched.first_nodes:
        own = [f"--nodelist={launched.first_nodes}", *own]
    if os.isatty(0):
        from hpresume.resume.terminal import remember

        launched.terminal = remember()  # before srun makes it raw
    from hpresume.resume.signals import SignalPipe

    signals = SignalPipe()  # a signal that ended this process would end srun with it
    child = _start(request.srun, [*argv[1:insert_at], *own, *argv[insert_at:]], first)

    # The real srun is on its way; from here on there is time, unless the step
    # is over sooner than the rest of the supervisor is loaded.
    launched.runs(child, signals, time.time())
    if _ends_well_at_once(child, signals):
        return 0
    from hpresume.resume.begin import supervise

    return supervise(launched)


def _prepare_process(srun: str) -> None:
    """What this process needs otherwise than its user has it; ``environ`` is copied by now.

    With SIGCHLD ignored (``trap '' CHLD``) the kernel would keep no exit codes of
    children. Slurm's other tools are where srun is, whatever PATH says.
    """
    import _signal  # type: ignore[import-not-found]

    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{os.path.dirname(srun)}:{path}"


def _ends_well_at_once(child: Child, signals: SignalPipe) -> bool:
    poller = select.poll()
    poller.register(child.pidfd, select.POLLIN)
    poller.register(signals.fd, select.POLLIN)
    poller.poll(_SHORT_STEP_S * 1000)
    return child.poll() == 0


def _split(request: Request) -> tuple[list[str], int, bool]:
    if request.command_index >= 0:
        return request.argv, request.command_index, True
    from hpresume.slurm.srun_help import with_table
    from hpresume.slurm.srun_options import split_for_supervisor

    split = with_table(request.srun, lambda table: split_for_supervisor(request.argv, table))
    return split.argv, split.command_index, split.protect


def _insert_at(request: Request, argv: list[str], index: int) -> int:
    """Where options can be added: in front of a ``--`` that ends the user's."""
    if index < 2 or argv[index - 1] != "--":
        return index
    from hpresume.slurm.srun_help import with_table
    from hpresume.slurm.srun_options import insertion_index

    return with_table(request.srun, lambda table: insertion_index(argv, index, table))


def _has_settings(environ: dict[str, str]) -> bool:
    """Whether anything but the defaults can be in force."""
    for name in environ:
        if name.startswith("HPRESUME_"):
            return True
    return os.path.exists("/etc/hpresume/hpresume.toml")


def _settings(request: Request, environ: dict[str, str]) -> dict[str, Any]:
    from hpresume.settings import read_settings

    settings, warnings = read_settings(environ, request.flags)
    if warnings:
        from hpresume.resume.report import say

        for warning in warnings:
            say(f"warning: {warning}")
    if settings.get("slurm_backend") == "pyslurm":
        from hpresume.slurm.select import open_gateway

        open_gateway("pyslurm")  # its absence is an error before anything is started
    return settings


def _first_environment(
    environ: dict[str, str], attempt: int, srun: str, options: list[str]
) -> dict[str, str]:
    """What the first attempt of this run is told; Slurm's own variables are fresh."""
    first = dict(environ)
    first["HPRESUME_ATTEMPT"] = str(attempt)
    if "MASTER_PORT" not in first or attempt > 1:
        from hpresume.slurm.ports import master_port

        job = environ.get("SLURM_JOB_ID", "")
        number = int(job) if job.isdigit() else os.getpid()
        first["MASTER_PORT"] = str(master_port(number, os.getpid(), attempt))
    if "SLURM_JOB_NODELIST" in environ:
        from hpresume.resume.first import step_variables

        for name, value in step_variables(environ, options, _beside(srun, "scontrol")).items():
            first.setdefault(name, value)
    return first


def _first_nodes(environ: dict[str, str], request: Request, options: list[str]) -> str:
    if "SLURM_JOB_ID" not in environ and not any(word.startswith("--jobi") for word in options):
        return ""
    from hpresume.resume.first import nodes_to_ask_for

    scontrol = _beside(request.srun, "scontrol")
    return nodes_to_ask_for(environ, options, scontrol, request.release)


def _beside(srun: str, name: str) -> str:
    """Another of Slurm's tools, from where srun is."""
    return os.path.join(os.path.dirname(srun), name)


def _start(srun: str, arguments: list[str], environ: dict[str, str]) -> Child:
    from hpresume.resume.process import spawn

    if not os.access(srun, os.X_OK):
        raise UsageError(f"{srun}: cannot be started (no such program)")
    try:
        return spawn([srun, *arguments], environ)
    except OSError as error:
        raise UsageError(f"{srun}: cannot be started ({error.strerror})") from None
