"""GPU checks by NVIDIA DCGM: health watches, and the values behind its policies.

``dcgmi policy`` reports a violation only to a client that keeps listening. A
check that runs now and then reads the fields behind the seven conditions
instead (``dcgmi dmon``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpresume.health.checks.hardware import gpus_on_bus
from hpresume.health.checks.kernel_log import xid_class
from hpresume.health.env import Answer, Env
from hpresume.health.model import (
    Absent,
    Action,
    Broken,
    Check,
    Fault,
    Result,
    one_line,
    unknown,
    verdict,
)
from hpresume.health.policy import CheckPolicy, Limit

NO_GPU = Absent("no NVIDIA GPU on the PCI bus")


def read_json(text: str) -> Any:
    """The JSON document in what dcgmi printed, which may have lines before it; None without."""
    start = text.find("{")
    try:
        return json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None


def walk(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All inner nodes and leaves with their paths, without recursion."""
    waiting = [(path, node)]
    while waiting:
        at, value = waiting.pop()
        yield at, value
        if isinstance(value, dict):
            waiting += [((*at, str(k)), v) for k, v in reversed(list(value.items()))]
        elif isinstance(value, list):
            waiting += [(at, v) for v in reversed(value)]


# --- health watches ---------------------------------------------------------------


@dataclass(frozen=True)
class Health:
    """``dcgmi health -c``: the overall word, and the texts of what is not healthy."""

    overall: str
    texts: tuple[str, ...]
    doubt: tuple[str, ...] = ()


def parse_health(text: str) -> Health | None:
    """The JSON of ``dcgmi health -c -j``; None for anything else.

    The document is a tree of rows: a row has a value and children. What is
    wrong is told in the values that are sentences.
    """
    document = read_json(text)
    overall, texts = "", []
    for path, value in walk(document):
        if not isinstance(value, str):
            continue
        names = [name for name in path if name not in ("body", "children", "value")]
        if names[:1] == ["Overall Health"]:
            overall = value.strip().lower()
        elif "header" not in names and " " in value.strip():
            where = " ".join(names[:2])
            texts.append(one_line(f"{where}: {value}" if where else value, 160))
    return Health(overall, tuple(dict.fromkeys(texts))) if overall else None


def gather_health(env: Env) -> Health | Absent | Broken:
    """All watches of all GPUs (group 0)."""
    if not gpus_on_bus(env):
        return NO_GPU
    answer = env.run("dcgmi", "health", "-g", "0", "-c", "-j")
    if not isinstance(answer, Answer):
        return answer
    health = parse_health(answer.stdout)
    if health is None:
        return Broken((*answer.doubt, "dcgmi health printed no report")[0])
    return Health(health.overall, health.texts, answer.doubt)


def judge_health(health: Health, policy: CheckPolicy, _now: float) -> Result:
    """DCGM's own word; a warning is a warning."""
    said = "; ".join(health.texts) or "DCGM gives no reason"
    if health.overall == "healthy":
        return verdict(policy, (), "DCGM says healthy", doubts=health.doubt)
    if health.overall not in ("failure", "warning"):
        hint = "watches are switched on with dcgmi health -s a"
        return unknown(policy, f"DCGM says {health.overall!r} ({hint})")
    action: Action | None = None
    if health.overall == "warning":
        action = Action.NONE
    elif any(word.lower() in said.lower() for word in policy.items("replace_words")):
        action = Action.REPLACE
    return verdict(policy, [Fault(said, health.overall, action=action)], "")


# --- policy conditions ------------------------------------------------------------

#: Field ids of dcgm_fields.h, in the order in which they are asked for.
FIELDS = {
    "xid": 230,
    "dbe": 319,
    "replays": 202,
    "retired_sbe": 390,
    "retired_dbe": 391,
    "temperature": 150,
    "power": 155,
    "nvlink": 439,
    "remap_failed": 395,
}

_ROW = re.compile(r"\s*GPU (\d{1,4})\s+(\S.*)", re.ASCII)
_VALUE = re.compile(r"-?\d{1,18}(?:\.\d{1,6})?", re.ASCII)


@dataclass(frozen=True)
class Values:
    """A row a GPU, a value a field; None where DCGM has none."""

    gpus: tuple[tuple[str, tuple[float | None, ...]], ...]
    doubt: tuple[str, ...] = ()
    on_bus: int = 0


