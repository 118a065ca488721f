"""Values of counters over time, kept between runs: how much they grew within a window.

Kept in a file below /var/lib that names the boot it is of: what was before the
last boot does not count. Only root writes it, as a whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

STATE_FILE = "/var/lib/hpresume/health.json"

#: Points that a window is kept in; a run more often than that adds none.
_POINTS = 36

#: More than any node has; what is beyond is not kept.
_MAX_SERIES = 512


@dataclass(frozen=True)
class Point:
    """A counter's value at a time (Unix seconds)."""

    time: float
    value: int


#: The points of every counter, oldest first.
Series = Mapping[str, tuple[Point, ...]]


@dataclass(frozen=True)
class Growth:
    """By how much a counter grew, and in how many seconds."""

    count: int
    seconds: float


def growth(points: tuple[Point, ...], value: int, now: float, window_s: float) -> Growth | None:
    """Growth of a counter since its oldest point within the window; None without one."""
    usable = _usable(points, value, now, window_s)
    if not usable or usable[0].time >= now:
        return None
    return Growth(value - usable[0].value, now - usable[0].time)


def extended(before: Series, values: Mapping[str, int], now: float, window_s: float) -> Series:
    """The series to be kept after a run; counters that are gone go."""
    after = {}
    for name, value in list(values.items())[:_MAX_SERIES]:
        points = _usable(before.get(name, ()), value, now, window_s)
        if not points or now - points[-1].time >= window_s / _POINTS:
            points = (*points, Point(now, value))
        after[name] = points
    return after


def _usable(
    points: tuple[Point, ...], value: int, now: float, window_s: float
) -> tuple[Point, ...]:
    """Points within the window; none from the future, none from before a reset."""
    found: list[Point] = []
    for point in points:
        if not now - window_s <= point.time <= now:
            continue
        if found and (point.value < found[-1].value or point.time <= found[-1].time):
            found = []
        found.append(point)
    if found and found[-1].value > value:
        return ()
    return tuple(found[-_POINTS - 2 :])


def parse(content: bytes, boot: str) -> Series:
    """The series in a file's content; nothing of another boot, nothing that is no series."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or not boot or document.get("boot") != boot:
        return {}
    listed = document.get("counters")
    found = {}
    for name, points in list(listed.items())[:_MAX_SERIES] if isinstance(listed, dict) else ():
        if isinstance(points, list):
            read = [_point(point) for point in points[: 4 * _POINTS]]
            found[name] = tuple(point for point in read if point is not None)
    return found


def _point(value: object) -> Point | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    time, count = value
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1e11:
        return None
    if type(count) is not int or not 0 <= count < 1 << 64:
        return None
    return Point(float(time), count)


def read(path: str, boot: str) -> Series:
    """The series in a file; none where it cannot be read."""
    with suppress(OSError), open(path, "rb") as stream:
        return parse(stream.read(4 << 20), boot)
    return {}


def write(path: str, boot: str, series: Series) -> None:
    """Replace the file as a whole. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    counters = {name: [[p.time, p.value] for p in points] for name, points in series.items()}
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump({"boot": boot, "counters": counters}, stream)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
