"""What only root or SlurmUser asks of Slurm: who holds which node, reservations, checks on a node.

``AdminGateway`` stands beside ``CliGateway``, which the supervisors of users load.
Names and comments of jobs are free text, in which a user may forge whole lines;
what decides over a node is therefore asked without them, or for one job at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hpresume.errors import SlurmError, SlurmTransientError
from hpresume.slurm import nodeset, reservations
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.models import ClusterConfig, Job, Node
from hpresume.slurm.reservations import Reservation
from hpresume.slurm.runner import Answer, Runner, failure

T = TypeVar("T")

#: Jobs that have, or are about to have, processes on nodes.
_HOLDING = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT,RESIZING"


@dataclass(frozen=True)
class Holder:
    """A job that holds nodes. ``completing``: only its end is still going on."""

    job_id: int
    nodes: tuple[str, ...]
    completing: bool = False


class AdminGateway:
    """Implements the administrator's calls with scontrol, squeue and srun."""

    def __init__(
        self,
        runner: Runner | None = None,
        *,
        read_timeout_s: float = 15.0,
        write_timeout_s: float = 30.0,
    ) -> None:
        self._runner = runner if runner is not None else Runner()
        self._cli = CliGateway(
            self._runner, read_timeout_s=read_timeout_s, write_timeout_s=write_timeout_s
        )
        self._read_timeout_s = read_timeout_s
        self._write_timeout_s = write_timeout_s

    def config(self) -> ClusterConfig:
        """``scontrol show config``."""
        return self._cli.config()

    def nodes(self, names: Sequence[str] | None = None) -> dict[str, Node]:
        """``scontrol show node``: by name; all nodes for ``None``."""
        return self._cli.nodes(names)

    def update_node(self, name: str, **fields: str) -> None:
        """``scontrol update nodename=…``, for one node."""
        self._cli.update_node(name, **fields)

    def job(self, job_id: int) -> Job:
        """``scontrol show job``."""
        return self._cli.job(job_id)

    def update_job(self, job_id: int, **fields: str) -> None:
        """``scontrol update jobid=…``, whoever owns the job."""
        self._cli.update_job(job_id, **fields)

    def holders(self, node: str | None = None) -> tuple[Holder, ...]:
        """All jobs that hold nodes, or those that hold ``node``."""
        which = () if node is None else (f"--nodelist={node}",)
        text = self._read(
            "squeue", "--all", "--noheader", f"--states={_HOLDING}", "--format=%A|%T|%N", *which
        )
        return tuple(_holder(line) for line in text.splitlines() if line.strip())

    def commented(self, word: str) -> tuple[int, ...]:
        """Ids of running jobs in whose comments ``word`` seems to be; ask for each of them."""
        text = self._read("squeue", "--all", "--noheader", "--states=RUNNING", "--format=%A|%k")
        found = re.findall(rf"^(\d{{1,10}})\|.*{re.escape(word)}", text, re.MULTILINE)
        return tuple(int(number) for number in dict.fromkeys(found))

    def comment(self, job_id: int) -> str:
        """The comment of a job, as its owner set it; empty for none."""
        return self._cli.job_comment(job_id)

    def reservations(self) -> tuple[Reservation, ...]:
        """``scontrol show reservation``."""
        found = self._within_read(lambda: reservations.reservations(self._runner))
        return tuple(found.values())

    def reserve(self, name: str, node: str, minutes: int) -> None:
        """Reserve a node for root alone, whatever its state; one of that name may be there."""
        if all(one.name != name for one in self.reservations()):
            reservations.reserve(
                self._runner, name, [node], "root", minutes, "maint", "ignore_jobs"
            )

    def keep(self, name: str, nodes: Sequence[str], uid: int, minutes: int) -> None:
        """Reserve nodes for one user's jobs; one of that name may be there.

        Also nodes on which jobs run. A job in the reservation may take other nodes too,
        and outlive it (FLEX).
        """
        if all(one.name != name for one in self.reservations()):
            reservations.reserve(
                self._runner, name, nodes, str(uid), minutes, "ignore_jobs", "flex"
            )

    def unreserve(self, name: str, within_s: float | None = None) -> None:
        """Delete a reservation; one that is not there is not an error.

        Jobs in it are waited for, ``within_s`` at most.
        """
        limit_s = self._write_timeout_s if within_s is None else within_s
        reservations.release(self._runner, name, limit_s)

    def run_on(self, node: str, reservation: str, argv: Sequence[str], timeout_s: float) -> Answer:
        """Run a program as root on one node inside a reservation; its output and exit code.

        ``SlurmTransientError`` where Slurm could not start it.
        """
        minutes = str(int(timeout_s // 60) + 1)
        answer = self._runner.run(
            (
                "srun", f"--reservation={reservation}", f"--nodelist={node}", "--nodes=1",
                "--ntasks=1", "--job-name=hpresume-check", f"--time={minutes}", "--quiet",
                "--chdir=/", "--", *argv,
            ),
            timeout_s,
            cwd="/",
        )  # fmt: skip
        if answer.returncode != 0 and re.search(r"^srun: error: Unable to", answer.stderr, re.M):
            raise SlurmTransientError(str(failure(("srun", *argv), answer)))
        return answer

    # -- inner ---------------------------------------------------------------------

    def _read(self, *argv: str) -> str:
        return self._cli.within(
            self._read_timeout_s, lambda timeout_s: self._runner.check(argv, timeout_s)
        )

    def _within_read(self, call: Callable[[], T]) -> T:
        return self._cli.within(self._read_timeout_s, lambda _: call())


def _holder(line: str) -> Holder:
    job_id, separator, rest = line.strip().partition("|")
    state, _, nodes = rest.partition("|")
    if not separator or not job_id.isdigit():
        raise SlurmError(f"cannot read this job: {line[:120]!r}")
    return Holder(int(job_id), nodeset.expand(nodes), state == "COMPLETING")


def tool_environ(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which a service finds Slurm's tools, whatever started it."""
    found = dict(os.environ if environ is None else environ)
    found.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return found
