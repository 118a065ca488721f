"""What ``hpresume clusters``, ``groups``, ``nodes`` and ``events`` say of instance groups."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from provision_world import CONTROLLER, LOGIN, World, spec, workers
from rich.console import Console
from typer.testing import CliRunner

from hpresume.cli import clusters
from hpresume.cli.app import app
from hpresume.controller.show import all_lines
from hpresume.errors import UsageError
from hpresume.provision import history
from hpresume.provision.policy import Policy
from hpresume.provision.show import cluster_lines, group_lines
from hpresume.recovery.model import Origin, Phase, Recovery
from hpresume.recovery.reasons import Kind
from hpresume.slurm.models import Node
from hpresume.store import Level, Store, open_store


@pytest.fixture
def world() -> World:
    world = World(CONTROLLER, LOGIN, workers(4), slurm=True)
    world.settle(30)
    return world


@pytest.fixture
def site(tmp_path: Path) -> tuple[str, Store]:
    """A controller's file and its database, with one cluster in it that has no machines yet."""
    from hpresume.provision.book import Book
    from hpresume.provision.control import Provisioner

    url = f"sqlite:///{tmp_path}/c.db"
    config = tmp_path / "controller.toml"
    config.write_text(
        f'[controller]\ndatabase = "{url}"\n[provider]\ntype = "devcluster"\n[provision]\n'
    )
    store = open_store(url)
    Provisioner(Book(store), time.time).create_cluster(spec(CONTROLLER, LOGIN, workers(4)))
    return str(config), store


def test_a_cluster_that_is_up_is_one_line(world: World) -> None:
    (line,) = cluster_lines([world.state])
    assert (line.name, line.status, line.current, line.target) == ("c1", "InService", 6, 6)
    assert [(g.group, g.node_type, g.current, g.minimum, g.target) for g in group_lines(
        [world.state])] == [
        ("controller", "Controller", 1, 1, 1), ("login", "Login", 1, 1, 1),
        ("workers", "Compute", 4, 0, 4),
    ]  # fmt: skip


def test_a_group_says_what_its_nodes_wait_for_and_what_failed() -> None:
    world = World(CONTROLLER, workers(3))
    world.scripts = lambda node: "exit code 7" if node.name == "workers-2" else ""
    world.settle(30)
    line = group_lines([world.state])[1]
    assert (line.current, sum(line.phases.values())) == (2, 1)
    assert "exit code 7" in line.message


def test_what_is_held_back_is_told() -> None:
    world = World(CONTROLLER, workers(5), policy=Policy(max_per_group=3))
    world.settle(30)
    line = group_lines([world.state])[1]
    assert (line.current, line.target, line.phases, line.not_begun) == (3, 5, {}, 2)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(clusters._groups_table([world.state]))
    console.print(clusters.picture([world.state], ()))
    assert console.export_text().count("2 not begun") == 2


def test_nodes_of_groups_are_among_slurms_and_behind_them(world: World) -> None:
    slurm = {
        name: Node(name, frozenset({"IDLE"}), address=name, hostname=name, port=1)
        for name in ("n1", "workers-1", "workers-2")
    }
    recovery = Recovery(
        "u", "workers-2", Kind.REPLACE, Origin.ORDER, "Action:Replace", Phase.BOOTING, 5.0, 5.0
    )
    lines = {line.node: line for line in all_lines(slurm, [recovery], [world.state], 10.0)}
    assert list(lines) == [
        "n1", "workers-1", "workers-2", "controller-1", "login-1", "workers-3", "workers-4",
    ]  # fmt: skip
    assert lines["n1"].group == ""
    assert lines["workers-1"].group == "c1/workers"
    assert lines["workers-2"].phase == "booting"
    assert lines["login-1"].state == "not in Slurm"


def test_a_node_that_comes_up_says_what_it_waits_for() -> None:
    world = World(CONTROLLER, workers(1))
    world.hold_scripts = lambda node: node.group == "workers"
    world.settle(10)
    (line,) = (x for x in all_lines({}, [], [world.state], 0.0) if x.node == "workers-1")
    assert (line.phase, line.next_step) == ("lifecycle", "its lifecycle scripts end")


def test_one_frame_of_the_live_view(world: World) -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(clusters.picture([world.state], ()))
    text = console.export_text()
    assert "c1  InService  6/6" in text
    assert "workers" in text
    assert "4/4" in text
    assert "━" in text


