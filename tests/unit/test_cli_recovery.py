"""``hpresume nodes``, ``replace`` and ``events`` as commands, with a cluster in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from recovery_world import FakeSlurm

from hpresume.cli import recovery as commands
from hpresume.cli.app import main
from hpresume.controller import main as controller
from hpresume.errors import SlurmDeniedError, StoreError
from hpresume.recovery import reasons
from hpresume.store import Event, Lease, events, open_store

REASON = 'bad [/bold] [red]disk[/red] [hpresume gpu-xid] "q" 日本 {x}'


@pytest.fixture
def slurm(monkeypatch) -> FakeSlurm:
    known = FakeSlurm(("n1", "n2", "n3", "login"))
    monkeypatch.setattr(controller, "reach", lambda config: (known, None, None))
    return known


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "c.toml"
    file.write_text(
        f'[controller]\ndatabase = "sqlite:///{tmp_path}/c.db"\n'
        '[recovery]\nnever = "login"\n[provider]\ntype = "devcluster"\n'
    )
    open_store(f"sqlite:///{tmp_path}/c.db").close()  # as a controller makes it
    return str(file)


def test_what_others_wrote_is_shown_as_it_is_and_one_line_a_node(slurm, config, capsys) -> None:
    slurm.update_node("n1", State="FAIL", Reason=REASON + "x" * 3000)
    slurm.update_node("n2", State="FAIL", Reason="two\nlines")
    assert main(["nodes", "--config", config]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NODE", "STATE", "FAULT", "PHASE", "SINCE", "NEXT"]
    assert REASON in first
    assert "two lines" in second
    assert second == second.rstrip()


def test_a_dev_cluster_that_was_never_made_is_not_waited_for(config, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HPRESUME_DEVCLUSTER_DIR", "/nonexistent/clusters")
    file = Path(config)
    file.write_text(file.read_text().replace("[recovery]", 'devcluster = "dve"\n[recovery]'))
    for command in (["nodes"], ["replace", "n1"]):
        assert main([*command, "--config", config]) == 1
        assert capsys.readouterr().err == (
            "hpresume: there is no cluster 'dve' (existing: none); bring it up first\n"
        )


def test_nodes_says_that_nobody_leads(slurm, config, capsys, tmp_path: Path) -> None:
    assert main(["nodes", "--config", config]) == 0
    assert "no controller leads now" in capsys.readouterr().err
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    Lease(store, "ctl", 1e6, lambda: 0.0, lambda: 1e12).try_hold()
    store.close()
    assert main(["nodes", "--config", config]) == 0
    assert capsys.readouterr().err == ""


def test_a_set_of_nodes_is_ordered_a_line_each(slurm, config, capsys) -> None:
    assert main(["replace", "n[1-2],n3", "--config", config]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["n1", "n2", "n3"]
    assert {slurm.known[n].reason for n in ("n1", "n2", "n3")} == {"Action:Replace"}
    assert main(["reboot", "n[1-2]", "--json", "--config", config]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found[1] == {"node": "n2", "state": "FAIL", "reason": "Action:Reboot"}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("n[1-9]", "Slurm knows no node n[4-9]: nothing is ordered"),
        ("n1,login", "(nodes, never) forbids to touch login: nothing is ordered"),
        ("n[1-", "is no list of nodes"),
        ("", "is no list of nodes"),
        ("@all", "is no list of nodes"),
        ("n[1-9999999999]", "is no list of nodes"),
    ],
)
def test_a_set_that_cannot_be_is_refused_as_a_whole(slurm, config, nodes, words, capsys) -> None:
    before = dict(slurm.known)
    assert main(["replace", nodes, "--config", config]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert slurm.known == before


def test_what_cannot_be_ordered_holds_up_no_other_node(slurm, config, capsys, monkeypatch) -> None:
    held = reasons.hold(reasons.Kind.REPLACE, "ordered")
    slurm.update_node("n1", State="FAIL", Reason=held)
    update = slurm.update_node

    def refuse(name: str, **fields: str) -> None:
        if name == "n2":
            raise SlurmDeniedError("n2: not for you")
        update(name, **fields)

    monkeypatch.setattr(slurm, "update_node", refuse)
    assert main(["replace", "n[1-3]", "--config", config]) == 2
    said = capsys.readouterr()
    assert said.out.split()[0] == "n3"
    assert said.err.splitlines() == [
        "hpresume: n1 is being recovered already: see `hpresume nodes`",
        "hpresume: n2: not for you",
        "hpresume: 2 of 3 nodes are left as they are",
    ]
    assert slurm.known["n1"].reason == held


def test_a_recovery_of_before_is_no_hindrance(slurm, config) -> None:
    # Slurm 24.11 keeps the reason of a node that is resumed.
    slurm.known["n1"] = replace(
        slurm.known["n1"], reason=reasons.hold(reasons.Kind.REPLACE, "ordered")
    )
    assert main(["replace", "n1", "--config", config]) == 0


def test_events_say_that_there_are_none(config, capsys) -> None:
    assert main(["events", "--config", config, "--node", "n1"]) == 0
    assert capsys.readouterr().err == "no events yet of n1\n"
    assert main(["events", "--config", config, "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_following_goes_on_when_the_database_is_back(config, capsys, monkeypatch, tmp_path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    read, times = type(store).read, []

    def pause(_: float) -> None:
        times.append(0.0)
        if len(times) == 4:
            with store.write() as session:
                events.add(session, Event(1.0, "x", "it is back"))
        if len(times) == 5:
            raise KeyboardInterrupt

    def stumble(self):
        if len(times) in (1, 2):
            raise StoreError("the database: gone")
        return read(self)

    monkeypatch.setattr(commands.time, "sleep", pause)
    monkeypatch.setattr(type(store), "read", stumble)
    assert main(["events", "--config", config, "--follow"]) == 130
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == "hpresume: the database: gone; it is tried again"
    assert said.err.count("gone") == 1
    assert "it is back" in said.out
    store.close()
