"""What protects a step that runs, said once at its start. Pure.

The answers come from the ladder itself: what would be done if a node were
lost now. What cannot be protected is said too: nobody shall believe in a
protection that is not there.
"""

from __future__ import annotations

from hpresume.config import ResumeSettings
from hpresume.resume.decide import BEFORE_DOWN_S, no_overlap, outlook
from hpresume.resume.model import (
    Action,
    Await,
    Context,
    GiveUp,
    Grow,
    Reallocate,
    Requeue,
    Restart,
    Rung,
    Snapshot,
)
from hpresume.resume.report import listing
from hpresume.slurm.models import ClusterConfig, Job

#: From this size on, the slurmstepds of a step report along a tree (REVERSE_TREE_WIDTH).
_TREE_NODES = 7


def requeue_seconds(
    config: ClusterConfig, *, fast: bool, waits_for_nodes: bool, lingers: bool = False
) -> float:
    """Expected time from a requeue to the job's start on free nodes (s).

    Two waits of Slurm may come first: for a dead node to be declared DOWN
    (SlurmdTimeout and up to a third more), and, without the finisher, for a
    credential's lifetime plus one second. In a large step the slurmstepd above
    the dead node's wait for it (``lingers``, 70 s measured with 9 nodes). What
    remains is a scheduling pass.
    """
    seconds = 5.0
    if lingers and not waits_for_nodes:
        seconds += 70.0
    if waits_for_nodes:
        seconds += config.slurmd_timeout_s * 4 / 3
    if not fast:
        seconds += config.cred_expire_s + 1
    return seconds


def lost_host_seconds(config: ClusterConfig, nodes: int, *, plugin: bool) -> float:
    """Expected time from the loss of a batch host to the job's start, with a controller (s).

    slurmstepd on the ``nodes`` - 1 others tells srun, in vain and six times, of the
    end of its tasks, and from seven nodes on five times the slurmstepd above it. Each
    time takes TCPTimeout, the pauses between 2.3 s and 4 s (_send_srun_resp_msg and
    _one_step_complete_msg in Slurm's slurmstepd/mgr.c; 20 s measured with 3 nodes,
    40 s with 8). hpresume's plugin cuts all that short.
    """
    if plugin:
        return 10.0
    seconds = 6.0 + 6 * config.tcp_timeout_s + 2.3
    if nodes >= _TREE_NODES:
        # slurmd looks less often by then whether they have ended.
        seconds += 5 * config.tcp_timeout_s + 4.0 + 5.0
    return seconds


def lines(snapshot: Snapshot, policy: ResumeSettings, *, sees_output: bool = True) -> list[str]:
    """The lines to show at the start of a step, whose output is in a file (``sees_output``)."""
    step, job = snapshot.step, snapshot.job
    taken = {*step.nodes, *step.excluded, *snapshot.unusable}
    spares = [n for n in job.nodes if n not in taken] if job else []
    said = [f"protecting the step on {listing(step.nodes)}: heartbeat every {policy.heartbeat:g} s"]
    idle = [n for n in spares if n not in snapshot.busy]
    if idle:
        said[0] += f", spare {listing(idle)}"
    elif spares:
        said[0] += f", spare {listing(spares)} beside other steps"
    batch_host = job.batch_host if job and snapshot.context is Context.BATCH else ""
    here = "" if batch_host else snapshot.here
    others = [n for n in step.nodes if n not in (batch_host, here)]
    if others:
        said.append(_after_loss(snapshot, policy, others[-1]))
        said += _too_short_to_wait(snapshot, policy, others[-1])
    if batch_host and job is not None:
        said.append(_after_batch_host(snapshot, job))
    elif here and job is not None and here in job.nodes:
        said.append(f"warning: the loss of {here}, on which this srun runs, ends the step")
    said += _hangs(policy, sees_output=sees_output)
    said += _min_nodes_in_vain(snapshot, policy) + _regrow_in_vain(policy)
    return said + _return_in_vain(snapshot, policy)


def _hangs(policy: ResumeSettings, *, sees_output: bool) -> list[str]:
    """What is taken for a hang; without such a line nothing is."""
    found = []
    if policy.heartbeat_file:
        found.append(f"a rank that is silent for {policy.hang_timeout:g} s")
    if policy.output_timeout and sees_output:
        found.append(f"no output for {policy.output_timeout:g} s")
    said = [f"taken for a hang: {', or '.join(found)}"] if found else []
    if policy.output_timeout and not sees_output:
        said.append(
            "warning: output_timeout does nothing: it needs the step's output in one file, not on"
            " a terminal, in a pipe, or in a file a task"
        )
    if not policy.heartbeat_file and policy.hang_timeout != ResumeSettings().hang_timeout:
        said.append(
            "warning: hang_timeout does nothing without heartbeat_file (HPRESUME_HEARTBEAT_FILE:"
            " the file that every rank touches)"
        )
    return said


