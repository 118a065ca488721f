"""What slurmctld keeps for used in a job that was made smaller. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpresume.resume.model import Snapshot


def displaced(
    job_nodes: Sequence[str], step_nodes: Sequence[str], dropped: Iterable[str]
) -> tuple[str, ...]:
    """Nodes of a step on which its GRES stay taken after its end. Pure.

    slurmctld keeps a step's GRES by the place of a node in the job, and does not
    move them along when a shrink moves the nodes (22.05 and 24.11). A step of the
    nodes 1, 2 and 6 of six gives back nothing on the last one once node 2 is
    gone. Another step gets GRES there only with ``--overlap``.
    """
    off = set(dropped)
    held = {place for place, node in enumerate(job_nodes) if node in step_nodes}
    kept = [node for node in job_nodes if node not in off]
    return tuple(n for place, n in enumerate(kept) if n in step_nodes and place not in held)


def over_lost_cores(snapshot: Snapshot, nodes: Sequence[str], *, shrunk: bool) -> bool:
    """Whether to start over cores that slurmctld takes for used, though no step has them. Pure.

    What the steps of a job hold while it shrinks is never given back ("unable to
    update job's core use information due to job resizing", seen with 22.05): a step
    of some of a node's cores (-c, --exact) would wait for them for ever. Not where
    other steps of the job run: this one would get their cores and GPUs.
    """
    job, step = snapshot.job, snapshot.step
    resized = shrunk or (job is not None and job.is_resized)
    return resized and step.can_overlap and snapshot.busy.isdisjoint(nodes)
