"""What the steps printed: ``hpresume check --json`` of a node, the TCP test of a pair, srun."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hpresume.errors import SlurmTransientError
from hpresume.health.deep.matrix import Sample
from hpresume.health.deep.tournament import Pair
from hpresume.health.model import Action, Result, Status, one_line
from hpresume.slurm.answers import ALREADY_OVER, classify
from hpresume.slurm.runner import Answer

_NAME = re.compile(r"[a-z0-9-]{1,60}", re.ASCII)


def results(text: str) -> tuple[Result, ...] | None:
    """The results in a node's report; None for anything else.

    One that cannot be read is left out only together with the whole report:
    what is not known must not look like less to worry about.
    """
    document = _document(text)
    listed = document.get("results") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not listed:
        return None
    found = [_result(item) for item in listed]
    complete = tuple(result for result in found if result is not None)
    return complete if len(complete) == len(found) else None


def _result(item: Any) -> Result | None:
    # The names go into the reason of the node.
    if not isinstance(item, dict) or not _NAME.fullmatch(str(item.get("check", ""))):
        return None
    since = item.get("since")
    try:
        return Result(
            str(item["check"]),
            Status(item.get("status", "")),
            _text(item, "evidence"),
            _text(item, "measured"),
            _text(item, "threshold"),
            _text(item, "source"),
            Action(item.get("action", "none")),
            float(since) if isinstance(since, int | float) and 0 <= since < 1e11 else None,
            item.get("hold") is True,
            _text(item, "left_out"),
        )
    except ValueError:
        return None


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name, "")
    return one_line(value) if isinstance(value, str) else ""


def sample(pair: Pair, text: str) -> Sample | None:
    """What ``tcp_pair`` printed on both nodes; None where it printed nothing of the kind.

    A listener that could not listen explains why its partner did not reach it.
    """
    found = None
    for line in text.split("\n"):
        document = _document(line)
        if not isinstance(document, dict):
            continue
        doubt, error = _text(document, "doubt"), _text(document, "error")
        if doubt or error:
            found = Sample(pair, "tcp", error="" if doubt else error, doubt=doubt)
        values = [_number(document.get(key)) for key in ("up_gbps", "down_gbps", "rtt_ms")]
        if all(value is not None for value in values):
            up, down, trip = (value or 0.0 for value in values)
            found = Sample(pair, "tcp", min(up, down), trip)
        if found is not None and found.doubt:
            return found
    return found


_UNUSABLE = re.compile(
    r"execve\(\): .*: No such file or directory|error while loading shared libraries"
    r"|execve\(\): .*: Permission denied|Couldn't find the specified plugin name"
)
#: The two nodes have nothing to do with it: the job has ended.
_JOB_IS_GONE = re.compile(rf"{ALREADY_OVER}|Invalid job id|Unable to confirm allocation")
_SRUN = re.compile(r"^(?:srun|slurmstepd\S*): (?:error: )?(?:\S+: task \S+: )?")


def is_unusable(text: str) -> bool:
    """Whether a step says that its program cannot run there at all."""
    return _UNUSABLE.search(text) is not None


def is_lost(text: str) -> bool:
    """Whether Slurm itself could not reach a node of the step."""
    return classify(text)[0] is SlurmTransientError


def reason(answer: Answer) -> str:
    """The line that says why a step has no result."""
    line = classify(answer.text)[1]
    return one_line(_SRUN.sub("", line), 160) or "it printed nothing"


def without_result(pair: Pair, tool: str, answer: Answer) -> Sample:
    """A pair whose step printed no result: the nodes' fault, unless it cannot be."""
    said = reason(answer)
    if is_unusable(answer.text) or _JOB_IS_GONE.search(answer.text):
        return Sample(pair, tool, doubt=said)
    return Sample(pair, tool, error=said)


def _number(value: Any) -> float | None:
    """A measurement: neither negative nor out of any range, nor not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return None
    return float(value)


def _document(text: str) -> Any:
    start = text.find("{")
    try:
        return json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None
