"""Metering: one interval a machine, from its lifecycle script to its terminating state."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from provision_world import CONTROLLER, World, workers

from hpresume.cli.app import main
from hpresume.errors import CapacityError
from hpresume.provision import repository, requests
from hpresume.provision.clock import SteadyClock
from hpresume.provision.metering import Interval, intervals, totals, usage
from hpresume.provision.service import NodeAction
from hpresume.store import Store, open_store

HOUR = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    yield store
    store.close()


class Metered(World):
    """A world whose changes are written down."""

    def __init__(self, store: Store, *groups: object) -> None:
        self.store = store
        super().__init__(*groups)  # type: ignore[arg-type]

    def take(self, change: object) -> None:
        super().take(change)  # type: ignore[arg-type]
        with self.store.write() as session:
            repository.save(session, self.state.cluster, change)  # type: ignore[arg-type]

    def seconds(self, since: float = 0.0) -> dict[str, float]:
        """Metered seconds of every instance of the workers."""
        with self.store.read() as session:
            rows = usage(intervals(session), since, self.now)
        return {row.instance_id: row.seconds for row in rows if row.group == "workers"}


def test_it_begins_with_the_script_and_ends_when_the_machine_is_given_up(store: Store) -> None:
    world = Metered(store, CONTROLLER, workers(1))
    world.settle(5)
    world.provider.boot_s = 500.0
    world.update(workers(2))
    world.settle(10, 100.0)
    booted = world.node("workers-2")
    world.hold_scripts = lambda node: False
    before = world.seconds()
    world.settle(1, HOUR)
    assert world.seconds()[booted.machine_id] - before[booted.machine_id] == HOUR
    launched_for = world.now - booted.launched_at
    assert world.seconds()[booted.machine_id] < launched_for - 400
    world.update(workers(0))
    world.step(HOUR)
    ended = world.seconds()
    world.settle(3, HOUR)
    assert world.seconds() == ended


def test_launches_that_fail_cost_nothing(store: Store) -> None:
    world = Metered(store, CONTROLLER, workers(1))
    world.provider.errors["workers-1"] = [CapacityError("none")] * 5
    world.settle(40)
    assert world.seconds() == {}
    world.provider.boot_s = 1e9
    world.settle(20, 600.0)
    assert world.seconds() == {}


def test_a_script_that_fails_costs_its_run_time(store: Store) -> None:
    world = Metered(store, CONTROLLER, workers(1))
    world.hold_scripts = lambda node: node.group == "workers"
    world.scripts = lambda node: "exit code 1" if node.group == "workers" else ""
    world.settle(10)
    first = world.node("workers-1").machine_id
    world.now += 900.0
    began = world.seconds()[first]
    world.hold_scripts = lambda node: False
    world.step()
    world.step(HOUR)
    world.hold_scripts = lambda node: True
    world.step(HOUR)
    assert world.seconds()[first] == began >= 900.0


def test_a_replaced_node_is_metered_for_each_of_its_machines(store: Store) -> None:
    world = Metered(store, CONTROLLER, workers(1))
    world.settle(10)
    node = world.node("workers-1")
    world.settle(1, HOUR)
    world.ask(lambda d, op: requests.act(d, NodeAction.REPLACE, [node], op))
    world.settle(5, 1.0)
    world.settle(1, HOUR)
    seconds = world.seconds()
    assert len(seconds) == 2
    assert sum(seconds.values()) == pytest.approx(2 * HOUR, abs=20)


def test_a_second_beginning_and_a_second_end_change_nothing(store: Store) -> None:
    world = Metered(store, CONTROLLER, workers(1))
    world.settle(10)
    bills = [bill for bill in world.bills if bill.group == "workers"]
    with store.write() as session:
        repository._save_bills(session, world.state.cluster, bills * 2)
    assert len(world.seconds()) == 1
    world.update(workers(0))
    world.settle(3)
    ended = world.seconds()
    bills = [bill for bill in world.bills if bill.group == "workers"]
    world.now += HOUR
    with store.write() as session:
        repository._save_bills(session, world.state.cluster, bills)
    assert world.seconds() == ended


def test_a_clock_that_is_set_while_running_moves_nothing() -> None:
    wall, monotonic = [1000.0], [5.0]
    clock = SteadyClock(0.0, lambda: wall[0], lambda: monotonic[0])
    assert clock() == 1000.0
    wall[0] = 5000.0
    monotonic[0] = 15.0
    assert clock() == 1010.0
    wall[0] = 10.0
    assert clock() == 1010.0


def test_a_clock_that_was_set_back_between_two_runs_does_not_run_time_twice() -> None:
    assert SteadyClock(2000.0, lambda: 1500.0, lambda: 0.0)() == 2000.0
    assert SteadyClock(2000.0, lambda: 2500.0, lambda: 0.0)() == 2500.0


def interval(begin: float, end: float | None, instance: str = "i-1") -> Interval:
    return Interval("arn:c", "c", "workers", "ml.c5.xlarge", instance, "c-1", begin, end)


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [
        ([(0, 10)], 10),
        ([(0, 10), (0, 10)], 10),
        ([(0, 10), (5, 15)], 15),
        ([(0, 20), (5, 10)], 20),
        ([(0, 5), (10, 15)], 10),
        ([(90, None)], 10),
        ([(90, None), (95, 99)], 10),
        ([(200, None)], 0),
        ([(7, 7)], 0),
    ],
)
def test_overlaps_count_once(parts: list[tuple[float, float | None]], seconds: float) -> None:
    rows = usage([interval(*part) for part in parts], 0.0, 100.0)
    assert sum(row.seconds for row in rows) == seconds


PARTS = st.lists(
    st.tuples(st.integers(0, 100), st.one_of(st.none(), st.integers(0, 100))), max_size=6
)


@given(PARTS, st.integers(0, 100), st.integers(0, 100))
def test_seconds_are_those_in_which_it_ran(
    parts: list[tuple[int, int | None]], a: int, b: int
) -> None:
    since, until = min(a, b), max(a, b)
    ran = {
        second
        for begin, end in parts
        for second in range(begin, 200 if end is None else end)
        if since <= second < until
    }
    rows = usage([interval(*part) for part in parts], since, until)
    assert sum(row.seconds for row in rows) == len(ran)


def test_totals() -> None:
    rows = usage([interval(0, 10, "i-1"), interval(0, 5, "i-2"), interval(90, None, "i-3")], 0, 100)
    (group,) = totals(rows, by_group=True)
    assert (group.instances, group.seconds, group.is_running) == (3, 25.0, True)
    assert totals(rows, by_group=False)[0].seconds == 25.0


class TestCommand:
    @pytest.fixture
    def url(self, store: Store, tmp_path: Path) -> str:
        world = Metered(store, CONTROLLER, workers(2))
        world.settle(10)
        world.settle(1, HOUR)
        world.update(workers(0))
        world.settle(3)
        return f"sqlite:///{tmp_path}/controller.db"

    def test_a_table(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["usage", "--database", url]) == 0
        lines = capsys.readouterr().out.splitlines()
        (workers_line,) = [line for line in lines if " workers " in line]
        assert workers_line.split()[:4] == ["arn:test", "workers", "ml.c5.xlarge", "2"]
        assert workers_line.split()[4].startswith("2.0")
        assert lines[-1] == "* still running"

    def test_csv_and_json_say_the_same(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["usage", "c1", "--by", "instance", "--format", "csv", "--database", url]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert main(["usage", "c1", "--by", "instance", "--format", "json", "--database", url]) == 0
        same = json.loads(capsys.readouterr().out)
        assert len(rows) == len(same) == 3
        assert [row["instance_id"] for row in rows] == [row["instance_id"] for row in same]
        ended = [row for row in rows if row["is_running"] == "false"]
        assert len(ended) == 2
        assert all(3600 <= float(row["seconds"]) < 3620 for row in ended)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--format", "xml"], "table, csv, json"),
            (["--by", "node"], "cluster, group, instance"),
            (["--since", "yesterday"], "2026-01-31"),
            (["--since", "2026-01-02", "--until", "2026-01-01"], "must be before"),
        ],
    )
    def test_bad_input(
        self, url: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["usage", "--database", url, *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
