"""The two ways to a protected step, and plain srun to hold them against.

``plugin``: the cluster has the plugin. ``wrapper``: it has not, and scripts/srun
comes first on the trainer's PATH. Scripts say ``$SRUN`` where either the real
srun or a protected one is to stand.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import E2eCluster, wait_for

from hpresume.devcluster.requirements import TOOL_PATH

ROOT = Path(__file__).resolve().parents[2]
PLUGIN, WRAPPER = "plugin", "wrapper"

#: Lines of srun about when it got its nodes: they come and go with the load.
_NOISE = re.compile(
    r"srun: (job \d+ (queued|has been)|Job \d+ step creation|Step created|.*retrying)"
)

#: The supervisor's two or three lines at the start of a step that lives for a second.
_ANNOUNCEMENT = re.compile(
    r"\[Auto Resume\] (protecting the step on |(warning: )?after the loss of )"
)

_VOLATILE = (
    (re.compile(r"((?:step|job) ?(?:id)?[= ])\d+(\.\d+)?", re.IGNORECASE), r"\1N"),
    (re.compile(r" AT \d[\dT:-]+"), " AT T"),
)

_numbers = itertools.count(1)

Result = tuple[str, list[str], int, dict[str, bytes]]


@dataclass(frozen=True)
class Done:
    """How a script ended. ``files`` are those it left in its directory."""

    stdout: str
    stderr: str
    code: int
    files: Mapping[str, bytes]

    def comparable(self, drop: str = "") -> Result:
        """All of it without what differs between two runs of the same srun.

        The order of lines on stderr is among that: two daemons write them.
        Lines of stderr in which ``drop`` is found are left out too.
        """
        lines = [
            line
            for line in self.stderr.splitlines()
            if not _NOISE.match(line)
            and not _ANNOUNCEMENT.match(line)
            and not (drop and re.search(drop, line))
        ]
        files = {steady(name): content for name, content in self.files.items()}
        return steady(self.stdout), sorted(map(steady, lines)), self.code, files


def steady(text: str) -> str:
    """``text`` without the numbers of jobs and steps, and without times."""
    for pattern, instead in _VOLATILE:
        text = pattern.sub(instead, text)
    return text


class Way:
    """A cluster with one of the two ways."""

    def __init__(self, cluster: E2eCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.plain = shutil.which("srun", path=TOOL_PATH) or "srun"
        self.path = f"{Path(sys.executable).parent}:{TOOL_PATH}"
        if name == WRAPPER:
            folder = cluster.home().parent / "wrapper"
            folder.mkdir(exist_ok=True)
            if not (folder / "srun").is_symlink():
                (folder / "srun").symlink_to(ROOT / "scripts" / "srun")
            self.path = f"{folder}:{self.path}"

    def sh(
        self,
        script: str,
        srun: str = "srun --auto-resume=1",
        *,
        user: str = "trainer",
        timeout: float = 60.0,
        **env: str,
    ) -> Done:
        """Run a bash script as ``user`` in an empty directory, always the same one."""
        folder = self.cluster.home(user) / "here"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        owner = self.cluster.home(user).stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
        done = self.cluster.exec(
            ["bash", "-c", script],
            user=user,
            cwd=folder,
            env={"PATH": self.path, "SRUN": srun, **env},
            timeout=timeout,
        )
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        return Done(done.stdout, done.stderr, done.returncode, files)

    def both(
        self, script: str, protected: str = "srun --auto-resume=1", drop: str = "", **env: str
    ) -> tuple[Result, Result]:
        """What ``script`` does with a protected srun, and with the real one."""
        plain, ours = (self.sh(script, srun, **env) for srun in (self.plain, protected))
        return ours.comparable(drop), plain.comparable(drop)

    def running_jobs(self) -> list[str]:
        """Ids of all jobs that have not ended."""
        return sorted(self.cluster.jobs(), key=int)

    def all_jobs(self) -> list[str]:
        """Ids of all jobs that Slurm still knows, those that have ended too."""
        argv = ["squeue", "--noheader", "--states=all", "--format=%A"]
        return sorted(self.cluster.exec(argv, check=True).stdout.split(), key=int)

    @contextmanager
    def allocated(self, *options: str) -> Iterator[dict[str, str]]:
        """Hold an allocation of salloc's; the environment of its shell."""
        environ = self.cluster.home() / f"environ{next(_numbers)}"
        hold = f"env -0 >{environ}.new; mv {environ}.new {environ}; exec sleep infinity"
        process = self.cluster.popen(
            ["salloc", "--quiet", *options, "bash", "-c", hold],
            user="trainer",
            env={"PATH": self.path},
        )
        try:
            wait_for(environ.exists, time.monotonic() + 30, "salloc does not get its nodes")
            entries = environ.read_text().split("\0")[:-1]
            inside = dict(entry.split("=", 1) for entry in entries)
            yield {k: v for k, v in inside.items() if k.startswith("SLURM")}
        finally:
            process.kill()
            process.wait()

    def plugstack(self, *lines: str, hpresume: str | None = None) -> None:
        """Write plugstack.conf: ``lines``, and hpresume's own with another supervisor."""
        text = "".join(f"{line}\n" for line in lines)
        if self.name == PLUGIN:
            supervisor = hpresume or self.cluster.spec.supervisor
            text += f"optional {self.cluster.spec.plugin} supervisor={supervisor}\n"
        self.cluster.layout.plugstack_conf.write_text(text)


def start(name: str, **fields: Any) -> E2eCluster:
    """A cluster for the way ``name``; ``fields`` are those of ClusterSpec."""
    return E2eCluster.start(**fields, plugin=True if name == PLUGIN else None)


def environ_of(done: Done) -> dict[str, str]:
    """The variables in the output of ``env -0``."""
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0")[:-1])


def compile_spank(source: str, name: str, folder: Path) -> Path:
    """A further SPANK plugin, compiled."""
    product = folder / f"{name}.so"
    (folder / f"{name}.c").write_text(source)
    command = f"cc -shared -fPIC -o {product} {folder}/{name}.c"
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    return product
