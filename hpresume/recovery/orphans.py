"""Machines that launches of recoveries left behind. Pure.

A launch may succeed after its caller has been killed, or has given up. Such a
machine is told by its client token: that of an attempt which is not the one that
its node lives on. Tokens of others are never judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hpresume.providers.model import Machine
from hpresume.recovery.model import TOKEN_PREFIX, Phase, Recovery

_TOKEN = re.compile(rf"{TOKEN_PREFIX}([0-9a-f]+)-(\d+)")


def uids(machines: Iterable[Machine]) -> frozenset[str]:
    """The recoveries that launched these machines."""
    matches = (_TOKEN.fullmatch(machine.token) for machine in machines)
    return frozenset(match[1] for match in matches if match)


def orphans(machines: Iterable[Machine], recoveries: Mapping[str, Recovery]) -> tuple[Machine, ...]:
    """Machines that nobody needs; ``recoveries`` by uid, read after the machines were listed."""
    return tuple(
        machine
        for machine in machines
        if not machine.state.is_gone and _is_orphan(machine, recoveries)
    )


def _is_orphan(machine: Machine, recoveries: Mapping[str, Recovery]) -> bool:
    match = _TOKEN.fullmatch(machine.token)
    recovery = recoveries.get(match[1]) if match else None
    if match is None or recovery is None:
        return False
    if recovery.machine_id:
        return machine.machine_id != recovery.machine_id
    if recovery.phase is Phase.LAUNCHING:
        return int(match[2]) != recovery.attempt
    # TERMINATING and ABANDONING see to it themselves; an end without a machine has none.
    return recovery.phase.is_end or recovery.phase is Phase.QUARANTINING
