"""Nodes that fail by themselves, as slurmctld notices it."""

from __future__ import annotations

import pytest
from cluster import CRASHED

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "slurmd_timeout": 6}


@pytest.mark.parametrize("address", ["same", "new"])
def test_crash_and_automatic_replacement(site, cluster, address) -> None:
    controller = site()
    before = controller.machines("n2")
    controller.start(ADDRESS=address, REPORT_BOOT="yes")
    cluster.crash("n2")
    if address == "same":  # once is enough to wait for slurmctld's own word
        controller.mark("n2", "down", CRASHED)
    back = controller.wait_event("node-replaced", "n2", timeout=60)
    assert back.details["origin"] == "down"
    assert len(controller.machines("n2")) == 1
    assert controller.machines("n2") != before
    assert back.details["address"] in controller.shown("n2")
    ran = cluster.exec(["srun", "-w", "n2", "hostname"], user="trainer", check=True, timeout=30)
    assert ran.stdout.strip() == "n2"


def test_a_flapping_node_is_quarantined_and_a_foreign_reason_left(site, cluster) -> None:
    controller = site(max_attempts=2, down_grace=0.0)
    controller.start()
    controller.mark("n4", "down", "the fan is loud")
    for count in (1, 2):
        cluster.crash("n1")
        controller.mark("n1", "down", CRASHED)
        controller.wait_event("node-replaced", "n1", count)
    cluster.crash("n1")
    controller.mark("n1", "down", CRASHED)
    story = controller.wait_event("node-quarantined", "n1").message
    assert "2 recoveries within 24 h did not last" in story
    assert "Quarantined by hpresume: 2 recoveries" in controller.shown("n1")
    assert "Reason=the fan is loud" in controller.shown("n4")
    assert controller.events(node="n4") == ()


def test_mass_failure_halts_and_none_leaves_nodes_to_people(site, cluster) -> None:
    controller = site(halt_share=0.5)
    before = {node: controller.machines(node) for node in ("n1", "n2", "n3")}
    for node in before:
        cluster.crash(node)
        controller.mark(node, "down", CRASHED)
    controller.start()
    halt = controller.wait_event("halt", "")
    assert "3 of 4 nodes of partition main are bad" in halt.message
    controller.mark("n1", "fail", "Action:Replace")
    first = controller.wait_event("node-replaced", "n1")  # a person's order
    # Fewer than the share are bad now: it goes on by itself.
    for node in ("n2", "n3"):
        controller.wait_event("node-replaced", node)
        (begins,) = controller.events("replace-begins", node)
        assert begins.time > first.details["times"]["checking"]


def test_a_node_that_rebooted_by_itself_is_checked_and_given_back(site, cluster) -> None:
    controller = site(down_grace=0.0)
    before = controller.machines("n3")
    controller.start()
    controller.mark("n3", "down", "Node unexpectedly rebooted")
    controller.wait_event("node-checked", "n3")
    assert "State=IDLE " in controller.shown("n3")
    assert controller.machines("n3") == before
