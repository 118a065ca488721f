"""Reading Slurm's side of an attempt into frozen values."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hpresume.errors import SlurmError, SlurmNotFoundError
from hpresume.resume.command import WATCH_NAME
from hpresume.resume.model import Context, NodeFault, Sign
from hpresume.resume.probe import lookup
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import ClusterConfig, Job, Node, Step

_DEFAULT_SLURMD_PORT = 6818

#: Time after which no further name is looked up (s).
_LOOKUP_S = 5.0

#: slurmctld reckons the boot time from a node's uptime, to the second, at every report (s).
_ROUNDING_S = 2.0

#: What slurmctld says of a node that has not spoken to it.
_UNHEARD = frozenset({"NOT_RESPONDING", "UNKNOWN"})


@dataclass(frozen=True)
class Baseline:
    """The cluster as it was soon after the attempt started.

    ``blemished`` are nodes that were marked FAIL or DRAIN by then already: such
    a mark says nothing about why this attempt ends later. ``addresses`` are those of
    slurmd in numbers: when a network is disturbed, so may its name servers be.
    """

    job: Job
    step: Step
    config: ClusterConfig
    nodes: Mapping[str, Node]
    busy: frozenset[str]
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def blemished(self) -> frozenset[str]:
        """Nodes with a mark that is older than the observation."""
        return frozenset(n.name for n in self.nodes.values() if _is_blemished(n))

    @property
    def unusable(self) -> frozenset[str]:
        """Nodes on which nothing should be started."""
        return frozenset(n.name for n in self.nodes.values() if not n.is_usable)

    def target(self, name: str) -> tuple[str, int]:
        """Address and port of a node's slurmd."""
        address, port = slurmd_address(name, self.nodes, self.config)
        return self.addresses.get(name, address), port


def _is_blemished(node: Node | None) -> bool:
    return node is not None and (node.is_failing or node.is_draining)


def slurmd_address(name: str, nodes: Mapping[str, Node], config: ClusterConfig) -> tuple[str, int]:
    """Address and port at which a node's slurmd is to be found. Pure."""
    node = nodes.get(name)
    address = (node.address or node.hostname) if node else ""
    port = (node.port if node else 0) or config.slurmd_port or _DEFAULT_SLURMD_PORT
    return address or name, port


def find_step(
    gateway: SlurmGateway, job_id: int | None, srun_pid: int
) -> tuple[int, Step, tuple[Step, ...]] | None:
    """The step that the srun with ``srun_pid`` on this host started, if it exists yet.

    Without ``job_id`` all running jobs of the caller are looked through: srun
    on its own makes a job of whose number nobody tells the supervisor.
    """
    host = os.uname().nodename.split(".")[0]
    if job_id is not None:
        candidates: Iterable[int] = (job_id,)
    else:
        candidates = (j.job_id for j in gateway.own_jobs() if j.nodes)
    for candidate in candidates:
        steps = gateway.steps(candidate)
        for step in steps:
            ours = step.srun_pid == srun_pid and step.srun_host.split(".")[0] == host
            # One that waits for nodes is shown too, as "TDB" with all nodes of the job.
            if ours and step.step_id.isdigit():
                return candidate, step, steps
    return None


def busy_nodes(steps: Iterable[Step], own: str | None) -> frozenset[str]:
    """Nodes with other steps of the job that do work. Pure."""
    return frozenset(
        node
        for step in steps
        if step.step_id.isdigit() and step.step_id != own and step.name != WATCH_NAME
        for node in step.nodes
    )


def orphaned_steps(
    steps: Iterable[Step], own: str | None, dropped: Iterable[str], protected: Iterable[str]
) -> tuple[str, ...]:
    """Other steps that lost a node with the drop, and nobody who would see to them. Pure.

    A shrink takes the node out of every step without telling their srun, which
    would then wait for the lost tasks for ever.
    """
    gone, safe = set(dropped), {own, *protected}
    return tuple(
        step.step_id
        for step in steps
        if step.step_id.isdigit()
        and step.step_id not in safe
        and step.name != WATCH_NAME
        and not gone.isdisjoint(step.nodes)
    )


def haunted_nodes(steps: Iterable[Step], dead: Iterable[str]) -> frozenset[str]:
    """Nodes on which slurmctld still books steps with ids in ``dead``. Pure.

    The machine that was to report their end is gone.
    """
    ids = frozenset(dead)
    return frozenset(node for step in steps if step.step_id in ids for node in step.nodes)


