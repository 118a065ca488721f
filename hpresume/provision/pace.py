"""How often provisioning looks and steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Seconds between looks at the provider and at Slurm, between two steps at least, and so on.

    ``configure_s`` is between two changes of slurm.conf: before Slurm 23.11 each restarts
    slurmctld, so nodes that come up together go in together.
    """

    look_s: float = 5.0
    configure_s: float = 10.0
    step_s: float = 0.05
    idle_s: float = 1.0