def test_the_commands_read_the_database(site: tuple[str, Store]) -> None:
    config, _ = site
    ran = CliRunner().invoke(app, ["clusters", "--config", config, "--json"])
    (cluster,) = json.loads(ran.output)
    assert (cluster["name"], cluster["status"], cluster["target"]) == ("c1", "Creating", 6)
    ran = CliRunner().invoke(app, ["groups", "c1", "--config", config])
    assert "workers" in ran.output
    assert "Creating" in ran.output
    ran = CliRunner().invoke(app, ["events", "--config", config])
    assert "Cluster c1 creation started successfully" in ran.output


def test_the_live_view_ends_with_ctrl_c(
    site: tuple[str, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(clusters.time, "sleep", sleep)
    ran = CliRunner().invoke(app, ["clusters", "c1", "--watch", "--config", site[0]])
    assert ran.exit_code == 0, ran.output
    # No terminal: the picture is there at once, and again only when it has changed.
    assert ran.output.count("c1  Creating  0/6") == 1
    assert "creation started successfully" in ran.output


def test_usage_reads_the_database_of_the_controllers_file(
    site: tuple[str, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, store = site
    monkeypatch.delenv("HPRESUME_DATABASE", raising=False)
    for where in (["--config", config], ["--database", str(store.engine.url)]):
        ran = CliRunner().invoke(app, ["usage", "c9", *where])
        assert "no time of a cluster c9 was metered" in str(ran.exception)
    assert CliRunner().invoke(app, ["usage", "--config", config]).output == "no time was metered\n"
    ran = CliRunner().invoke(app, ["usage", "--config", f"{tmp_path}/none.toml"])
    assert f"{tmp_path}/none.toml: no such file" in str(ran.exception)


def test_looking_makes_no_database(tmp_path: Path) -> None:
    there = tmp_path / "controller.db"
    ran = CliRunner().invoke(app, ["usage", "--database", f"sqlite:///{there}"])
    assert "there is no such database" in str(ran.exception)
    assert not there.exists()


def test_names_are_never_cut_short(world: World) -> None:
    long = "training-" * 6 + "group"
    world.update(workers(1, InstanceGroupName=long))
    world.scripts = lambda node: "no such disk" if node.group == long else ""
    world.settle(10)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(clusters._groups_table([world.state]))
    text = console.export_text()
    assert f"\n{long} " in text
    assert f"{long}: Lifecycle scripts did not run successfully: no such disk" in text


def test_what_a_node_waits_for_that_has_no_machine() -> None:
    def following(world: World, name: str) -> str:
        return next(x.next_step for x in all_lines({}, [], [world.state], 0.0) if x.node == name)

    world = World(CONTROLLER, workers(1))
    world.step()
    assert following(world, "workers-1") == "its cluster's controller is up"
    world.scripts = lambda node: "exit code 7"
    world.settle(10)
    assert following(world, "controller-1").startswith("an update of its cluster, which is Failed")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["clusters", "c9"], "there is no cluster c9 (existing: c1)"),
        (["groups", "--watch", "--json"], "--watch draws for people"),
        (["usage", "c9"], "no time of a cluster c9 was metered"),
    ],
)
def test_mistakes_are_one_line(site: tuple[str, Store], argv: list[str], said: str) -> None:
    where = ["--database", str(site[1].engine.url)] if argv[0] == "usage" else ["--config", site[0]]
    ran = CliRunner().invoke(app, [*argv, *where])
    assert isinstance(ran.exception, UsageError)
    assert said in str(ran.exception)


def test_events_of_a_node_are_its_own(tmp_path: Path) -> None:
    from provision_service import served, until
    from simulated_provider import SimulatedProvider

    provider = SimulatedProvider()
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    with served(store, provider) as running:
        running.service.create_cluster(spec(CONTROLLER, workers(2)))
        until(lambda: running.service.cluster("c1").group("workers").current_count == 2)
        with store.read() as session:
            told = history.latest(session, 100)
            ours = history.latest(session, 100, node="workers-2")
            newest = history.latest(session, 1)
            later = history.since(session, newest[0].time)
    assert {event.node for event in ours} == {"workers-2"}
    assert ours == tuple(event for event in told if event.node == "workers-2")
    assert {event.level for event in told} == {Level.INFO}
    assert [event.time for event in told] == sorted(event.time for event in told)
    assert later == ()
    assert newest[0].cluster == "c1"
