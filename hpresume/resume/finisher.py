"""The detached process that brings a requeued job back at once.

Slurm ends the batch script, and the supervisor in it, at a requeue; what is
left to do needs a process that outlives them: wait until the job is PENDING
(an update while it is still COMPLETING corrupts the accounting of its GPUs),
then give it its node count back, keep the bad nodes out and start it now
instead of after Slurm's two minutes. Works where the end of a job does not
reach processes that left its session (not under proctrack/cgroup).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpresume.errors import SlurmError, SlurmNotFoundError
from hpresume.resume.evidence import look_once
from hpresume.resume.model import NodeFault
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import ClusterConfig, Job, JobState, Node

#: Longest wait for the job to become pending (s).
_LIMIT_S = 900.0
_POLL_S = 0.1

#: From PENDING to the start (s). The end of the old run revoked the job's
#: credential on its nodes, to the second; a start within the same second is
#: refused there ("Job credential revoked"), and Slurm then ends the job.
SETTLE_S = 2.0

#: What the controller gets before this process does its work for it (s).
PATIENCE_S = 20.0

#: Longest wait for nodes without which the job cannot run (s), how often they are
#: looked for, and how far the job's start is put off meanwhile (s): should this
#: process die, the job starts that much later.
_NODES_LIMIT_S = 24 * 3600.0
LOOK_S = 3.0
PUT_OFF_S = 120.0

#: Most nodes that are looked at right before a start: 0.5 s if some of them are silent.
_MOST_ASKED = 256


#: (names, nodes, configuration, whether one that is alone counts) → nodes that are silent.
Look = Callable[..., Sequence[NodeFault]]


@dataclass(frozen=True)
class Finishing:
    """What the job has to look like when it starts again.

    ``patience_s``: how long somebody else may take to do it.
    """

    job_id: int
    restarts: int
    num_nodes: int
    exclude: tuple[str, ...]
    requested: tuple[str, ...]
    patience_s: float = SETTLE_S

    def to_argv(self) -> list[str]:
        """As arguments for ``main``."""
        return [
            str(self.job_id),
            str(self.restarts),
            str(self.num_nodes),
            ",".join(self.exclude),
            ",".join(self.requested),
            f"{self.patience_s:g}",
        ]

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> Finishing:
        """The reverse of ``to_argv``."""
        job_id, restarts, num_nodes, exclude, requested, patience = argv
        return cls(
            int(job_id),
            int(restarts),
            int(num_nodes),
            tuple(filter(None, exclude.split(","))),
            tuple(filter(None, requested.split(","))),
            float(patience),
        )


def is_ready(job: Job, plan: Finishing) -> bool | None:
    """Whether the job may be updated now; None when it is too late. Pure."""
    if job.state is JobState.PENDING and not job.is_completing:
        return job.restarts > plan.restarts
    if job.state is JobState.OTHER:
        return False
    if job.is_over and not job.is_completing and "REQUEUED" not in job.flags:
        return None
    if job.state is JobState.RUNNING and job.restarts > plan.restarts:
        return None
    return False


def finish(gateway: SlurmGateway, plan: Finishing) -> bool:
    """Wait and update; True when the job was brought back."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        try:
            ready = is_ready(gateway.job(plan.job_id), plan)
        except SlurmNotFoundError:
            return False
        except SlurmError:
            ready = False
        if ready is None:
            return False
        if ready and not _is_done_elsewhere(gateway, plan):
            bring_back(gateway, plan, nodes_to_exclude(gateway, plan))
            return True
        time.sleep(_POLL_S)
    return False


