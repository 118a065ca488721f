"""Everything that can go wrong in the middle: the provider, slurmctld, the controller itself."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 3, "gpus_per_node": 2}


@pytest.mark.parametrize(
    ("action", "faults"),
    [
        ("launch", ["fail"]),
        ("launch", ["half"]),
        ("launch", ["capacity", "capacity"]),
        ("launch", ["hang"]),
        ("terminate", ["half", "fail", "fail"]),
        ("list", ["fail", "hang"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_provider_that_stumbles(site, cluster, action, faults) -> None:
    controller = site()
    before = {node: controller.machines(node) for node in ("n1", "n2")}
    controller.fault(action, *faults)
    controller.start()
    controller.mark("n1", "fail", "Action:Replace")
    controller.wait_event("replace-begins", "n1")
    # Another node does not have to wait for a provider that hangs.
    controller.mark("n2", "fail", "Action:Reboot")
    controller.wait_event("node-rebooted", "n2", timeout=30)
    controller.wait_event("node-replaced", "n1", timeout=60)
    assert len(controller.machines("n1")) == 1
    assert controller.machines("n1") != before["n1"]
    tokens = {line.split()[2] for line in controller.calls("launch")}
    assert len(tokens) == 1, "every repetition has the same token"


def test_a_provider_that_refuses_means_quarantine_and_no_machine_is_left(site, cluster) -> None:
    controller = site()
    controller.fault("launch", "refuse")
    controller.start()
    controller.mark("n1", "fail", "Action:Replace")
    controller.wait_event("node-quarantined", "n1")
    assert "Quarantined by hpresume: no machine: " in controller.shown("n1")
    assert controller.machines("n1") == []
    controller.mark("n1", "fail", "Action:Replace")  # a person has looked
    controller.wait_event("node-replaced", "n1")


def test_slurmctld_is_restarted_in_the_middle(site, cluster) -> None:
    controller = site()
    controller.fault("launch", "capacity", "capacity")
    controller.start()
    controller.mark("n1", "fail", "Action:Replace")
    controller.wait_event("no-capacity", "n1")
    cluster.restart_daemon("slurmctld")
    controller.wait_event("node-replaced", "n1", timeout=60)
    assert len(controller.machines("n1")) == 1


def test_one_of_two_instances_leads_and_the_other_takes_over(site, cluster) -> None:
    controller = site()
    first = controller.start()
    controller.wait(lambda: "this instance leads" in controller.log(), "no leader")
    controller.start()
    controller.fault("launch", *["capacity"] * 4)
    controller.mark("n1", "fail", "Action:Replace")
    controller.wait_event("no-capacity", "n1")
    assert controller.log().count("this instance leads") == 1
    controller.kill(first)
    controller.wait_event("node-replaced", "n1", timeout=60)
    assert controller.log().count("this instance leads") == 2
    assert len(controller.events("node-replaced", "n1")) == 1
    assert len(controller.machines("n1")) == 1
