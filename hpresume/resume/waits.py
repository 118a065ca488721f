"""How a job says that its step waits for a node to come back.

In the job's comment, which only its owner and administrators can set: the recovery
controller then replaces the node's machine at once, though Slurm still counts the
job as running there.
"""

from __future__ import annotations

import re

from hpresume.errors import SlurmError
from hpresume.slurm import nodeset
from hpresume.slurm.gateway import SlurmGateway

#: Then a node list expression without spaces. The owner's own words stay in front of it.
WAITS_FOR = "hpresume-waits-for:"

_OWN = re.compile(r"\s*" + WAITS_FOR + r"\S*")


def told(comment: str, nodes: tuple[str, ...]) -> str:
    """The comment with the nodes that are waited for; without, for none. Pure."""
    before = _OWN.sub("", comment)
    return f"{before} {WAITS_FOR}{nodeset.fold(nodes)}".strip() if nodes else before


def tell(gateway: SlurmGateway, job_id: int, nodes: tuple[str, ...]) -> bool:
    """Set or take back the word; False where Slurm does not take it now.

    Nothing depends on it but how soon a controller acts.
    """
    try:
        before = gateway.job_comment(job_id)
        after = told(before, nodes)
        if after != before:
            gateway.update_job(job_id, Comment=after)
    except SlurmError:
        return False
    return True