def take_baseline(
    gateway: SlurmGateway,
    job_id: int | None,
    srun_pid: int,
    config: ClusterConfig | None,
    dead: frozenset[str] = frozenset(),
) -> Baseline | None:
    """What the watch needs to know; None while the step does not exist yet.

    ``dead`` are ids of earlier attempts of the step, on which nobody works any more.
    """
    found = find_step(gateway, job_id, srun_pid)
    if found is None:
        return None
    number, step, steps = found
    job = gateway.job(number)
    nodes = gateway.nodes(job.nodes or step.nodes)
    config = config or gateway.config()
    busy = busy_nodes((s for s in steps if s.step_id not in dead), step.step_id)
    return Baseline(job, step, config, nodes, busy, _addresses(nodes, config))


def _addresses(nodes: Mapping[str, Node], config: ClusterConfig) -> dict[str, str]:
    """The nodes' addresses in numbers, as far as name servers tell in time."""
    deadline = time.monotonic() + _LOOKUP_S
    found = {}
    for name in nodes:
        if time.monotonic() > deadline:
            break
        address = lookup(slurmd_address(name, nodes, config)[0])
        if address:
            found[name] = address
    return found


def context_of(job: Job, environ: Mapping[str, str]) -> Context:
    """Where a protected srun runs that did not make its own allocation. Pure.

    slurmstepd sets SLURM_TASK_PID for the processes of a batch script; a shell
    of salloc, or one that names the job with ``--jobid``, does not have it.
    """
    if environ.get("SLURM_JOB_ID", "") != str(job.job_id):
        return Context.ATTACHED
    if job.batch:
        return Context.BATCH if "SLURM_TASK_PID" in environ else Context.ATTACHED
    return Context.ALLOCATION


def mark_faults(
    nodes: Mapping[str, Node], names: Iterable[str], before: Mapping[str, Node]
) -> tuple[NodeFault, ...]:
    """What Slurm's own records say against nodes. Pure.

    FAIL, DRAIN and a boot count only where they are new, against how the nodes
    were ``before``, when the attempt was young.
    """
    faults = []
    for name in names:
        node = nodes.get(name)
        if node is None:
            continue
        reason = f" ({node.reason})" if node.reason else ""
        if node.is_down:
            faults.append(NodeFault(name, Sign.DOWN, f"is DOWN in Slurm{reason}"))
        elif node.is_failing and not _is_blemished(before.get(name)):
            faults.append(NodeFault(name, Sign.FAIL, f"was set to FAIL{reason}"))
        elif node.is_draining and not _is_blemished(before.get(name)):
            faults.append(NodeFault(name, Sign.DRAIN, f"was drained{reason}"))
        elif name in before and node.boot_time > before[name].boot_time + _ROUNDING_S:
            faults.append(NodeFault(name, Sign.REBOOTED, "was booted again: its tasks are gone"))
    return tuple(faults)


@dataclass(frozen=True)
class Aftermath:
    """Slurm's side once an attempt has ended. ``job`` None: Slurm knows none."""

    answered: bool
    job: Job | None = None
    nodes: Mapping[str, Node] | None = None
    steps: tuple[Step, ...] = ()
    config: ClusterConfig | None = None
    trouble: str = ""

    @property
    def unusable(self) -> frozenset[str]:
        """Nodes of the job on which nothing should be started."""
        if self.job is None or self.nodes is None:
            return frozenset()
        known = self.nodes
        return frozenset(n for n in self.job.nodes if n in known and not known[n].is_usable)

    @property
    def unheard(self) -> frozenset[str]:
        """Nodes of the job that would be usable, had slurmctld heard of them.

        All of them are such for a while after it was started.
        """
        known = self.nodes or {}
        return frozenset(
            n
            for n in self.unusable
            if replace(known[n], states=known[n].states - _UNHEARD).is_usable
        )


def take_aftermath(
    gateway: SlurmGateway,
    job_id: int | None,
    extra_nodes: Iterable[str],
    config: ClusterConfig | None,
) -> Aftermath:
    """Job, nodes and steps after an attempt; what cannot be had is left out."""
    if job_id is None:
        return Aftermath(answered=True, config=config)
    try:
        try:
            job = gateway.job(job_id)
        except SlurmNotFoundError:
            return Aftermath(answered=True, config=config)
        names = dict.fromkeys([*job.nodes, *extra_nodes])
        seen = Aftermath(True, job, {}, gateway.steps(job_id), config or gateway.config())
        return replace(seen, nodes=gateway.nodes(names)) if names else seen
    except SlurmError as error:
        return Aftermath(answered=False, config=config, trouble=str(error))
