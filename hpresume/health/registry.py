"""All checks, in the order in which they are shown, and the choice among them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hpresume.errors import UsageError
from hpresume.health.checks import (
    cpu_stress,
    dcgm,
    dcgm_diag,
    efa,
    infiniband,
    infiniband_errors,
    kernel_log,
    neuron,
    node,
    nvidia,
    nvlink,
    pair,
    slurm_node,
)
from hpresume.health.model import AnyCheck
from hpresume.health.policy import PROFILES, Policy

CHECKS: tuple[AnyCheck, ...] = (
    *kernel_log.CHECKS,
    *nvidia.CHECKS,
    *nvlink.CHECKS,
    *dcgm.CHECKS,
    *dcgm_diag.CHECKS,
    *neuron.CHECKS,
    *efa.CHECKS,
    *infiniband.CHECKS,
    *infiniband_errors.CHECKS,
    *pair.CHECKS,
    *cpu_stress.CHECKS,
    *slurm_node.CHECKS,
    *node.CHECKS,
)


def choose(
    policy: Policy, profile: str, only: Iterable[str] = (), skip: Iterable[str] = ()
) -> tuple[AnyCheck, ...]:
    """The checks of a profile; ``only`` takes these whatever the profile, ``skip`` leaves out.

    Raises UsageError for a name that is none.
    """
    if profile not in PROFILES:
        raise UsageError(f"--profile {profile}: must be one of {', '.join(PROFILES)}")
    wanted, unwanted = _known("--only", only), _known("--skip", skip)
    return tuple(
        check
        for check in CHECKS
        if check.name not in unwanted
        and (check.name in wanted if wanted else profile in policy.check(check.name).profiles)
    )


def _known(option: str, names: Iterable[str]) -> set[str]:
    known = [check.name for check in CHECKS]
    found = {name.strip() for text in names for name in text.split(",") if name.strip()}
    for name in sorted(found):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "hpresume check --list shows all"
            raise UsageError(f"{option} {name}: unknown check; {hint}")
    return found