def _is_done_elsewhere(gateway: SlurmGateway, plan: Finishing) -> bool:
    """Wait as long as the job has to; True if it does not wait any more by then."""
    deadline = time.monotonic() + plan.patience_s
    while True:
        time.sleep(min(SETTLE_S, max(0.0, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            return plan.patience_s > SETTLE_S and not is_ready(gateway.job(plan.job_id), plan)
        if not is_ready(gateway.job(plan.job_id), plan):
            return True


class Brings(Protocol):
    """What of Slurm it takes to bring a job back."""

    def config(self) -> ClusterConfig:
        """``scontrol show config``."""
        ...

    def nodes(self, names: Sequence[str] | None = None) -> dict[str, Node]:
        """``scontrol show node``."""
        ...

    def job(self, job_id: int) -> Job:
        """``scontrol show job``."""
        ...

    def update_job(self, job_id: int, **fields: str) -> None:
        """``scontrol update jobid=…``."""
        ...


def bring_back(
    gateway: Brings, plan: Finishing, exclude: Sequence[str], reservation: str = ""
) -> None:
    """Give the job its size back, without ``exclude``, and start it now.

    In ``reservation``, if there is one for it.
    """
    place = {"ReservationName": reservation} if reservation else {}
    # slurmctld applies the fields of one update in its own order, and NodeCnt is
    # checked against ReqNodeList: lift the list first.
    requested, excluded = ",".join(plan.requested), ",".join(exclude)
    gateway.update_job(plan.job_id, ReqNodeList=requested, ExcNodeList=excluded, **place)
    gateway.update_job(plan.job_id, NumNodes=str(plan.num_nodes), StartTime="now")


def nodes_to_exclude(gateway: Brings, plan: Finishing) -> tuple[str, ...]:
    """The nodes to keep out, once the job can run without them.

    Where the partition is too small for that, the job would be held for good
    ("BadConstraints"). So it waits, with its start put off, until the nodes are
    back, or slurmctld knows that they are DOWN and will not choose them.
    """
    deadline = time.monotonic() + _NODES_LIMIT_S
    put_off = float("-inf")
    while (exclude := choose(gateway, plan)) is None and time.monotonic() < deadline:
        if time.monotonic() - put_off > PUT_OFF_S / 2:
            put_off = time.monotonic()
            gateway.update_job(plan.job_id, StartTime=f"now+{PUT_OFF_S:.0f}")
        time.sleep(LOOK_S)
    return exclude or ()


def choose(gateway: Brings, plan: Finishing, look: Look = look_once) -> tuple[str, ...] | None:
    """The nodes to keep out, as of now; None while the job has to wait for some of them."""
    nodes, partition = gateway.nodes(), gateway.job(plan.job_id).partition
    config = gateway.config()
    if has_enough(nodes, partition, plan.num_nodes, plan.exclude):
        return _with_silent_nodes(nodes, partition, plan, config, look)
    there = [n for n in plan.exclude if n in nodes and not nodes[n].is_down]
    return None if look(there, nodes, config, lone=True) else ()


def _with_silent_nodes(
    nodes: Mapping[str, Node], partition: str, plan: Finishing, config: ClusterConfig, look: Look
) -> tuple[str, ...]:
    """The nodes to exclude, and those that died since: slurmctld may choose them still."""
    asked = [n for n in _others(nodes, partition, plan.exclude) if nodes[n].is_usable]
    silent = look(asked[:_MOST_ASKED], nodes, config)
    wider = (*plan.exclude, *(fault.node for fault in silent))
    return wider if has_enough(nodes, partition, plan.num_nodes, wider) else plan.exclude


def has_enough(
    nodes: Mapping[str, Node], partition: str, num_nodes: int, exclude: Sequence[str]
) -> bool:
    """Whether the partition has nodes enough without the excluded ones. Pure."""
    return len(_others(nodes, partition, exclude)) >= num_nodes


def _others(nodes: Mapping[str, Node], partition: str, exclude: Sequence[str]) -> list[str]:
    partitions = set(partition.split(","))
    return [
        n.name for n in nodes.values() if partitions & set(n.partitions) and n.name not in exclude
    ]


def start(plan: Finishing, log_path: str, environ: Mapping[str, str]) -> None:
    """Start ``main`` in a session of its own, adopted by init.

    Raises:
        OSError: the process cannot be started.
    """
    # As this process: PYTHONPATH and the like are the user's.
    isolated = ["-I"] if sys.flags.isolated else []
    argv = [sys.executable, *isolated, "-m", "hpresume.resume.finisher", *plan.to_argv()]
    log = _open_log(log_path)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        first = os.fork()
        if first == 0:
            _become_detached(argv, null, log, environ)
    finally:
        os.close(log)
        os.close(null)
    os.waitpid(first, 0)


def _open_log(path: str) -> int:
    """Where the finisher writes; nowhere, rather than that no job comes back."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _become_detached(argv: list[str], null: int, log: int, environ: Mapping[str, str]) -> None:
    """In the child: leave session and parent, then become the finisher."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir("/")
        os.execve(argv[0], argv, dict(environ))
    finally:
        os._exit(127)


def main(argv: Sequence[str]) -> int:
    """Entry point of the detached process."""
    from hpresume.slurm.cli import CliGateway

    plan = Finishing.from_argv(argv)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    try:
        done = finish(CliGateway(), plan)
    except SlurmError as error:
        print(f"{stamp} job {plan.job_id}: {error}", flush=True)
        return 1
    print(f"{stamp} job {plan.job_id}: {'brought back' if done else 'nothing to do'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
