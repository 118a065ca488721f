"""Series of measurements: one printed line each, and all of them in one JSON file."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpresume.devcluster.lifecycle import slurm_version

_CHECKOUT = Path(__file__).resolve().parent.parent.parent

#: Beside the logs of scripts/test.
RESULTS = Path(os.environ.get("HPRESUME_DEVCLUSTER_CHECKOUT", _CHECKOUT)) / "test-results"


#: The command, and what it takes (ms) on a machine on which bounds in seconds hold as they are.
BARE = [sys.executable, "-I", "-S", "-c", "pass"]
BARE_MS = 9.0


def slowness(bare_ms: Sequence[float] = ()) -> float:
    """How many times slower than that machine this one is, as busy as it is now; at least 1.

    Of times of ``BARE`` that were measured beside something else, or of some runs now.
    """
    times = bare_ms or [_time(BARE) for _ in range(9)]
    return max(1.0, statistics.median(times) / BARE_MS)


def _time(argv: Sequence[str]) -> float:
    started = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, os.environ)  # as pairs.py does: fork would take longer
    status = os.waitpid(pid, 0)[1]
    assert status == 0, (argv, status)
    return 1000 * (time.perf_counter() - started)


@dataclass(frozen=True)
class Series:
    """Values of one kind; ``bound`` is for their median, None where it is only reported."""

    name: str
    values: tuple[float, ...]
    unit: str
    bound: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def line(self) -> str:
        """The series as a line of the table."""
        lowest, highest = min(self.values), max(self.values)
        bound = "" if self.bound is None else f"  (at most {self.bound:g})"
        return (
            f"  {self.name:<58} n {len(self.values):<3}"
            f" median {self.median:7.2f}  min {lowest:7.2f}  max {highest:7.2f} {self.unit}{bound}"
        )


def report(name: str, values: Sequence[float], unit: str, bound: float | None = None) -> Series:
    """Print and keep a series; the test asserts on what is returned with ``hold``."""
    series = Series(name, tuple(values), unit, bound)
    print(series.line, flush=True)
    _keep(series)
    return series


def hold(*series: Series) -> None:
    """Fail where a median is beyond its bound; all lines have been printed by then."""
    beyond = [s.line.strip() for s in series if s.bound is not None and s.median > s.bound]
    assert not beyond, "\n".join(beyond)


def _keep(series: Series) -> None:
    path = RESULTS / "bench.json"
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        kept = {}
    kept[series.name] = {
        "median": round(series.median, 4),
        "unit": series.unit,
        "bound": series.bound,
        "values": [round(v, 4) for v in series.values],
        "slurm": ".".join(map(str, slurm_version())),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
