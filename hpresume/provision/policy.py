"""Times and limits of provisioning, and the pause after a failure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

HOUR = 3600.0


@dataclass(frozen=True)
class Policy:
    """Times in seconds.

    ``minimum_timeout_s`` is the seed's three hours. The others are not documented by
    HyperPod: ``launch_width`` bounds the launches asked for at once, ``retry_s`` to
    ``retry_max_s`` is the pause after a failed launch (doubled each time), up to
    ``script_retry_max_s`` where the lifecycle script failed, which costs money.
    ``boot_timeout_s`` is when a machine that does not come up counts as unhealthy,
    ``join_timeout_s`` when a node that Slurm does not see does. ``drain_timeout_s`` is how
    long a node that is removed waits for its jobs, ``again_s`` when what was asked for and
    did not show is asked for again, ``script_timeout_s`` when a machine on which nothing can
    be run, or whose scripts do not come to their end, counts as unhealthy.
    ``update_tries`` is how many machines a node of a software update gets before the update is
    rolled back: one may be bad by itself. ``check_wait_s`` is how long a deep health check waits
    for running jobs (HyperPod's ten minutes), ``check_limit_s`` how long it may take at all.
    ``max_per_group`` is how many nodes a group gets at most, whatever its target: for a trial of
    a large request on few machines.
    """

    minimum_timeout_s: float = 3 * HOUR
    launch_width: int = 256
    retry_s: float = 10.0
    retry_max_s: float = 300.0
    script_retry_max_s: float = 1800.0
    boot_timeout_s: float = 1800.0
    join_timeout_s: float = 900.0
    drain_timeout_s: float = HOUR
    again_s: float = 15.0
    script_timeout_s: float = 3 * HOUR
    update_tries: int = 2
    check_wait_s: float = 600.0
    check_limit_s: float = 4 * HOUR
    max_per_group: int | None = None


def pause(policy: Policy, key: str, failures: int, ceiling_s: float | None = None) -> float:
    """Pause before the next try after ``failures`` in a row, in seconds.

    Doubles from ``retry_s``; spread by up to a fifth either way, by a digest of ``key``, so that
    nodes that failed together do not all come back together, and the same call gives the same
    answer.
    """
    ceiling = policy.retry_max_s if ceiling_s is None else ceiling_s
    base = min(policy.retry_s * 2.0 ** min(max(failures - 1, 0), 30), ceiling)
    digest = hashlib.sha256(f"{key}/{failures}".encode()).digest()
    spread = int.from_bytes(digest[:4], "big") / 2**32
    return base * (0.8 + 0.4 * spread)
