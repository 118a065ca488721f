"""The JSON in which a site's programs describe machines, read strictly.

A machine is an object with exactly these keys: ``machine_id``, ``node``, ``token`` and
``state``, and if they are known ``address`` and ``launched_at`` (Unix time, s). Whatever is
amiss is a ValueError that says what.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from hpresume.providers.model import Machine, MachineState

_TEXTS = ("machine_id", "node", "token", "state")
_OPTIONAL = ("address", "launched_at")
_SHOWN = 80

#: It goes to slurmctld as the node's NodeAddr.
_ADDRESS = re.compile(r"[A-Za-z0-9:._-]{0,253}")


def one(output: bytes) -> Machine:
    """The answer of ``launch``."""
    return _machine(_json(output))


def one_or_none(output: bytes) -> Machine | None:
    """The answer of ``describe``: a machine, or null."""
    value = _json(output)
    return None if value is None else _machine(value)


def many(output: bytes) -> tuple[Machine, ...]:
    """The answer of ``list``: no two with the same id."""
    value = _json(output)
    if not isinstance(value, list):
        raise ValueError(f"answered {_shown(value)}: must be a list of machines")  # noqa: TRY004
    machines = tuple(_machine(item) for item in value)
    for machine_id, times in Counter(machine.machine_id for machine in machines).items():
        if times > 1:
            raise ValueError(f"answered with machine {machine_id!r} {times} times")
    return machines


def _json(output: bytes) -> Any:
    try:
        return json.loads(output.decode())
    except (ValueError, RecursionError) as error:
        text = output.decode(errors="replace").strip()
        raise ValueError(f"did not answer in JSON ({error}): {text[:_SHOWN]!r}") from error


def _machine(value: Any) -> Machine:
    if not isinstance(value, dict):
        raise ValueError(f"answered {_shown(value)}: must be a machine")  # noqa: TRY004
    for key in _TEXTS:
        if not isinstance(value.get(key), str):
            raise ValueError(f"answered {_shown(value)}: {key} must be a text")  # noqa: TRY004
    for key in value:
        if key not in _TEXTS + _OPTIONAL:
            raise ValueError(
                f"answered with the unknown key {key!r}: use {', '.join(_TEXTS + _OPTIONAL)}"
            )
    if not value["machine_id"]:
        raise ValueError("answered with an empty machine_id")
    states = [state.value for state in MachineState]
    if value["state"] not in states:
        raise ValueError(f"answered with state {value['state']!r}: use {', '.join(states)}")
    address, launched_at = value.get("address", ""), value.get("launched_at", 0.0)
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise ValueError(f"answered with address {address!r}: must be an IP address or host name")
    number = isinstance(launched_at, int | float) and not isinstance(launched_at, bool)
    if not number or not math.isfinite(launched_at) or launched_at < 0:
        raise ValueError(f"answered with launched_at {launched_at!r}: must be Unix time in s")
    return Machine(
        machine_id=value["machine_id"],
        node=value["node"],
        token=value["token"],
        state=MachineState(value["state"]),
        address=address,
        launched_at=float(launched_at),
    )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
