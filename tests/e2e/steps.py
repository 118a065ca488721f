"""A stand-in for training, whose ranks say where they are and end when told.

Every rank appends one line to ``ranks`` in a directory of the trainer's home as
soon as it runs, then waits for the file ``stop``. So a test knows which ranks
of which attempt run, waits for events and not for time, and decides when the
training ends.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import E2eCluster, wait_for

from hpresume.slurm.nodeset import expand

_numbers = itertools.count(1)

_RANK = """#!/bin/bash
# One rank: says that it is up, then waits to be told to end.
nodes="${NODE_LIST:--} ${MASTER_NODE:--} ${MASTER_ADDR:--} ${MASTER_PORT:--}"
place="${HPRESUME_ATTEMPT:-0} $SLURM_PROCID $SLURMD_NODENAME $(date +%s.%N)"
echo "up $place $nodes ${SLURM_JOB_NODELIST:--}" >> "$RUN_DIR/ranks"
if [ -e "$RUN_DIR/on_up.sh" ]; then . "$RUN_DIR/on_up.sh"; fi
while [ ! -e "$RUN_DIR/stop" ]; do sleep 0.1; done
exit 0
"""


@dataclass(frozen=True)
class Up:
    """One rank of one attempt, as it saw itself; ``t`` is Unix time."""

    attempt: int
    rank: int
    node: str
    t: float
    node_list: str
    master_node: str
    master_addr: str
    master_port: str
    job_nodelist: str


def nodes(ups: Iterable[Up]) -> list[str]:
    """The nodes of ranks, in their order."""
    return [up.node for up in ups]


class Run:
    """One training on a cluster: a directory, a batch script, its ranks."""

    def __init__(self, cluster: E2eCluster, **environ: str) -> None:
        self.cluster = cluster
        self.dir = cluster.home() / f"run{next(_numbers)}"
        self.environ = {"RUN_DIR": str(self.dir), **environ}
        self.dir.mkdir()
        self._own(self.dir)
        self.rank_script = self.write("rank.sh", _RANK)
        self.job_id = 0

    def write(self, name: str, text: str) -> Path:
        """A file of the trainer's, executable if it is a script."""
        path = self.dir / name
        path.write_text(text)
        self._own(path)
        path.chmod(0o755 if text.startswith("#!") else 0o644)
        return path

    def _own(self, path: Path) -> None:
        home = self.cluster.home().stat()
        os.chown(path, home.st_uid, home.st_gid)

    # -- starting -----------------------------------------------------------

    def batch(self, body: str, *options: str) -> int:
        """Submit a script with ``body``; ``{rank}`` in it is the rank's program."""
        text = "#!/bin/bash\n" + body.format(rank=self.rank_script) + "\n"
        script = self.write("batch.sh", text)
        argv = ["sbatch", "--parsable", "--open-mode=append", "--output=out", *options, str(script)]
        done = self.cluster.exec(argv, user="trainer", cwd=self.dir, env=self.environ, check=True)
        self.job_id = int(done.stdout.strip().split(";")[0])
        return self.job_id

    def srun(self, *argv: str, **options: Any) -> Any:
        """Start ``srun`` from the controller host as the trainer; a Popen."""
        words = [w.format(rank=self.rank_script) for w in argv]
        return self.cluster.popen(
            ["srun", *words], user="trainer", cwd=self.dir, env=self.environ, **options
        )

    # -- seeing ---------------------------------------------------------------

    def ups(self, attempt: int | None = None) -> list[Up]:
        """The ranks that said they were up, in the order in which they did."""
        try:
            lines = (self.dir / "ranks").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            words = line.split()
            if len(words) == 10 and words[0] == "up":
                found.append(
                    Up(int(words[1]), int(words[2]), words[3], float(words[4]), *words[5:])
                )
        return [u for u in found if attempt is None or u.attempt == attempt]

    def wait_up(self, attempt: int, ranks: int, timeout: float = 30.0) -> list[Up]:
        """Wait until ``ranks`` ranks of an attempt are up."""
        self.wait(
            lambda: len({u.rank for u in self.ups(attempt)}) >= ranks,
            timeout,
            f"attempt {attempt} does not come up",
        )
        return sorted(self.ups(attempt), key=lambda u: u.rank)

    def job_nodes(self) -> list[str]:
        """The nodes that the job has now, in Slurm's order.

        Which these are is Slurm's choice: one that was just booted may come last.
        """
        argv = ["squeue", "--noheader", f"--jobs={self.job_id}", "--format=%N"]
        return list(expand(self.cluster.exec(argv, check=True).stdout.strip()))

    def wait_watched(self, attempt: int, timeout: float = 20.0) -> None:
        """Wait until the supervisor watches an attempt: its journal has it."""
        self.wait(
            lambda: any(r["attempt"] == attempt for r in self.events("watched")),
            timeout,
            f"attempt {attempt} is not watched",
        )

    def wait_output(self, text: str, timeout: float = 30.0, name: str = "out") -> str:
        """Wait until the job's output holds ``text``; the whole output."""
        self.wait(lambda: text in self.output(name), timeout, f"{text!r} does not come")
        return self.output(name)

    def output(self, name: str = "out") -> str:
        """A file of the run's directory, empty if it is not there."""
        try:
            return (self.dir / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def journal(self) -> list[dict[str, Any]]:
        """All records of all journals of this run's trainer that name this job, or any srun's."""
        records = []
        base = self.cluster.home() / ".local" / "state" / "hpresume"
        for path in sorted(base.glob(f"*/{self.job_id or '*'}.jsonl")):
            for line in path.read_text().splitlines():
                records.append(json.loads(line))
        return records

    def events(self, name: str) -> list[dict[str, Any]]:
        """The journal's records of one kind."""
        return [r for r in self.journal() if r["event"] == name]

    # -- ending ----------------------------------------------------------------

    def stop(self) -> None:
        """Tell all ranks, of this attempt and later ones, to end."""
        self.write("stop", "")

    def wait_end(self, timeout: float = 60.0) -> str:
        """Wait until the job has left the queue; its output."""
        job = str(self.job_id)
        self.wait(lambda: job not in self.cluster.jobs(), timeout, f"job {job} does not end")
        return self.output()

    def finish(self, timeout: float = 60.0) -> str:
        """``stop`` and ``wait_end``."""
        self.stop()
        return self.wait_end(timeout)

    def wait(self, condition: Callable[[], bool], timeout: float, otherwise: str) -> None:
        """Wait for a condition; what the run printed is in the error."""
        try:
            wait_for(condition, time.monotonic() + timeout, otherwise)
        except Exception as error:
            raise AssertionError(f"{error}\n-- output --\n{self.output()}") from error
