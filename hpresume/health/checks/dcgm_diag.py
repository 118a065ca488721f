"""DCGM diagnostics (``dcgmi diag``), which put the GPUs under load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpresume.health.checks.dcgm import NO_GPU, read_json, walk
from hpresume.health.checks.hardware import gpus_on_bus
from hpresume.health.env import Answer, Env
from hpresume.health.model import Absent, Action, Broken, Check, Fault, Result, one_line, verdict
from hpresume.health.policy import CheckPolicy


@dataclass(frozen=True)
class Diagnosis:
    """Names of tests by status, and what failing ones said."""

    passed: int
    warned: tuple[str, ...]
    failed: tuple[str, ...]
    error: str = ""
    doubt: tuple[str, ...] = ()


def parse_diag(text: str) -> Diagnosis | None:
    """The JSON of ``dcgmi diag -j`` of DCGM 2 to 4; None for anything else.

    Wherever a release puts them, a test is a name with a list of results, each
    with a status.
    """
    document = read_json(text)
    passed = 0
    warned: list[str] = []
    failed: list[str] = []
    error = ""
    for path, value in walk(document):
        if path[-1:] in (("runtime_error",), ("Error",)) and isinstance(value, str):
            error = error or one_line(value, 200)
        if not isinstance(value, dict) or not isinstance(value.get("results"), list):
            continue
        name = one_line(str(value.get("name", "?")), 60)
        for result in value["results"]:
            if not isinstance(result, dict):
                continue
            status = str(result.get("status", "")).strip().lower()
            passed += status == "pass"
            if status in ("warn", "fail"):
                said = f"{name} {_who(result)}: {_warnings(result)}"
                (failed if status == "fail" else warned).append(one_line(said, 200))
    if not (passed or warned or failed or error):
        return None
    return Diagnosis(passed, tuple(warned), tuple(failed), error)


def _who(result: dict[str, Any]) -> str:
    for key in ("gpu_ids", "gpu_id", "entity_id"):
        if key in result:
            return one_line(f"GPU {result[key]}", 40)
    return "on the node"


def _warnings(result: dict[str, Any]) -> str:
    said = [
        value
        for path, value in walk(result.get("warnings", result.get("info", "")))
        if isinstance(value, str) and path[-1:] != ("error_category",)
    ]
    return "; ".join(said) or "no reason given"


def gather_diag(env: Env) -> Diagnosis | Absent | Broken:
    """The diagnostics of the policy's level."""
    if not gpus_on_bus(env):
        return NO_GPU
    level = f"{env.policy.number('level'):g}"
    answer = env.run("dcgmi", "diag", "-r", level, "-j")
    if not isinstance(answer, Answer):
        return answer
    found = parse_diag(answer.stdout)
    if found is None:
        return Broken((*answer.doubt, "dcgmi diag printed no report")[0])
    return Diagnosis(found.passed, found.warned, found.failed, found.error, answer.doubt)


def judge_diag(found: Diagnosis, policy: CheckPolicy, _now: float) -> Result:
    """A failed test is a fault, a warning a warning."""
    level = policy.limits["level"]
    faults = [Fault(text, "fail", level) for text in found.failed]
    faults += [Fault(text, "warn", level, Action.NONE) for text in found.warned]
    doubts = [found.error] if found.error else []
    if not found.passed:
        doubts.append("no test ran")
    return verdict(
        policy,
        faults,
        f"level {level.value}: {found.passed} passed",
        doubts=(*doubts, *found.doubt),
    )


CHECKS = (Check("dcgm-diag", "DCGM diagnostics", gather_diag, judge_diag, load=True),)
