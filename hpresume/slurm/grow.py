"""Merging new nodes into a running job.

Slurm's way: a second job, the donor, is allocated with a dependency
``expand:J``; setting its node count to zero moves all it has into job J. It
works for ordinary users, on clusters with ``permit_job_expansion``, for jobs
without generic resources.

A merge that slurmctld refuses half way does harm (the donor stays in
COMPLETING, job J refuses further updates), so everything that is known to be
refused is refused here, before a donor exists. The donor lives as long as its
salloc, salloc as long as this process and the pipe that this process holds;
what is left after that is cancelled by the donor's name.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hpresume.errors import (
    SlurmDeniedError,
    SlurmError,
    SlurmTimeoutError,
    SlurmTransientError,
)
from hpresume.slurm import donor as donor_module
from hpresume.slurm import nodeset
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import ClusterConfig, DonorSpec, Job, JobState
from hpresume.slurm.runner import Answer, Runner, failure

#: Pause between two looks at a donor whose nodes still boot or configure.
_POLL_S = 0.1

#: How long salloc may take to give a donor back before it is killed.
_FAREWELL_S = 3.0

_DONOR_ID = re.compile(r"(?:Pending job allocation|Granted job allocation|job) (\d+)\b")
_GRANTED = re.compile(r"Granted job allocation (\d+)")


def refusal(job: Job, spec: DonorSpec, config: ClusterConfig) -> str | None:
    """Why Slurm would not merge such a donor into ``job``; None if it would."""
    if job.state is not JobState.RUNNING:
        return f"job {job.job_id} is {job.state}, not RUNNING"
    if not config.permits_expansion:
        return "SchedulerParameters has no permit_job_expansion"
    if config.makes_extern_steps:
        flags = ",".join(sorted(config.prolog_flags))
        return f"PrologFlags={flags} gives every donor an extern step, which cannot be merged"
    if job.tres_gres:
        held = ", ".join(sorted(job.tres_gres))
        return f"job {job.job_id} holds {held}: jobs with generic resources cannot grow"
    if (job.exclusive or spec.exclusive) and config.gres_types:
        return (
            f"an exclusive job counts as one with generic resources where GresTypes="
            f"{','.join(config.gres_types)} is set, and those cannot grow"
        )
    return None


def salloc_argv(job: Job, spec: DonorSpec, config: ClusterConfig, name: str) -> list[str]:
    """The salloc of a donor that gets what the job has on its other nodes."""
    # A donor on one of the job's own nodes would merge into more CPUs there.
    excluded = dict.fromkeys((*job.nodes, *spec.exclude))
    argv = [
        "salloc",
        f"--job-name={name}",
        f"--dependency=expand:{_target(job)}",
        f"--nodes={spec.num_nodes}-{spec.num_nodes}",
        f"--exclude={','.join(excluded)}",
        "--no-bell",
    ]
    for option, value in (
        ("--partition", spec.partition),
        ("--qos", spec.qos),
        ("--account", spec.account),
        ("--reservation", spec.reservation),
        ("--constraint", spec.features),
    ):
        if value:
            argv.append(f"{option}={value}")
    if spec.exclusive:
        argv.append("--exclusive")
    elif spec.cpus:
        per_node = -(-spec.cpus // spec.num_nodes)
        argv += ["--ntasks-per-node=1", f"--cpus-per-task={per_node}"]
    if spec.memory_per_node_mb:
        argv.append(f"--mem={spec.memory_per_node_mb}M")
    elif spec.memory_per_cpu_mb:
        argv.append(f"--mem-per-cpu={spec.memory_per_cpu_mb}M")
    elif config.allocates_memory:
        argv.append("--mem=0")  # a job that shows no size has all of the node's memory
    if spec.time_limit_min:
        argv.append(f"--time={spec.time_limit_min}")
    # Ends when its standard input does, and salloc and the donor with it.
    return [*argv, "cat"]


def _target(job: Job) -> str:
    """The job in a dependency, where ``ARRAY_TASK`` is the job with the array's id.

    slurmctld looks at the task and then merges into the job in front of it.
    """
    return job.address if job.job_id == job.array_job else str(job.job_id)


def grow(
    gateway: SlurmGateway, runner: Runner, spec: DonorSpec, timeout_s: float
) -> tuple[str, ...]:
    """Merge a donor into its job; the names of the new nodes."""
    deadline = time.monotonic() + timeout_s
    job, config = gateway.job(spec.target_job_id), gateway.config()
    reason = refusal(job, spec, config)
    if reason is not None:
        raise SlurmDeniedError(f"job {job.job_id} cannot grow: {reason}")
    name = f"hpresume-grow-{job.job_id}-{secrets.token_hex(4)}"
    argv = salloc_argv(job, spec, config, name)
    while True:
        try:
            with _donor(gateway, runner, argv, name) as donor:
                donor_id = donor.granted(deadline)
                nodes = _ready_nodes(gateway, donor_id, deadline)
                _merge(gateway, job.job_id, donor_id, nodes)
                donor.merged = True
        except SlurmTimeoutError:
            raise
        except SlurmTransientError:
            if time.monotonic() + _POLL_S >= deadline:
                raise
            time.sleep(min(1.0, max(deadline - time.monotonic(), 0.0)))
        else:
            return _grown(gateway, spec.target_job_id, nodes)


def _merge(gateway: SlurmGateway, job_id: int, donor_id: int, nodes: tuple[str, ...]) -> None:
    """Move all the donor has into the job."""
    try:
        gateway.update_job(donor_id, NumNodes="0")
    except SlurmError:
        # An answer that got lost must not bring a second donor.
        with contextlib.suppress(SlurmError):
            if set(nodes) <= set(gateway.job(job_id).nodes):
                return
        raise


def _ready_nodes(gateway: SlurmGateway, donor_id: int, deadline: float) -> tuple[str, ...]:
    """The donor's nodes once they are there: booted, prolog done."""
    while True:
        donor = gateway.job(donor_id)
        if donor.is_over:
            raise SlurmError(f"donor job {donor_id} ended before it was merged: {donor.reason}")
        if donor.tres_gres:
            raise SlurmDeniedError(
                f"donor job {donor_id} got {nodeset.fold(donor.nodes)}, whose generic resources "
                "cannot be merged: choose other nodes by partition or features"
            )
        if donor.state is JobState.RUNNING and donor.nodes and "CONFIGURING" not in donor.flags:
            return donor.nodes
        if time.monotonic() >= deadline:
            raise SlurmTimeoutError(f"donor job {donor_id}: its nodes were not ready in time")
        time.sleep(_POLL_S)


