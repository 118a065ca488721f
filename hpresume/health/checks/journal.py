"""The kernel's messages as journald has them (``journalctl -k -o json``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

#: Longer messages say nothing more.
MAX_TEXT = 1000


@dataclass(frozen=True)
class Record:
    """One message of the kernel itself; ``time`` in Unix seconds."""

    time: float
    text: str


def parse(text: str, boot_time: float) -> tuple[Record, ...]:
    """The kernel's own records, one JSON object a line; the rest is left out.

    What a process wrote into /dev/kmsg has the kernel's transport too, but never
    its facility (0).
    """
    found = []
    for line in text.split("\n"):
        if not line.startswith("{"):
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(fields, dict) or fields.get("_TRANSPORT") != "kernel":
            continue
        moment = _moment(fields, boot_time)
        message = _message(fields.get("MESSAGE"))
        if fields.get("SYSLOG_FACILITY") == "0" and moment is not None and message is not None:
            found.append(Record(moment, message[:MAX_TEXT]))
    return tuple(found)


def _moment(fields: dict[str, Any], boot_time: float) -> float | None:
    """By the kernel's own clock, as /dev/kmsg has it."""
    microseconds = fields.get("_SOURCE_MONOTONIC_TIMESTAMP")
    if not isinstance(microseconds, str) or not 0 < len(microseconds) <= 20:
        return None
    if not (microseconds.isascii() and microseconds.isdigit()):
        return None
    return boot_time + int(microseconds) / 1e6


def _message(value: Any) -> str | None:
    """A text; journald gives a list of bytes where it is not printable."""
    if isinstance(value, str):
        return value.partition("\n")[0]
    if isinstance(value, list) and all(type(byte) is int and 0 <= byte < 256 for byte in value):
        return bytes(value[:MAX_TEXT]).decode("utf-8", errors="replace").partition("\n")[0]
    return None