def _min_nodes_in_vain(snapshot: Snapshot, policy: ResumeSettings) -> list[str]:
    """A ``min_nodes`` that a step of this size can never go down to."""
    size = len(snapshot.step.nodes)
    if policy.min_nodes <= size:
        return []
    return [
        f"warning: min_nodes is {policy.min_nodes}, but the step has {size} nodes:"
        " it never goes on with fewer"
    ]


def _regrow_in_vain(policy: ResumeSettings) -> list[str]:
    """What is missing for ``regrow``, which needs to know when little is lost."""
    if not policy.regrow or policy.regrows:
        return []
    missing = "min_nodes" if policy.checkpoint else "checkpoint"
    what = "how few nodes will do" if policy.checkpoint else "the file or directory to look at"
    return [
        f"warning: regrow does nothing without {missing} (HPRESUME_{missing.upper()}: {what});"
        " a step with fewer nodes grows back at its next restart only"
    ]


def _return_in_vain(snapshot: Snapshot, policy: ResumeSettings) -> list[str]:
    """Settings for a node's return, where the step could not start on such a node again."""
    obstacle = no_overlap(snapshot)
    wanted = {"replace_timeout": bool(policy.replace_timeout), "regrow": policy.regrows}
    return [
        f"warning: {name} does nothing: {obstacle} cannot start over the dead step of a lost node"
        for name, is_set in wanted.items()
        if obstacle and is_set
    ]


def _too_short_to_wait(snapshot: Snapshot, policy: ResumeSettings, node: str) -> list[str]:
    """SlurmdTimeout against the time the user wants to wait for a replacement."""
    config = snapshot.config
    if config is None or not policy.replace_timeout or no_overlap(snapshot):
        return []
    wanted = policy.replace_timeout + BEFORE_DOWN_S
    action = outlook(snapshot, policy, node)
    waits = action.limit_s if isinstance(action, Await) else 0.0
    if config.slurmd_timeout_s >= wanted or waits >= policy.replace_timeout:
        return []
    return [
        f"warning: replace_timeout is {policy.replace_timeout:.0f} s, but SlurmdTimeout is"
        f" {config.slurmd_timeout_s} s: ask for at least {wanted:.0f} s"
    ]


def _after_loss(snapshot: Snapshot, policy: ResumeSettings, node: str) -> str:
    action = outlook(snapshot, policy, node)
    text = _promise(action, snapshot.config)
    if isinstance(action, GiveUp):
        return f"warning: after the loss of a node {text}"
    return f"after the loss of a node {text}"


def _promise(action: Action, config: ClusterConfig | None) -> str:
    match action:
        case Await(limit_s=limit):
            return f"the step waits up to {limit:.0f} s for it to come back under its name"
        case Restart(rung=Rung.FEWER, nodes=nodes):
            return f"the step goes on with {len(nodes)} nodes"
        case Restart(rung=Rung.SPARE):
            return "the step goes on with a spare of the job"
        case Restart():
            return "the step goes on on its nodes"
        case Grow():
            return "the step goes on with a new node, merged into the job"
        case Requeue(fast=fast, waits_for_nodes=waits, lingers=lingers):
            if config is None:
                return "the job is requeued"
            seconds = requeue_seconds(config, fast=fast, waits_for_nodes=waits, lingers=lingers)
            slow = "" if fast else " (proctrack/cgroup ends the process that could speed it up)"
            return f"the job is requeued, to run again in about {seconds:.0f} s{slow}"
        case Reallocate():
            return "the step goes on in a new allocation"
        case GiveUp(reason=reason):
            return f"the step cannot go on: {reason}"
    return "nothing is done"


def _after_batch_host(snapshot: Snapshot, job: Job) -> str:
    config = snapshot.config
    if not job.requeue:
        return (
            f"warning: the loss of {job.batch_host}, which runs the batch script, ends the job:"
            " it was submitted with --no-requeue, or JobRequeue is 0"
        )
    when = ""
    if config is not None:
        when = f" in about {requeue_seconds(config, fast=False, waits_for_nodes=True):.0f} s"
    return (
        f"after the loss of {job.batch_host}, which runs the batch script, Slurm itself requeues"
        f" the job{when}"
    )