def parse_values(text: str) -> tuple[tuple[str, tuple[float | None, ...]], ...]:
    """The rows of ``dcgmi dmon``; rows of another width are left out."""
    rows = {}
    for line in text.split("\n"):
        match = _ROW.match(line)
        words = match[2].split() if match else []
        if match and len(words) == len(FIELDS):
            rows[match[1]] = tuple(float(w) if _VALUE.fullmatch(w) else None for w in words)
    return tuple(rows.items())


def gather_values(env: Env) -> Values | Absent | Broken:
    """One sample of every field."""
    on_bus = gpus_on_bus(env)
    if not on_bus:
        return NO_GPU
    answer = env.run("dcgmi", "dmon", "-e", ",".join(map(str, FIELDS.values())), "-c", "1")
    if not isinstance(answer, Answer):
        return answer
    gpus = parse_values(answer.stdout)
    if not gpus:
        return Broken((*answer.doubt, "dcgmi dmon printed no values")[0])
    return Values(gpus, answer.doubt, on_bus)


#: Condition, field, limit, what it counts.
_CONDITIONS = (
    ("dbe", "max_dbe", "double-bit errors"),
    ("replays", "max_replays", "PCIe replays"),
    ("temperature", "max_c", "°C"),
    ("nvlink", "max_nvlink_errors", "NVLink recovery errors"),
)

#: Heat is a warning; a link may be trained anew by a reboot.
_MILD = {"temperature": Action.NONE, "replays": Action.REBOOT, "nvlink": Action.REBOOT}


def judge_values(values: Values, policy: CheckPolicy, now: float, /) -> Result:
    """Each condition against its limit; XID by the table of kernel-xid's policy."""
    del now
    faults: list[Fault] = []
    silent = 0
    for gpu, row in values.gpus:
        by_name = dict(zip(FIELDS, row, strict=True))
        silent += all(value is None for value in row)
        for name, limit, what in _CONDITIONS:
            value = by_name[name]
            if value is not None and value > policy.number(limit):
                text = f"GPU {gpu}: {value:g} {what}"
                faults.append(Fault(text, f"{value:g}", policy.limits[limit], _MILD.get(name)))
        pages = (by_name["retired_sbe"] or 0) + (by_name["retired_dbe"] or 0)
        if pages > policy.number("max_pages"):
            text = f"GPU {gpu}: {pages:g} retired pages"
            faults.append(Fault(text, f"{pages:g}", policy.limits["max_pages"]))
        watt = by_name["power"] or 0
        if 0 < policy.number("max_watt") < watt:
            text = f"GPU {gpu}: {watt:g} W"
            faults.append(Fault(text, f"{watt:g}", policy.limits["max_watt"], Action.NONE))
        if by_name["remap_failed"]:
            faults.append(Fault(f"GPU {gpu}: a row could not be remapped", "failure"))
        faults += _xid(gpu, by_name["xid"] or 0, policy)
    doubts = values.doubt
    if len(values.gpus) < values.on_bus:
        doubts = (*doubts, f"DCGM shows {len(values.gpus)} of {values.on_bus} GPUs")
    if silent:
        doubts = (*doubts, f"DCGM has no values of {silent} of {len(values.gpus)} GPUs")
    evidence = f"{len(values.gpus)} GPUs within limits"
    rows = [row for _, row in values.gpus]
    missing = [n for i, n in enumerate(FIELDS) if all(row[i] is None for row in rows)]
    if missing:
        evidence += f"; not shown by DCGM: {', '.join(missing)}"
    return verdict(policy, faults, evidence, doubts=doubts)


def _xid(gpu: str, value: float, policy: CheckPolicy) -> list[Fault]:
    code = str(int(value))
    if code == "0":
        return []
    kind = xid_class(code, "", policy)
    if kind in ("application", "ignore"):
        return []
    action = {"replace": Action.REPLACE, "reboot": Action.REBOOT}.get(kind, Action.NONE)
    limit = Limit(f"XID {code}: {kind}", policy.limits["codes"].source)
    return [Fault(f"GPU {gpu}: last XID {code}", f"XID {code}", limit, action)]


CHECKS = (
    Check("dcgm-health", "DCGM", gather_health, judge_health),
    Check("dcgm-policy", "DCGM", gather_values, judge_values),
)
