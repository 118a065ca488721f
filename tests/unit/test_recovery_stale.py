"""A call that still goes on when its instance does not lead any more touches nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from recovery_world import FakeProvider, FakeSlurm, World

from hpresume.providers.model import Machine, MachineState
from hpresume.recovery import check
from hpresume.recovery.calls import Calls
from hpresume.recovery.model import Call, Origin, Outcome, Phase, Recovery, Trouble
from hpresume.recovery.reasons import Kind
from hpresume.slurm.runner import Answer
from hpresume.store import open_store

THIS = Recovery(
    "ab", "n1", Kind.REPLACE, Origin.ORDER, "Action:Replace", Phase.TERMINATING, 1.0, 1.0
)


class Paused(FakeProvider):
    """``then`` happens inside the next list, after it was made: as when a process is stopped."""

    then: Callable[[], None] | None = None

    def list(self) -> tuple[Machine, ...]:
        found, then = super().list(), self.then
        self.then = None
        if then is not None:
            then()
        return found


def calls(provider: FakeProvider, fence: list[object], check=check.no_check) -> Calls:
    return Calls(
        provider, check, lambda: fence[0], submit=lambda work: work(), sleep=lambda _: None
    )


@pytest.mark.parametrize("call", [Call.CLEAR, Call.REBOOT])
@pytest.mark.parametrize("later", [None, "led again, as another"])
def test_the_machine_of_a_successor_is_left_alone(call, later) -> None:
    provider = Paused()
    provider.machines["m2"] = Machine("m2", "n1", "hpr-ab-1", MachineState.RUNNING)
    fence: list[object] = ["first"]

    def lose() -> None:
        fence[0] = later

    provider.then = lose
    made = calls(provider, fence)
    made.start(THIS, call, "", ())
    outcome = made.take()[1]["ab"]
    assert outcome.trouble is Trouble.TRANSIENT
    assert provider.calls == ["list"]


def test_a_clear_that_waits_does_not_take_what_was_launched_meanwhile() -> None:
    provider = Paused()
    provider.machines["m1"] = Machine("m1", "n1", "", MachineState.RUNNING)
    fence: list[object] = ["first"]

    def successor(_: str) -> None:
        # It had cleared too, and has launched by the time the first looks again.
        provider.machines["m2"] = Machine("m2", "n1", "hpr-ab-1", MachineState.RUNNING)
        fence[0] = None

    provider.on_stop = successor
    made = calls(provider, fence)
    made.start(THIS, Call.CLEAR, "", ())
    assert made.take()[1]["ab"].trouble is Trouble.TRANSIENT
    assert not provider.machines["m2"].state.is_gone


class Checking(FakeSlurm):
    """The part of Slurm that a health check needs."""

    def __init__(self, code: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(("n1",))
        self.code, self.meanwhile = code, meanwhile
        self.reserved: set[str] = set()

    def reserve(self, name: str, node: str, minutes: int) -> None:
        self.reserved.add(name)

    def unreserve(self, name: str) -> None:
        self.reserved.discard(name)

    def run_on(self, node, reservation, argv, timeout_s) -> Answer:
        self.meanwhile()
        return Answer("fail gpu-count 7 of 8", "", self.code)


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("leads", [True, False])
def test_a_check_that_ends_too_late_leaves_the_node_to_the_successor(code, leads) -> None:
    fence: list[object] = ["first"]

    def meanwhile() -> None:
        fence[0] = "first" if leads else None

    slurm = Checking(code, meanwhile)
    made = calls(FakeProvider(), fence, check.through_slurm(slurm, ["check"], 5.0))
    made.start(THIS, Call.CHECK, "", ())
    assert slurm.reserved == (set() if leads else {"hpresume-check-n1"})
    assert bool(slurm.known["n1"].reason) == (leads and code == 1)


def test_the_end_does_not_wait_for_a_call_that_hangs(monkeypatch) -> None:
    monkeypatch.setattr("hpresume.recovery.calls._CLOSE_S", 0.2)
    hangs, goes_on = threading.Event(), threading.Event()

    def check(node: str, jobs: tuple[int, ...], stands: Callable[[], bool]) -> Outcome:
        hangs.set()
        goes_on.wait(30.0)
        assert not stands()
        return Outcome(Call.CHECK)

    made = Calls(FakeProvider(), check, lambda: "first")
    made.start(THIS, Call.CHECK, "", ())
    assert hangs.wait(30.0)
    (thread,) = made._threads
    assert thread.daemon
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 10.0
    goes_on.set()
    thread.join(30.0)
    made.start(THIS, Call.CLEAR, "", ())
    for each in made._threads:
        each.join(30.0)
    assert made.take()[1]["ab"].trouble is Trouble.TRANSIENT


def test_a_single_pass_waits_for_its_calls(monkeypatch) -> None:
    monkeypatch.setattr("hpresume.recovery.calls._CLOSE_S", 0.0)
    ended, goes_on = [], threading.Event()

    def check(node: str, jobs: tuple[int, ...], stands: Callable[[], bool]) -> Outcome:
        assert goes_on.wait(30.0)
        assert stands()
        ended.append(node)
        return Outcome(Call.CHECK)

    made = Calls(FakeProvider(), check, lambda: "first")
    made.start(THIS, Call.CHECK, "", ())
    threading.Timer(0.2, goes_on.set).start()
    made.close(finish=True)
    assert ended == ["n1"]


def test_a_controller_that_was_away_for_hours_goes_on_where_it_was(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    try:
        world = World(store, ("n1", "n2"))
        world.slurm.update_node("n1", State="FAIL", Reason="Action:Replace")
        for _ in range(4):
            world.once()
        assert world.work, "the machine is being given up"
        world.start()  # killed, and started again after hours
        world.now += 50_000.0
        world.settle()
        (machine,) = world.provider.of("n1")
        assert machine.token.endswith("-1")
        assert world.slurm.known["n1"].is_usable
    finally:
        store.close()


def test_a_boot_during_an_outage_of_slurmctld_is_no_failed_attempt(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    try:
        world = World(store, ("n1", "n2"))
        world.slurm.update_node("n1", State="FAIL", Reason="Action:Replace")
        for _ in range(8):
            world.once()
            world.call()
        assert world.booting == ["n1"]
        world.now += 50_000.0  # nobody could look
        world.once()
        world.settle()
        (machine,) = world.provider.of("n1")
        assert machine.token.endswith("-1")
    finally:
        store.close()
