"""Memory and processor time of processes, from /proc."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster import E2eCluster


@dataclass(frozen=True)
class Usage:
    """``rss_mb`` at the end, ``cpu_percent`` of one core over the time looked at."""

    rss_mb: float
    cpu_percent: float


def usage(pids: Iterable[int], seconds: float) -> dict[int, Usage]:
    """What running processes use, all over the same time."""
    began = time.monotonic()
    before = {pid: cpu_seconds(pid) for pid in pids}
    time.sleep(seconds)
    spent = {pid: cpu_seconds(pid) - cpu for pid, cpu in before.items()}
    elapsed = time.monotonic() - began
    return {pid: Usage(rss_mb(pid), 100.0 * cpu / elapsed) for pid, cpu in spent.items()}


def cpu_seconds(pid: int) -> float:
    """Time on a processor of all threads; finer than the ticks of ``stat``."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def rss_mb(pid: int) -> float:
    """Resident memory, what is shared with others included."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found, f"process {pid} has no memory"
    return int(found[1]) / 1024


def pythons(cluster: E2eCluster, host: str, *words: str) -> list[int]:
    """Processes of our Python on a host with all of ``words`` in their arguments."""
    return [pid for pid in cluster.pids_on(host) if _is_python(pid, set(words))]


def _is_python(pid: int, words: set[str]) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
    return arguments[0] == sys.executable and words <= set(arguments)
