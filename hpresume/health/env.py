"""The node as checks see it: files below a root, and tools bounded in time.

Tests give another root and another PATH; in a container, the root is where the
node's own file system is mounted. Within one run a tool that several checks
ask the same question is started once.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpresume import process_group
from hpresume.health.model import Absent, Broken, one_line
from hpresume.health.policy import CheckPolicy

#: slurmd starts HealthCheckProgram with next to no environment.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: More than any tool here has to say; the rest is not read.
_MAX_OUTPUT = 8 << 20
_MAX_FILE = 1 << 20

#: What a tool has to end after it was told to.
_GRACE_S = 0.5


@dataclass(frozen=True)
class Answer:
    """What a tool printed and how it ended (negative: by that signal)."""

    tool: str
    stdout: str
    stderr: str = ""
    returncode: int = 0
    is_cut: bool = False

    @property
    def doubt(self) -> tuple[str, ...]:
        """Why the answer cannot be the ground of a Pass, if so."""
        if self.is_cut:
            return (f"{self.tool} printed more than {_MAX_OUTPUT >> 20} MiB",)
        if self.returncode == 0:
            return ()
        said = one_line(self.stderr or self.stdout, 160)
        how = (
            f"was killed by signal {-self.returncode}"
            if self.returncode < 0
            else f"ended with code {self.returncode}"
        )
        return (f"{self.tool} {how}" + (f": {said}" if said else ""),)


@dataclass
class Cache:
    """Answers of this run, and the tools that it has running."""

    answers: dict[tuple[str, ...], Answer | Absent | Broken] = field(default_factory=dict)
    locks: dict[tuple[str, ...], threading.Lock] = field(default_factory=dict)
    guard: threading.Condition = field(default_factory=threading.Condition)
    starting: int = 0
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    is_over: bool = False

    def lock(self, key: tuple[str, ...]) -> threading.Lock:
        """The lock of one question."""
        with self.guard:
            return self.locks.setdefault(key, threading.Lock())

    def stop(self) -> None:
        """End every tool that runs; called where the run is interrupted.

        Each is in a session of its own, so nobody else's signal reaches it.
        """
        with self.guard:
            self.is_over = True
            # What is being started at this moment runs in the next one.
            self.guard.wait_for(lambda: self.starting == 0, _GRACE_S)
            left = tuple(self.running)
        for process in left:
            process_group.kill(process.pid, signal.SIGTERM)
        until = time.monotonic() + _GRACE_S
        for process in left:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(until - time.monotonic(), 0))
        for process in left:
            process_group.kill(process.pid)


@dataclass(frozen=True)
class Env:
    """What one check may ask the node; ``deadline`` is monotonic."""

    policy: CheckPolicy
    deadline: float
    root: str = "/"
    environ: Mapping[str, str] = field(default_factory=dict)
    is_root: bool = False
    cache: Cache = field(default_factory=Cache)
    now: float = 0.0

    @property
    def time_left(self) -> float:
        """Seconds until the check's time limit."""
        return self.deadline - time.monotonic()

    @property
    def node(self) -> str:
        """The name under which Slurm knows this node, as far as the node can tell."""
        return self.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]

    def path(self, name: str) -> Path:
        """``name`` (absolute) below the root."""
        return Path(self.root) / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """The beginning of a file; None where it cannot be read."""
        try:
            with open(self.path(name), "rb") as stream:
                return stream.read(_MAX_FILE).decode("utf-8", errors="replace")
        except (OSError, ValueError):
            return None

    def number(self, name: str) -> int | None:
        """The whole number a file holds; None where there is none."""
        return whole(self.text(name))

    def names(self, name: str) -> tuple[str, ...]:
        """The names in a directory, sorted; empty where there is none."""
        try:
            return tuple(sorted(os.listdir(self.path(name))))
        except (OSError, ValueError):
            return ()

    def run(self, *argv: str) -> Answer | Absent | Broken:
        """Run a tool within what is left of the check's time; never raises."""
        with self.cache.lock(argv):
            if argv not in self.cache.answers:
                self.cache.answers[argv] = self._started(argv)
            return self.cache.answers[argv]

    def find(self, tool: str) -> str | None:
        """Where a tool is on the node's PATH."""
        return shutil.which(tool, path=self.environ.get("PATH") or DEFAULT_PATH)

    def _started(self, argv: tuple[str, ...]) -> Answer | Absent | Broken:
        tool = argv[0]
        program = self.find(tool)
        if program is None:
            return Absent(f"{tool} is not installed (not on PATH)")
        # Texts as the parsers expect them, whatever the caller's language.
        environ = {**self.environ, "LC_ALL": "C", "LANGUAGE": "C"}
        environ.setdefault("PATH", DEFAULT_PATH)
        with self.cache.guard:
            if self.cache.is_over:
                return Broken(f"{tool} was not started: the run was ended")
            self.cache.starting += 1
        process = None
        try:
            process = process_group.start([program, *argv[1:]], environ)
        except (OSError, ValueError) as error:
            return Broken(f"{tool} cannot be started: {error}")
        finally:
            with self.cache.guard:
                self.cache.starting -= 1
                if process is not None:
                    self.cache.running.add(process)
                self.cache.guard.notify_all()
        limit = max(self.time_left, 0.05)
        try:
            output = process_group.read(process, limit, _MAX_OUTPUT)
        except subprocess.TimeoutExpired:
            return Broken(f"{tool} did not answer within {limit:.1f} s")
        finally:
            _end(process)
            with self.cache.guard:
                self.cache.running.discard(process)
        stdout, stderr = (text[:_MAX_OUTPUT].decode("utf-8", errors="replace") for text in output)
        is_cut = any(len(text) > _MAX_OUTPUT for text in output)
        return Answer(tool, stdout, stderr, process.returncode or 0, is_cut)


def whole(text: str | None) -> int | None:
    """The whole number that ``text`` is; None where it is none."""
    word = (text or "").strip()
    try:
        return int(word, 0) if len(word) <= 20 and word.isascii() else None
    except ValueError:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        # Asked first: stress-ng removes its files, dcgmi stops a diagnosis in the host engine.
        process_group.kill(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
    # Its children too, which may outlive it and hold the pipes.
    process_group.kill(process.pid)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_S)  # a process in the kernel's hands does not die
    process_group.close(process)
