"""EFA adapters and InfiniBand ports."""

from pathlib import Path

import pytest
from health_node import FakeNode, sample

from hpresume.health.model import Action, Status


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def test_without_adapters(node: FakeNode) -> None:
    for name in ("efa-devices", "efa-provider", "efa-memlock", "efa-counters", "efa-loopback"):
        assert node.check(name).evidence == "no EFA adapter on the PCI bus"
    assert node.check("infiniband-ports").status is Status.SKIPPED


def test_devices(node: FakeNode) -> None:
    node.efa(2)
    assert node.check("efa-devices").status is Status.PASS
    result = node.check("efa-devices", expected=4)
    assert (result.status, result.action) == (Status.FAIL, Action.REBOOT)
    node.instance("p4d.24xlarge")
    result = node.check("efa-devices")
    assert "2 EFA adapters on the PCI bus, the node should have 4" in result.evidence
    assert "p4d.24xlarge" in result.source


def test_a_driver_without_a_device(node: FakeNode) -> None:
    node.efa(2, verbs=1)
    assert "1 verbs devices for 2 adapters" in node.check("efa-devices").evidence


def test_all_adapters_gone(node: FakeNode) -> None:
    node.instance("p5.48xlarge")
    assert node.check("efa-devices").status is Status.FAIL


def test_provider(node: FakeNode) -> None:
    node.efa(2)
    assert "fi_info is not installed" in node.check("efa-provider").evidence
    node.says("fi_info", sample("fi_info-efa.txt"))
    assert node.check("efa-provider").status is Status.PASS
    node.says("fi_info", sample("fi_info-efa.txt").partition("    domain: rdmap32")[0])
    assert node.check("efa-provider").status is Status.FAIL
    node.says("fi_info", "", 61, "fi_getinfo: -61 (No data available)")
    assert node.check("efa-provider").action is Action.REBOOT
    for text in ("", "garbage", "provider: tcp\n domain: eth0"):
        node.says("fi_info", text)
        assert node.check("efa-provider").status is Status.UNKNOWN


def test_memlock(node: FakeNode) -> None:
    node.efa(1)
    assert node.check("efa-memlock").status is Status.UNKNOWN
    row = "Max locked memory         {}            {}            bytes     \n"
    node.file("/proc/self/limits", row.format("unlimited", "unlimited"))
    result = node.check("efa-memlock")
    assert (result.status, "slurmd" in result.left_out) == (Status.PASS, True)
    node.file("/proc/77/comm", "slurmd\n")
    node.file("/proc/77/limits", row.format(8 << 20, 8 << 20))
    result = node.check("efa-memlock")
    assert (result.status, result.action) == (Status.FAIL, Action.NONE)
    assert "slurmd's limit" in result.evidence


def test_counters(node: FakeNode) -> None:
    node.efa(1)
    assert node.check("efa-counters").status is Status.UNKNOWN
    at = "/sys/class/infiniband/rdmap16s27/ports/1/hw_counters"
    node.file(f"{at}/rx_drops", "3\n")
    assert node.check("efa-counters").status is Status.PASS
    node.file(f"{at}/retrans_timeout_events", "1000001\n")
    assert "retrans_timeout_events is 1000001" in node.check("efa-counters").evidence


def test_loopback(node: FakeNode) -> None:
    node.efa(1)
    assert "fi_pingpong is not installed" in node.check("efa-loopback").evidence
    node.says("fi_pingpong", sample("fi_pingpong.txt"))
    result = node.check("efa-loopback")
    assert result.status is Status.PASS
    assert node.check("efa-loopback", min_gbps=100).status is Status.FAIL
    node.says("fi_pingpong", "", 1, "fi_connect: timed out")
    assert "rdmap16s27" in node.check("efa-loopback").evidence
    assert node.check("efa-loopback").status is Status.UNKNOWN


def port(node: FakeNode, state: str, physical: str, downed: str = "0") -> None:
    at = "/sys/class/infiniband/mlx5_0/ports/1"
    for name, text in (
        ("state", state),
        ("phys_state", physical),
        ("link_layer", "InfiniBand"),
        ("counters/link_downed", downed),
    ):
        node.file(f"{at}/{name}", text + "\n")


@pytest.mark.parametrize(
    ("state", "physical", "downed", "status"),
    [
        ("4: ACTIVE", "5: LinkUp", "0", Status.PASS),
        ("1: DOWN", "3: Disabled", "0", Status.FAIL),
        ("2: INIT", "5: LinkUp", "0", Status.FAIL),
        ("4: ACTIVE", "5: LinkUp", "300", Status.FAIL),
        ("", "", "0", Status.UNKNOWN),
        ("garbage", "5: LinkUp", "0", Status.UNKNOWN),
    ],
)
def test_infiniband(node: FakeNode, state: str, physical: str, downed: str, status: Status) -> None:
    port(node, state, physical, downed)
    assert node.check("infiniband-ports").status is status


def test_a_port_without_a_cable_is_no_order_and_can_be_ignored(node: FakeNode) -> None:
    port(node, "1: DOWN", "2: Polling")
    assert node.check("infiniband-ports").action is Action.NONE
    assert node.check("infiniband-ports", ignore=["mlx5_0/1"]).status is Status.SKIPPED


def test_ethernet_is_no_infiniband(node: FakeNode) -> None:
    port(node, "1: DOWN", "3: Disabled")
    node.file("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n")
    assert node.check("infiniband-ports").status is Status.SKIPPED
