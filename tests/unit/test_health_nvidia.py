"""nvidia-smi: every fault, old and new drivers, tools that do not answer well."""

from pathlib import Path

import pytest
from health_node import FakeNode, sample

from hpresume.health.checks.nvidia_xml import parse
from hpresume.health.model import Action, Status
from hpresume.health.registry import CHECKS

SMI = [c.name for c in CHECKS if c.family == "nvidia-smi" and c.name != "gpu-nvlink"]
RELEASES = ["470", "570"]


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    node.gpus(2)
    return node


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", SMI)
def test_healthy(node: FakeNode, name: str, release: str) -> None:
    node.says("nvidia-smi", sample(f"nvidia-smi-{release}.xml"))
    wanted = Status.PASS
    if (name, release) == ("gpu-recovery-action", "470"):
        wanted = Status.SKIPPED  # that driver does not show it
    assert node.check(name).status is wanted


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("name", "old", "new", "action", "words"),
    [
        (
            "gpu-ecc",
            "<dram_uncorrectable>0<",
            "<dram_uncorrectable>2<",
            Action.REPLACE,
            "2 uncorrected",
        ),
        ("gpu-ecc", "_correctable>0<", "_correctable>50000001<", Action.REPLACE, "corrected"),
        (
            "gpu-remapped-rows",
            "failure>No<",
            "failure>Yes<",
            Action.REPLACE,
            "could not be remapped",
        ),
        ("gpu-remapped-rows", "pending>No<", "pending>Yes<", Action.REBOOT, "waits for a reset"),
        (
            "gpu-retired-pages",
            "<retired_count>N/A<",
            "<retired_count>8<",
            Action.REPLACE,
            "16 retired",
        ),
        ("gpu-temperature", "<gpu_temp>34 C<", "<gpu_temp>94 C<", Action.NONE, "94 °C"),
        ("gpu-power", "power_draw>61.20 W<", "power_draw>480.0 W<", Action.NONE, "120 %"),
        (
            "gpu-throttle",
            "hw_thermal_slowdown>Not Active<",
            "hw_thermal_slowdown>Active<",
            Action.NONE,
            "hw_thermal_slowdown",
        ),
        (
            "gpu-pcie",
            "<current_link_width>16x<",
            "<current_link_width>8x<",
            Action.REBOOT,
            "8x wide",
        ),
        (
            "gpu-pcie",
            "<replay_counter>0<",
            "<replay_counter>10001<",
            Action.REBOOT,
            "10001 PCIe replays",
        ),
        ("gpu-memory", "<used>3 MiB<", "<used>900 MiB<", Action.NONE, "no process"),
    ],
)
def test_faults(
    node: FakeNode, release: str, name: str, old: str, new: str, action: Action, words: str
) -> None:
    text = sample(f"nvidia-smi-{release}.xml")
    assert old in text
    node.says("nvidia-smi", text.replace(old, new))
    result = node.check(name)
    assert (result.status, result.action) == (Status.FAIL, action)
    assert words.replace("10001", "10001") in result.evidence or "1e+04" in result.evidence
    assert "GPU 00000000:10:1" in result.evidence


def test_the_drivers_own_word(node: FakeNode) -> None:
    text = sample("nvidia-smi-570.xml")
    node.says("nvidia-smi", text.replace("action>None<", "action>Reboot<", 1))
    result = node.check("gpu-recovery-action")
    assert (result.status, result.action) == (Status.FAIL, Action.REBOOT)


def test_count(node: FakeNode, tmp_path: Path) -> None:
    node.says("nvidia-smi", sample("nvidia-smi-570.xml"))
    result = node.check("gpu-count", expected=3)
    assert (result.status, result.action, result.measured) == (Status.FAIL, Action.REBOOT, "2")
    node.instance("p5.48xlarge")
    assert "should have 8" in node.check("gpu-count").evidence
    node.gpus(3)
    assert "2 of the 3 GPUs on the PCI bus" in node.check("gpu-count").evidence


def test_a_gpu_node_that_lost_all_gpus_is_not_a_node_without(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    assert node.check("gpu-count").status is Status.SKIPPED
    node.instance("p4d.24xlarge")
    assert node.check("gpu-count").status is Status.FAIL


@pytest.mark.parametrize(
    "said",
    [
        "Unable to determine the device handle for GPU 0000:10:1C.0: GPU is lost.",
        "No devices were found",
    ],
)
def test_a_lost_gpu(node: FakeNode, said: str) -> None:
    node.says("nvidia-smi", said, 15)
    result = node.check("gpu-count")
    assert (result.status, result.action) == (Status.FAIL, Action.REBOOT)
    assert node.check("gpu-ecc").status is Status.UNKNOWN


def test_values_that_are_errors_are_not_unsupported(node: FakeNode) -> None:
    text = sample("nvidia-smi-570.xml")
    node.says("nvidia-smi", text.replace("gpu_temp>34 C<", "gpu_temp>N/A<"))
    assert node.check("gpu-temperature").status is Status.SKIPPED
    node.says("nvidia-smi", text.replace("gpu_temp>34 C<", "gpu_temp>Unknown Error<"))
    assert node.check("gpu-temperature").status is Status.UNKNOWN


@pytest.mark.parametrize("name", [*SMI, "gpu-nvlink"])
def test_tools_that_do_not_answer_well(node: FakeNode, name: str) -> None:
    assert node.check(name).status is Status.SKIPPED
    assert "nvidia-smi is not installed" in node.check(name).evidence
    text = sample("nvidia-smi-570.xml")
    for broken in ("", "garbage", text[: len(text) // 2], "<nvidia_smi_log></x>", "\0\xff"):
        node.says("nvidia-smi", broken, 0, "a warning")
        assert node.check(name).status is Status.UNKNOWN
    node.says("nvidia-smi", text, 255, "NVML: Driver/library version mismatch")
    result = node.check(name)
    assert result.status is Status.UNKNOWN
    assert "255" in result.evidence
    node.tool("nvidia-smi", "kill -SEGV $$")
    assert "signal 11" in node.check(name).evidence
    node.tool("nvidia-smi", "exec sleep 60")
    result = node.check(name, timeout_s=0.2)
    assert (result.status, "did not answer" in result.evidence) == (Status.UNKNOWN, True)


def test_a_fault_counts_though_the_tool_ends_badly(node: FakeNode) -> None:
    text = sample("nvidia-smi-570.xml").replace("failure>No<", "failure>Yes<")
    node.says("nvidia-smi", text, 14)
    assert node.check("gpu-remapped-rows").status is Status.FAIL


def test_nvlink(node: FakeNode) -> None:
    text = sample("nvlink.txt")
    node.says("nvidia-smi", text)
    assert node.check("gpu-nvlink").status is Status.PASS
    node.says("nvidia-smi", text.replace("Link 1: 25 GB/s", "Link 1: <inactive>", 1))
    result = node.check("gpu-nvlink")
    assert (result.status, result.action) == (Status.FAIL, Action.REBOOT)
    assert result.evidence == "GPU 0: NVLink 1 down"
    node.says("nvidia-smi", text.replace("25 GB/s", "<inactive>"))
    assert node.check("gpu-nvlink").status is Status.UNKNOWN


def test_a_list_of_entities_is_no_report() -> None:
    assert parse('<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>') is None
