"""Processes of the machine, named so that a recycled pid is never mistaken for them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpresume.devcluster.requirements import TOOL_PATH
from hpresume.errors import DevClusterError

_POLL = 0.01


@dataclass(frozen=True)
class ProcessId:
    """A process: its pid, and its start in clock ticks since the machine booted."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Identify the running process ``pid``; raises ProcessLookupError where there is none."""
        start = _start_time(pid)
        if start is None:
            raise ProcessLookupError(pid)
        return cls(pid, start)

    def alive(self) -> bool:
        """Whether this very process exists and is not a zombie."""
        return _start_time(self.pid) == self.start

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal, unless the process is gone or the pid is another process's by now."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal_number)
        finally:
            os.close(handle)

    def wait_gone(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the end of the process; False where it lives on."""
        deadline = time.monotonic() + timeout
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True


def run(
    argv: Sequence[str],
    *,
    stdin: str = "",
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a tool and return its standard output; ``timeout`` is in seconds.

    Raises DevClusterError with what the tool says where it fails or hangs.
    """
    try:
        result = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PATH": TOOL_PATH} if env is None else env,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DevClusterError(f"{_shown(argv)} did not end within {timeout:g} s") from error
    except OSError as error:
        raise DevClusterError(f"cannot run {argv[0]}: {error.strerror}") from error
    if result.returncode != 0:
        said = "; ".join((result.stderr.strip() or result.stdout.strip()).splitlines()[:3])
        raise DevClusterError(
            f"{_shown(argv)} ended with {result.returncode}: {said or 'no message'}"
        )
    return result.stdout


def all_pids() -> Iterator[int]:
    """Pids of all processes of the machine."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            yield int(entry.name)


def command_of(pid: int) -> str:
    """Command line of a process, words joined by spaces; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def name_of(pid: int) -> str:
    """Name of the program of a process, at most 15 characters; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def namespace_of(pid: int, kind: str) -> str:
    """Name of a namespace of a process, such as ``pid:[4026531836]``; empty where it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def members(pid_namespace: str) -> list[int]:
    """Pids, as the machine counts them, of the processes directly in a pid namespace."""
    return [pid for pid in all_pids() if namespace_of(pid, "pid") == pid_namespace]


def parents_into(pid_namespace: str) -> list[ProcessId]:
    """Processes outside a pid namespace whose children are in it: nsenter, waiting."""
    found = []
    for pid in all_pids():
        inward = namespace_of(pid, "pid_for_children") == pid_namespace
        if inward and namespace_of(pid, "pid") != pid_namespace:
            with suppress(ProcessLookupError):
                found.append(ProcessId.of(pid))
    return found


def pid_inside(pid: int) -> int | None:
    """The pid that a process has in its own pid namespace, or None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return None


def children(pid: int) -> list[int]:
    """Pids of the children of a process."""
    return [child for child in all_pids() if (_stat(child) or ["", ""])[1] == str(pid)]


def _start_time(pid: int) -> int | None:
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _shown(argv: Sequence[str]) -> str:
    """The command without the nsenter prefix that only tells where it ran."""
    words = list(argv)
    if words[0] == "nsenter" and "--" in words:
        words = words[words.index("--") + 1 :]
    return " ".join(words[:4]) + (" ..." if len(words) > 4 else "")
