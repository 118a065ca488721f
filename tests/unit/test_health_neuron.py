"""Neuron devices: counters wherever the driver has them."""

from pathlib import Path

import pytest
from health_node import FakeNode

from hpresume.health.model import Action, Status

TREE = "/sys/devices/virtual/neuron_device"

#: Where counters are below a device: until 2.30, and moved, as after a reorganisation.
LAYOUTS = {
    "stats": ("stats/hardware/{}/total", "neuron_core0/stats/status/hw_error/total"),
    "moved": ("hw/counters/{}", "cores/neuron_core0/errors/hw_nc_ue_error"),
}


def make(node: FakeNode, layout: str, count: int = 2, tree: str = TREE) -> None:
    device, core = LAYOUTS[layout]
    for number in range(count):
        for name in (
            "mem_ecc_uncorrected",
            "sram_ecc_uncorrected",
            "mem_ecc_repairable_uncorrected",
        ):
            node.file(f"{tree}/neuron{number}/{device.format(name)}", "0\n")
        node.file(f"{tree}/neuron{number}/{core}", "0\n")


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


@pytest.mark.parametrize("tree", [TREE, "/sys/class/neuron_device"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(node: FakeNode, layout: str, tree: str) -> None:
    make(node, layout, tree=tree)
    device, core = LAYOUTS[layout]
    assert node.check("neuron-ecc").status is Status.PASS
    assert node.check("neuron-health").status is Status.PASS
    node.file(f"{tree}/neuron1/{device.format('sram_ecc_uncorrected')}", "3\n")
    result = node.check("neuron-ecc")
    assert (result.status, result.action) == (Status.FAIL, Action.REPLACE)
    assert result.evidence == "neuron1: 3 sram_ecc_uncorrected"
    node.file(f"{tree}/neuron0/{core}", "1\n")
    assert node.check("neuron-health").status is Status.FAIL


def test_a_repairable_error_wants_a_reboot(node: FakeNode) -> None:
    make(node, "stats")
    node.file(f"{TREE}/neuron0/stats/hardware/mem_ecc_repairable_uncorrected/total", "1")
    assert node.check("neuron-ecc").action is Action.REBOOT


@pytest.mark.parametrize("content", ["", "garbage", "0x", "\0", "9" * 30])
def test_counters_that_are_no_numbers(node: FakeNode, content: str) -> None:
    make(node, "stats")
    node.file(f"{TREE}/neuron0/stats/hardware/mem_ecc_uncorrected/total", content)
    assert node.check("neuron-ecc").status is Status.UNKNOWN


def test_no_counters_at_all(node: FakeNode) -> None:
    node.file(f"{TREE}/neuron0/core_count", "2")
    assert node.check("neuron-ecc").status is Status.UNKNOWN
    assert node.check("neuron-health").status is Status.UNKNOWN


def test_health_status(node: FakeNode) -> None:
    make(node, "stats")
    path = f"{TREE}/neuron0/stats/hardware/health_status/unhealthy_components"
    node.file(path, "0x0\n")
    assert node.check("neuron-health").status is Status.PASS
    node.file(path, "0x4\n")
    result = node.check("neuron-health")
    assert (result.status, result.action) == (Status.FAIL, Action.REPLACE)
    node.file(path, "hbm0\n")
    assert node.check("neuron-health").action is Action.NONE


def test_count(node: FakeNode) -> None:
    assert node.check("neuron-count").status is Status.SKIPPED
    node.instance("trn1.32xlarge")
    assert node.check("neuron-count").status is Status.FAIL
    make(node, "stats", 16)
    assert node.check("neuron-count").status is Status.PASS
    node.instance("m5.large")
    assert node.check("neuron-count").status is Status.PASS
