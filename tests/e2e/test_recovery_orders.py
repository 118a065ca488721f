"""Orders in reasons: obeyed to the letter, at the right moment, and never misread."""

from __future__ import annotations

import json
import sys

import pytest
from steps import Run

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 4, "gpus_per_node": 4}


def test_both_commands_of_the_seed_and_what_only_looks_like_them(site, cluster) -> None:
    controller = site()
    run = Run(cluster)
    run.batch("srun {rank}", "-N2", "-w", "n[1-2]", "--exclusive", "--gres=gpu:4", "--no-requeue")
    run.wait_up(0, 2)
    before = {node: controller.machines(node) for node in ("n1", "n2", "n3", "n4")}
    controller.start()
    controller.mark("n1", "fail", "Action:Replace")
    controller.mark("n3", "fail", "action:replace")
    controller.mark("n4", "drain", "the fan is loud")
    waiting = controller.wait_event("waiting", "n1")
    assert f"job {run.job_id} is running" in waiting.message
    lines = {line["node"]: line for line in json.loads(controller.cli("nodes", "--json"))}
    assert lines["n1"]["phase"] == "waiting"
    assert "is running" in lines["n1"]["next_step"]
    # A near miss is told and left alone.
    controller.wait_event("near-miss", "n3")
    controller.wait(lambda: "Comment=hpresume: not obeyed" in controller.shown("n3"), "no comment")
    # The job has its nodes until it ends; then the machine goes.
    assert controller.machines("n1") == before["n1"]
    assert len(run.ups()) == 2
    run.finish()
    back = controller.wait_event("node-replaced", "n1")
    assert {"terminating", "launching", "booting", "checking", "returned"} <= set(
        back.details["times"]
    )
    assert "State=IDLE " in controller.shown("n1")
    assert "Reason=" not in controller.shown("n1")
    assert len(controller.machines("n1")) == 1
    assert controller.machines("n1") != before["n1"]
    for untouched in ("n2", "n3", "n4"):
        assert controller.machines(untouched) == before[untouched]
    assert "Reason=the fan is loud" in controller.shown("n4")
    controller.mark("n3", "resume", "")
    controller.wait(lambda: "Comment=" not in controller.shown("n3"), "its comment stays")


def test_down_acts_at_once_and_reboot_keeps_the_machine(site, cluster) -> None:
    # With the real health check, as a job of root's.
    controller = site(check_command=[sys.executable, "-m", "hpresume", "check"])
    run = Run(cluster)
    run.batch("srun {rank}", "-N1", "-w", "n1", "--exclusive", "--gres=gpu:4", "--no-requeue")
    run.wait_up(0, 1)
    before = {node: controller.machines(node) for node in ("n1", "n2", "n3")}
    controller.start()
    controller.mark("n1", "down", "Action:Replace")
    controller.mark("n2", "fail", "Action:Reboot")
    controller.cli("replace", "n3")
    for node, kind in (("n1", "replaced"), ("n2", "rebooted"), ("n3", "replaced")):
        controller.wait_event(f"node-{kind}", node)
        assert "State=IDLE " in controller.shown(node)
        assert len(controller.machines(node)) == 1
        assert (controller.machines(node) == before[node]) == (kind == "rebooted")
    assert cluster.jobs() == []
    told = controller.cli("events", "--json").splitlines()
    assert {json.loads(line)["node"] for line in told} >= {"n1", "n2", "n3"}


def test_maintenance_holds_it_up_and_the_end_of_it_lets_it_go(site, cluster) -> None:
    controller = site()
    before = controller.machines("n2")
    argv = ["scontrol", "create", "reservation", "reservationname=work", "users=root"]
    argv += ["nodes=n2", "starttime=now", "duration=60", "flags=maint,ignore_jobs"]
    cluster.exec(argv, check=True)
    controller.start()
    controller.mark("n2", "fail", "Action:Replace")
    assert "maintenance" in controller.wait_event("waiting", "n2").message
    assert controller.machines("n2") == before
    cluster.exec(["scontrol", "delete", "reservationname=work"], check=True)
    controller.wait_event("node-replaced", "n2")
    assert controller.machines("n2") != before


def test_a_bad_machine_is_replaced_again_and_bad_ones_for_ever_mean_quarantine(site) -> None:
    controller = site(max_attempts=2)
    controller.sicken("n1", machines=1)
    controller.sicken("n2", machines=2)
    controller.start()
    controller.mark("n1", "fail", "Action:Replace")
    controller.mark("n2", "fail", "Action:Replace")
    back = controller.wait_event("node-replaced", "n1")
    assert back.details["attempts"] == 2, controller.log()
    controller.wait_event("node-quarantined", "n2")
    shown = controller.shown("n2")
    assert "+DRAIN" in shown
    assert "Quarantined by hpresume: 2 attempts, the last one (replace): FAIL gpu-count" in shown
    assert len(controller.machines("n2")) == 1  # for somebody to look at
    controller.mark("n2", "resume", "")


def test_dry_run_says_and_does_nothing(site, cluster) -> None:
    controller = site()
    before = controller.machines("n1")
    controller.mark("n1", "fail", "Action:Replace")
    controller.mark("n2", "down", "Not responding")
    controller.cli("controller", "--dry-run", "--once")
    assert controller.machines("n1") == before
    assert "Reason=Action:Replace [root" in controller.shown("n1")
    assert controller.events() == ()
