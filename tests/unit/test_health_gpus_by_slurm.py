"""How many GPUs a node should have, by Slurm's Gres of the node."""

from __future__ import annotations

from pathlib import Path

import pytest
from health_node import FakeNode, sample

from hpresume.health.model import Action, Status


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """Two GPUs on the bus and with the driver."""
    node = FakeNode(tmp_path)
    node.gpus(2)
    node.says("nvidia-smi", sample("nvidia-smi-570.xml"))
    node.environ |= {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURMD_NODENAME": "n1"}
    return node


def slurm(node: FakeNode, gres: str, code: int = 0) -> None:
    node.says("scontrol", f"NodeName=n1 Gres={gres} State=IDLE Partitions=main\n", code)


@pytest.mark.parametrize(
    ("gres", "status"),
    [
        ("gpu:2", Status.PASS),
        ("gpu:h200:2(S:0-1)", Status.PASS),
        ("gpu:h200:8(S:0-1),nvme:3", Status.FAIL),
        ("(null)", Status.PASS),
        ("nvme:9", Status.PASS),
        ("gpu:h200_1g.18gb:14", Status.PASS),  # slices
        ("gpu:1", Status.PASS),  # fewer than there are is an administrator's choice
    ],
)
def test_fewer_than_slurm_has(node: FakeNode, gres: str, status: Status) -> None:
    slurm(node, gres)
    result = node.check("gpu-count")
    assert result.status is status, result
    if status is Status.FAIL:
        assert result.evidence == "2 GPUs, the node should have 8"
        assert result.action is Action.REBOOT
        assert result.source == f"Slurm: Gres={gres} of n1"


def test_the_policy_comes_first(node: FakeNode) -> None:
    slurm(node, "gpu:8")
    assert node.check("gpu-count", expected=2).status is Status.PASS
    assert node.check("gpu-count", by_slurm=False).status is Status.PASS
    node.instance("p5.48xlarge")
    slurm(node, "gpu:2")
    assert "should have 8" in node.check("gpu-count").evidence


@pytest.mark.parametrize(
    "tool",
    [
        "exit 1",
        "echo garbage",
        "echo 'NodeName=n1 Gres=gpu:8'",
        "kill -9 $$",
        "echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1",
        "sleep 60",
    ],
    ids=["fails", "garbage", "cut", "killed", "no controller", "hangs"],
)
def test_a_slurm_that_does_not_say(node: FakeNode, tool: str) -> None:
    node.tool("scontrol", tool)
    result = node.check("gpu-count", timeout_s=2)
    assert (result.status, result.evidence) == (Status.PASS, "2 GPUs")


def test_all_gpus_gone_from_a_node_with_the_driver(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.environ |= {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURMD_NODENAME": "n1"}
    slurm(node, "gpu:8")
    # GPUs of another make, or pretended ones: nothing here is NVIDIA's.
    assert node.check("gpu-count").status is Status.SKIPPED
    node.file("/sys/module/nvidia/refcnt", "0\n")
    result = node.check("gpu-count")
    assert (result.status, result.action) == (Status.FAIL, Action.REBOOT)
    assert result.evidence == "0 GPUs, the node should have 8"
