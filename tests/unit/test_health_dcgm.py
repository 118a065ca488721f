"""DCGM: health watches, the values behind its policies, diagnostics."""

from pathlib import Path

import pytest
from health_node import FakeNode, sample

from hpresume.health.model import Action, Status


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    node.gpus(2)
    return node


NAMES = ("dcgm-health", "dcgm-policy", "dcgm-diag")


@pytest.mark.parametrize("name", NAMES)
def test_without_gpus_or_dcgm(node: FakeNode, tmp_path: Path, name: str) -> None:
    assert "dcgmi is not installed" in node.check(name).evidence
    (tmp_path / "bare").mkdir()
    assert FakeNode(tmp_path / "bare").check(name).status is Status.SKIPPED


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("said", ["", "garbage", '{"body": {', "[1]", "GPU 0 1 2", '{"a": [[]]}'])
def test_answers_that_are_none(node: FakeNode, name: str, said: str) -> None:
    node.says("dcgmi", said)
    assert node.check(name).status is Status.UNKNOWN


@pytest.mark.parametrize("name", NAMES)
def test_no_host_engine(node: FakeNode, name: str) -> None:
    node.says("dcgmi", "Error: unable to establish a connection to the specified host", 255)
    result = node.check(name)
    assert result.status is Status.UNKNOWN
    assert "unable to establish a connection" in result.evidence


def test_health(node: FakeNode) -> None:
    node.says("dcgmi", sample("dcgmi-health-healthy.json"))
    assert node.check("dcgm-health").status is Status.PASS
    failure = sample("dcgmi-health-failure.json")
    node.says("dcgmi", failure)
    result = node.check("dcgm-health")
    assert (result.status, result.action) == (Status.FAIL, Action.REBOOT)
    assert "GPU 0: A double bit volatile ECC error" in result.evidence
    node.says("dcgmi", failure.replace("A double bit volatile ECC error", "A row remap failure"))
    assert node.check("dcgm-health").action is Action.REPLACE
    node.says("dcgmi", failure.replace('"Failure"', '"Warning"'))
    assert node.check("dcgm-health").action is Action.NONE
    node.says("dcgmi", '{"body": {"Overall Health": {"value": "Not watched"}}}')
    assert "dcgmi health -s a" in node.check("dcgm-health").evidence


@pytest.mark.parametrize(
    ("column", "value", "action", "words"),
    [
        (0, "79", Action.REBOOT, "last XID 79"),
        (0, "95", Action.REPLACE, "last XID 95"),
        (0, "31", None, ""),
        (1, "1", Action.REPLACE, "1 double-bit errors"),
        (2, "10001", Action.REBOOT, "PCIe replays"),
        (3, "11", Action.REPLACE, "11 retired pages"),
        (5, "94", Action.NONE, "94 °C"),
        (7, "1001", Action.REBOOT, "1001 NVLink"),
        (8, "1", Action.REPLACE, "could not be remapped"),
    ],
)
def test_policy_conditions(
    node: FakeNode, column: int, value: str, action: Action | None, words: str
) -> None:
    row = "GPU 0     0      0      0      N/A    N/A    34     61.219   0      0"
    cells = row.split()[2:]
    cells[column] = value
    node.says("dcgmi", sample("dcgmi-dmon.txt").replace(row, "GPU 0 " + " ".join(cells)))
    result = node.check("dcgm-policy")
    if action is None:
        assert result.status is Status.PASS
        return
    assert (result.status, result.action) == (Status.FAIL, action)
    assert words in result.evidence or "1e+04" in result.evidence


def test_a_gpu_without_values(node: FakeNode) -> None:
    node.says("dcgmi", sample("dcgmi-dmon.txt") + "GPU 2 " + "N/A " * 9)
    result = node.check("dcgm-policy")
    assert (result.status, "1 of 3 GPUs" in result.evidence) == (Status.UNKNOWN, True)


def test_diagnostics(node: FakeNode) -> None:
    node.says("dcgmi", sample("dcgmi-diag-3.json"))
    result = node.check("dcgm-diag")
    assert (result.status, result.evidence) == (Status.PASS, "level 2: 4 passed")
    node.says("dcgmi", sample("dcgmi-diag-4.json"), 205)
    result = node.check("dcgm-diag")
    assert (result.status, result.action) == (Status.FAIL, Action.REPLACE)
    assert "memory GPU 0: An uncorrectable memory error" in result.evidence
    node.says("dcgmi", sample("dcgmi-diag-3.json").replace("PASS", "SKIP"))
    assert node.check("dcgm-diag").status is Status.UNKNOWN
    node.says("dcgmi", '{"DCGM GPU Diagnostic": {"runtime_error": "in use by another process"}}')
    assert "in use by another" in node.check("dcgm-diag").evidence
