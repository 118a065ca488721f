"""The health check of a node that is in service, for a report about it.

As node recovery checks a machine: through Slurm, as root, in a reservation for root
alone, so that no job of a user gets in between. Unlike there the node is given back as
it was unless the check found a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpresume.recovery.check import RESERVATION, verdict
from hpresume.recovery.model import Call, Outcome, Trouble
from hpresume.slurm.admin import AdminGateway

Inspect = Callable[[str], Outcome]

#: Minutes after which the reservation ends by itself.
_RESERVED_MIN = 10


def through_slurm(gateway: AdminGateway, command: Sequence[str], timeout_s: float) -> Inspect:
    """A check that runs ``command`` on the node as a job of root's. Raises SlurmError."""

    def inspect(node: str) -> Outcome:
        name = RESERVATION + node
        gateway.reserve(name, node, _RESERVED_MIN)
        try:
            answer = gateway.run_on(node, name, command, timeout_s)
        finally:
            gateway.unreserve(name)
        return verdict(answer.returncode, f"{answer.stdout}\n{answer.stderr}")

    return inspect


def never(node: str) -> Outcome:
    """For a site that wants no checks: nothing is found out."""
    words = "the configuration says that nodes are not checked"
    return Outcome(Call.CHECK, Trouble.TRANSIENT, f"{node}: {words}")
