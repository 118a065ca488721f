"""What slurmctld miscounts once a job has left a node before its own end. Pure.

A job that shares its nodes with nobody is counted on each of them
(``no_share_job_cnt``, slurmctld/node_mgr.c). A shrink takes the node out of the job and
leaves the count as it is (``make_node_idle``; the same in 22.05 to 26.05). So the node
is taken for occupied (``share_node_bitmap``) once a later job of that kind has taken a
moment to end there, until it next answers a ping: IDLE, and given to no job.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpresume.slurm.models import Job


def miscounted(job: Job, left: Iterable[str]) -> tuple[str, ...]:
    """Which of the nodes that ``job`` has left, or is about to leave, are miscounted."""
    return tuple(sorted(set(left))) if job.exclusive else ()


def warning(job_id: int, node: str) -> str:
    """What is said of such a node, and what to do."""
    return (
        f"{node}: job {job_id}, which shares its nodes with nobody, leaves it before its end, and"
        " slurmctld goes on counting it there: after other such jobs the node may be IDLE and get"
        " none for some minutes (until it is pinged); `scontrol reconfigure` ends that"
    )
