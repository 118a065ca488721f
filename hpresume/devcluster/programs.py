"""Running programs on a host: command line, environment, time limit, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpresume.devcluster.accounts import Account
from hpresume.devcluster.namespaces import enter_host
from hpresume.devcluster.processes import ProcessId, children
from hpresume.devcluster.requirements import TOOL_PATH

_KEPT = ("TERM", "LANG", "LC_ALL", "TZ", "COLUMNS", "LINES")
_KEPT_PREFIX = "HPRESUME_"

#: Of the dev cluster itself: it says nothing to a job, which would look at its settings for it.
_LEFT_PREFIX = "HPRESUME_DEVCLUSTER_"


def command_line(
    host: ProcessId, account: Account, argv: Sequence[str], cwd: Path | None, on_exit: str = "TERM"
) -> list[str]:
    """Command line that runs ``argv`` on a host as ``account`` in ``cwd`` (default: its home).

    The program gets signal ``on_exit`` when nsenter, which waits for it, is
    killed. It gets keyboard interrupts even where nsenter ignores them.
    """
    identity = [f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
    return [
        *enter_host(host),
        *("setpriv", *identity, f"--pdeathsig={on_exit}"),
        *("env", "--default-signal=INT,QUIT", f"--chdir={cwd or account.home}"),
        *argv,
    ]


def environment(
    account: Account,
    slurm_conf: Path | None,
    extra: Mapping[str, str],
    own: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Environment on a host: of ``own`` only terminal, language and HPRESUME_* are kept.

    PATH leads with the directory of the running Python, where ``hpresume`` is.
    """
    kept = {
        k: v
        for k, v in own.items()
        if k in _KEPT or (k.startswith(_KEPT_PREFIX) and not k.startswith(_LEFT_PREFIX))
    }
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{TOOL_PATH}",
        "HOME": str(account.home),
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": "/bin/bash",
        **({"SLURM_CONF": str(slurm_conf)} if slurm_conf else {}),
        **extra,
    }


def finish(
    process: subprocess.Popen[str], argv: Sequence[str], stdin: str | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Wait for a program; after ``timeout`` seconds kill its group, raise TimeoutExpired."""
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(list(argv), process.returncode, stdout, stderr)


def start(
    line: Sequence[str], env: Mapping[str, str], options: Mapping[str, Any]
) -> subprocess.Popen[str]:
    """Start a command line with pipes, no input and a session of its own, unless told otherwise."""
    settings: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
        **options,
    }
    return subprocess.Popen(line, env=env, **settings)


def send_signal(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal to the program that nsenter, which is ``process``, waits for."""
    for pid in children(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
