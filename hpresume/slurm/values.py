"""Single values as Slurm prints them: times, durations, sizes, counts, versions."""

from __future__ import annotations

import re

from hpresume.errors import SlurmError

#: Slurm's words for "nothing here".
EMPTY = frozenset({"", "(null)", "N/A", "None", "n/a", "Unknown"})


def seconds(text: str) -> float:
    """A point in time as Unix seconds; 0.0 where Slurm does not know one."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,12}", text):
        return float(text)
    if not re.match(r"\d{4}-\d\d-\d\dT", text):
        return 0.0
    from datetime import datetime  # for a Slurm that does not honour SLURM_TIME_FORMAT

    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def duration(text: str) -> int:
    """``D-HH:MM:SS`` and its shorter forms in seconds; 0 for none or no limit."""
    match = re.fullmatch(r"(?:(\d{1,7})-)?(?:(\d{1,7}):)?(\d{1,7}):(\d{1,7})", text.strip())
    if match is None:
        return 0
    days, hours, minutes, secs = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + secs


_UNITS = {"": 1.0, "K": 1024.0, "M": 1024.0**2, "G": 1024.0**3, "T": 1024.0**4, "P": 1024.0**5}


def count(text: str) -> int:
    """A number as Slurm prints it: ``8``, ``2K`` (2048), ``2-4`` (2)."""
    match = re.match(r"(\d{1,15}(?:\.\d{1,6})?)([KMGTP]?)", text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else 0


def megabytes(text: str) -> int:
    """A memory size in MiB; a bare number is in MiB already."""
    match = re.match(r"(\d{1,15}(?:\.\d{1,6})?)([KMGTP]?)", text)
    if match is None:
        return 0
    return int(float(match[1]) * _UNITS[match[2] or "M"] / _UNITS["M"])


def id_count(ids: str) -> int:
    """How many ids ``0-3,8`` names."""
    total = 0
    for item in ids.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", item)
        if match is not None:
            total += max(int(match[2] or match[1]) - int(match[1]) + 1, 0)
    return total


def version(text: str) -> tuple[int, int, int]:
    """``22.05.8`` or ``25.11.0-rc1`` as three numbers."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text.strip())
    if match is None:
        raise SlurmError(f"not a version of Slurm: {text[:40]!r}")
    return int(match[1]), int(match[2]), int(match[3] or 0)
