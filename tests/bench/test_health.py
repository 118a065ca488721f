"""How long looking at a node without special hardware takes: slurmd does it all the time."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from measure import hold, report, slowness

from hpresume.health.registry import CHECKS

pytestmark = pytest.mark.bench

RUNS = 5
BOUND_MS = 1000.0

#: Hardware checks that are not in the quick profile: dcgm-diag and efa-loopback.
_DEEP = 2
_CHECK = [sys.executable, "-m", "hpresume", "check", "--json", "--skip", "memory-size"]
_HARDWARE = ("gpu-", "dcgm-", "neuron-", "efa-", "infiniband-")


def test_quick_profile_without_hardware() -> None:
    times = []
    before = slowness()
    for _ in range(RUNS):
        started = time.perf_counter()
        done = subprocess.run(_CHECK, capture_output=True, text=True, timeout=60, check=False)
        times.append(1000 * (time.perf_counter() - started))
        results = json.loads(done.stdout)["results"]
        hardware = [r for r in results if r["check"].startswith(_HARDWARE)]
        if {r["status"] for r in hardware} != {"skipped"}:
            pytest.skip("this machine has such hardware")
        assert len(hardware) == sum(c.name.startswith(_HARDWARE) for c in CHECKS) - _DEEP
        assert all(r["evidence"] for r in hardware)
    bound = round(BOUND_MS * (before + slowness()) / 2)
    hold(report("hpresume check, nothing to look at", times, "ms", bound))
