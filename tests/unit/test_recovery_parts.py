"""Orphans, health check verdicts, waiting jobs, what is shown, and the administrator's gateway."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from recovery_world import POLICY, World

from hpresume.errors import SlurmError, SlurmNotFoundError
from hpresume.providers.model import Machine, MachineState
from hpresume.recovery import check, table
from hpresume.recovery.dry import would
from hpresume.recovery.model import Origin, Phase, Policy, Recovery, Snapshot, Trouble
from hpresume.recovery.observe import waited_for
from hpresume.recovery.orphans import orphans, uids
from hpresume.recovery.reasons import Kind
from hpresume.recovery.show import lines
from hpresume.resume.waits import told
from hpresume.slurm.admin import AdminGateway, Holder
from hpresume.slurm.models import Node
from hpresume.slurm.reservations import Reservation
from hpresume.slurm.runner import Answer, Runner
from hpresume.store import open_store

LAUNCHED = Recovery(
    "ab", "n1", Kind.REPLACE, Origin.ORDER, "Action:Replace", Phase.RETURNED, 1.0, 1.0,
    attempt=2, machine_id="m2",
)  # fmt: skip


GOING = replace(LAUNCHED, phase=Phase.TERMINATING, machine_id="")
COMING = replace(LAUNCHED, phase=Phase.LAUNCHING, machine_id="")
GIVEN_UP = replace(LAUNCHED, phase=Phase.QUARANTINED, machine_id="")


def machine(machine_id, token, state=MachineState.RUNNING):
    return Machine(machine_id, "n1", token, state)


@pytest.mark.parametrize(
    ("found", "recovery", "orphan"),
    [
        (machine("m2", "hpr-ab-2"), LAUNCHED, False),
        (machine("m1", "hpr-ab-1"), LAUNCHED, True),
        (machine("m1", "hpr-ab-1", MachineState.TERMINATING), LAUNCHED, False),
        (machine("m1", "hpr-cd-1"), LAUNCHED, False),
        (machine("m1", "site-1"), LAUNCHED, False),
        (machine("m1", ""), LAUNCHED, False),
        # The answer to a launch is still on its way.
        (machine("m2", "hpr-ab-2"), COMING, False),
        (machine("m1", "hpr-ab-1"), COMING, True),
        (machine("m2", "hpr-ab-2"), GOING, False),
        (machine("m2", "hpr-ab-2"), GIVEN_UP, True),
    ],
)  # fmt: skip
def test_orphans(found, recovery, orphan):
    assert orphans([found], {"ab": recovery}) == ((found,) if orphan else ())


def test_only_tokens_of_recoveries_are_looked_up():
    assert uids([machine("m1", "hpr-ab-1"), machine("m2", "x"), machine("m3", "hpr-zz-1")]) == {
        "ab"
    }


@pytest.mark.parametrize(
    ("code", "trouble"),
    [(0, None), (1, Trouble.FAULT), (2, Trouble.TRANSIENT), (127, Trouble.TRANSIENT)],
)
def test_only_a_verdict_is_a_verdict(code, trouble):
    found = check.verdict(code, "pass     disk   ok\nfail     gpu-count   3 of 4 GPUs\n1 fault")
    assert found.trouble is trouble
    assert code == 0 or "gpu-count" in found.words


@pytest.mark.parametrize(
    "code",
    ["import absent_module", "1 / 0", "import runpy; runpy.run_module('absent_module')"],
)
def test_a_check_that_cannot_run_says_nothing_of_the_node(code):
    found = check.by_program([sys.executable, "-c", code], 20.0)("n7", (), lambda: True)
    assert found.trouble is Trouble.TRANSIENT
    assert "Error" in found.words


def test_nor_does_one_that_is_not_installed():
    command = [sys.executable, "-m", "absent_module", "{node}"]
    found = check.by_program(command, 20.0)("n7", (), lambda: True)
    assert found.trouble is Trouble.TRANSIENT
    assert "No module named absent_module" in found.words


def test_a_program_of_the_site(tmp_path):
    program = tmp_path / "check"
    program.write_text('#!/bin/sh\necho "FAIL $1 is bad"; exit 1\n')
    program.chmod(0o755)
    assert (
        check.by_program([str(program), "{node}"], 5.0)("n7", (), lambda: True).words
        == "FAIL n7 is bad"
    )
    slow = check.by_program(["sleep", "60"], 0.1)("n7", (), lambda: True)
    assert slow.trouble is Trouble.TRANSIENT
    absent = check.by_program([str(tmp_path / "none")], 1.0)("n7", (), lambda: True)
    assert absent.trouble is Trouble.TRANSIENT


@pytest.mark.parametrize("own", ["", "mine", "mine; too"])
def test_the_word_of_a_waiting_job_leaves_its_owners_own(own):
    word = told(own, ("n1", "n3"))
    assert waited_for(word) == {"n1", "n3"}
    assert word.startswith(own)
    assert told(word, ()) == own
    assert waited_for(own) == frozenset()


@pytest.mark.parametrize(
    "words", ["n[1-", "n[1-1000000]", "n[1-999],n[2000-3000]", "[1-99]x[1-99]"]
)
def test_nonsense_in_a_comment_is_nobodys_wish(words):
    assert waited_for(f"hpresume-waits-for:{words}") == frozenset()


def test_a_node_that_only_one_list_leaves_out_is_not_gone(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    try:
        world = World(store, ("n1", "n2"))
        world.slurm.update_node("n1", State="FAIL", Reason="Action:Replace")
        world.once()
        asked = world.slurm.nodes

        def short(names=None):
            return {k: v for k, v in asked(names).items() if names or k != "n1"}

        world.slurm.nodes = short
        with pytest.raises(SlurmError, match="left it out"):
            world.once()

        def gone(names=None):
            if names:
                raise SlurmNotFoundError(f"Slurm knows no node {names}")
            return short()

        world.slurm.nodes = gone
        world.once()
        with store.read() as session:
            (ended,) = table.past(session, 0.0)
        assert ended.note == "Slurm no longer knows the node"
    finally:
        store.close()


def test_a_dry_run_tells_what_is_under_way():
    active = replace(LAUNCHED, phase=Phase.BOOTING)
    nodes = {
        "n1": Node("n1", frozenset({"IDLE", "FAIL"}), reason="Action:Replace [hpresume recovery] x")
    }
    assert would(Snapshot(nodes, active=(active,)), Policy(), 100.0) == (
        "n1: replace is under way, booting: it would go on",
    )


def test_the_own_host_is_known_by_its_short_and_its_long_name(tmp_path, monkeypatch, caplog):
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    try:
        never = replace(POLICY, denied=frozenset({"logn1"}))
        world = World(store, ("n1", "n2"), never)
        own = replace(world.slurm.known["n1"], hostname="ctl.example.org")
        world.slurm.known["n1"] = own
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="ctl"))
        world.slurm.update_node("n1", State="FAIL", Reason="Action:Replace")
        world.settle()
        assert world.provider.calls.count("launch") == 0
        assert world.slurm.known["n1"].reason == "Action:Replace"
        said = [record.getMessage() for record in caplog.records]
        assert said.count("never: Slurm knows no node logn1") == 1
    finally:
        store.close()


def test_what_is_shown():
    nodes = {
        "n1": Node("n1", frozenset({"IDLE", "FAIL"}), reason="Action:Replace", reason_time=50.0),
        "n2": Node("n2", frozenset({"IDLE", "FAIL"}), reason="action:replace"),
        "n3": Node("n3", frozenset({"IDLE"})),
    }
    waiting = replace(LAUNCHED, phase=Phase.WAITING, since=40.0, note="job 7 is running")
    first, second, third = lines(nodes, [waiting], 100.0)
    assert (first.phase, first.since) == ("waiting", 40.0)
    assert first.next_step == "replace (job 7 is running)"
    assert first.for_people(100.0) == "60 s"
    assert second.next_step == 'nothing: the reason is not "Action:Replace"'
    assert third.fault == third.phase == third.next_step == ""


class Scripted(Runner):
    def __init__(self, text):
        super().__init__({})
        self.text = text

    def run(self, argv, timeout_s, cwd=None):
        return Answer(self.text, "", 0)


def test_holders():
    found = AdminGateway(Scripted("12|RUNNING|n[1-2]\n13|COMPLETING|n3\n")).holders()
    assert found == (Holder(12, ("n1", "n2")), Holder(13, ("n3",), completing=True))
    with pytest.raises(SlurmError, match="cannot read this job"):
        AdminGateway(Scripted("nonsense\n")).holders()


def test_reservations_as_slurm_22_05_and_24_11_show_them():
    old = (
        "ReservationName=work StartTime=1 EndTime=2 Duration=00:10:00 Nodes=n[1-2] NodeCnt=2 "
        "CoreCnt=2 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES "
        "TRES=cpu=2 Users=root State=ACTIVE BurstBuffer=(null)\n"
    )
    later = old.replace("work", "later").replace("ACTIVE", "INACTIVE").replace("MAINT,", "")
    flags = frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES"})
    assert AdminGateway(Scripted(old + later)).reservations() == (
        Reservation("work", ("n1", "n2"), ("root",), flags, start=1.0),
        Reservation("later", ("n1", "n2"), ("root",), flags - {"MAINT"}, active=False, start=1.0),
    )
    assert AdminGateway(Scripted("No reservations in the system\n")).reservations() == ()
