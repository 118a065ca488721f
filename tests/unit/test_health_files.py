"""Files of the kernel with anything in them: no check breaks, and none says Pass."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from health_node import NOW, FakeNode, check_named, policy_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpresume.health.env import Env
from hpresume.health.model import Result, Status
from hpresume.health.runner import examine

NEURON = "/sys/devices/virtual/neuron_device/neuron0"
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
EFA = "/sys/class/infiniband/rdmap16s27/ports/1/hw_counters"

#: Check, the files it looks at, and limits that make it look.
CASES: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("kernel-xid", ("/dev/kmsg",), {}),
    ("kernel-machine-check", ("/dev/kmsg",), {}),
    ("kernel-hung-task", ("/dev/kmsg", "/proc/stat"), {}),
    ("kernel-neuron", ("/proc/stat",), {}),
    ("neuron-ecc", (f"{NEURON}/stats/hardware/mem_ecc_uncorrected/total",), {}),
    ("neuron-health", (f"{NEURON}/neuron_core0/stats/status/hw_error/total",), {}),
    ("efa-memlock", ("/proc/self/limits",), {}),
    ("efa-counters", (f"{EFA}/rx_drops", f"{EFA}/retrans_timeout_events"), {}),
    ("infiniband-ports", (f"{PORT}/state", f"{PORT}/phys_state"), {}),
    (
        "infiniband-errors",
        (f"{PORT}/counters/symbol_error", f"{PORT}/counters/link_downed", f"{PORT}/rate"),
        {},
    ),
    ("disk-readonly", ("/proc/self/mounts", "/etc/fstab"), {}),
    ("mounts", ("/proc/self/mounts",), {"required": ["/shared"]}),
    ("slurmd", ("/proc/9/stat",), {}),
    ("cpu-stress", ("/proc/stat",), {}),
    ("gpu-count", ("/sys/class/dmi/id/product_name",), {"expected": 8}),
]

#: Nothing with which a number could be made: 0 errors would be a healthy node.
WORDS = st.text(st.characters(blacklist_categories=["Nd", "Nl", "No", "Cs"]), max_size=12)
TEXTS = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=6).map("\n".join)
FAST = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    node.efa(1)
    node.file("/proc/stat", "cpu 1 1 1 1\ncpu0 1 1 1 1\nbtime 1700000000\n")
    node.file("/proc/9/comm", "slurmd\n")
    node.file("/etc/slurm/slurm.conf")
    node.file("/proc/sys/kernel/random/boot_id", "boot\n")
    return node


def look(made: FakeNode, name: str, limits: dict[str, Any]) -> Result:
    policy = policy_of(name, **limits)
    env = Env(policy, time.monotonic() + 5, str(made.root), made.environ, True, now=NOW)
    return examine(check_named(name), env, NOW)


@pytest.mark.parametrize(("name", "files", "limits"), CASES, ids=[name for name, _, _ in CASES])
@FAST
@given(data=st.data())
def test_any_text(
    node: FakeNode,
    name: str,
    files: tuple[str, ...],
    limits: dict[str, Any],
    data: st.DataObject,
) -> None:
    for file in files:
        node.file(file, data.draw(TEXTS))
    result = look(node, name, limits)
    assert result.status is not Status.PASS, result
    assert "the check itself failed" not in result.evidence
    assert result.evidence


@pytest.mark.parametrize(("name", "files", "limits"), CASES, ids=[name for name, _, _ in CASES])
def test_files_that_cannot_be_read(
    node: FakeNode, name: str, files: tuple[str, ...], limits: dict[str, Any]
) -> None:
    """A folder in place of each file: neither there nor readable."""
    for file in files:
        path = node.root / file.lstrip("/")
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
    result = look(node, name, limits)
    assert result.status is not Status.PASS, result
    assert "the check itself failed" not in result.evidence
