"""kill -9 of the controller at any instant of a replacement."""

from __future__ import annotations

import random
import time

import pytest

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 2, "gpus_per_node": 2}


def test_kill_9_at_random_instants_of_a_replacement(site, cluster) -> None:
    """Twenty kills, spread over replacements of about three seconds each."""
    controller = site(sweep_every=1.0)
    dice = random.Random(5)
    process = controller.start()
    for number in range(20):
        done = len(controller.events("node-replaced", "n1"))
        controller.mark("n1", "fail", "Action:Replace")
        controller.wait_event("replace-wanted", "n1", done + 1)
        time.sleep(dice.uniform(0.0, 3.0))  # the instant is what is tried
        controller.kill(process)
        assert len(controller.machines("n1")) <= 1, number
        process = controller.start()
        controller.wait_event("node-replaced", "n1", done + 1, timeout=60)
        assert len(controller.machines("n1")) == 1, number
        assert "State=IDLE" in controller.shown("n1"), number
    assert controller.active() == 0
    launched = {line.split()[2] for line in controller.calls("launch")}
    assert len(launched) == len(controller.events("machine-launched", "n1"))