def _grown(gateway: SlurmGateway, job_id: int, nodes: tuple[str, ...]) -> tuple[str, ...]:
    missing = [name for name in nodes if name not in gateway.job(job_id).nodes]
    if missing:
        raise SlurmError(f"job {job_id} did not get {nodeset.fold(missing)} from its donor")
    return nodes


@dataclass
class _Donor:
    """A salloc that runs, and what it has said."""

    process: subprocess.Popen[bytes]
    argv: list[str]
    reason: Callable[[int], str]
    said: str = ""
    merged: bool = False
    _buffer: bytes = field(default=b"", repr=False)

    def granted(self, deadline: float) -> int:
        """The donor's job id once Slurm has allocated its nodes."""
        stream = self.process.stderr
        assert stream is not None  # noqa: S101 -- opened by Runner.started
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                match = _GRANTED.search(self.said)
                if match is not None:
                    return int(match[1])
                left = deadline - time.monotonic()
                if left <= 0:
                    raise SlurmTimeoutError(self._waited_in_vain())
                if not selector.select(left):
                    continue
                chunk = os.read(stream.fileno(), 4096)
                if not chunk:
                    raise self._ended()
                self.said += chunk.decode("utf-8", errors="replace")

    def _ended(self) -> SlurmError:
        self.process.wait()
        return failure(self.argv, Answer("", self.said, self.process.returncode))

    def _waited_in_vain(self) -> str:
        match = _DONOR_ID.search(self.said)
        why = self.reason(int(match[1])) if match is not None else ""
        return "no nodes to grow by came free in time" + (f" ({why})" if why else "")


@contextlib.contextmanager
def _donor(gateway: SlurmGateway, runner: Runner, argv: list[str], name: str) -> Iterator[_Donor]:
    """A donor that is gone when the block ends, unless it was merged."""

    def reason(donor_id: int) -> str:
        with contextlib.suppress(SlurmError):
            return gateway.job(donor_id).reason
        return ""

    helper = [sys.executable, "-S", "-E", donor_module.__file__, str(os.getpid())]
    with runner.started([*helper, *argv], "/", stdin=subprocess.PIPE) as process:
        donor = _Donor(process, argv, reason)
        try:
            yield donor
        finally:
            _part(donor)
            if not donor.merged:
                with contextlib.suppress(SlurmError):
                    _cancel_by_name(gateway, name)


def _part(donor: _Donor) -> None:
    """End salloc in the way that makes it give the donor back."""
    process = donor.process
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if not donor.merged:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_FAREWELL_S)


def _cancel_by_name(gateway: SlurmGateway, name: str) -> None:
    for job in gateway.own_jobs():
        if job.name == name:
            gateway.cancel(job.job_id)
