"""``hpresume deep-check``: mistakes, the lock, and what a killed run left behind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from hpresume.cli.app import main
from hpresume.errors import HpresumeError, UsageError
from hpresume.health.deep import occupy
from hpresume.health.deep.choice import FEATURE
from hpresume.health.deep.occupy import Slurm, clean_up, only_run, taken
from hpresume.slurm.models import Node
from hpresume.slurm.runner import Answer, Runner

HOST = os.uname().nodename.partition(".")[0]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["n[1-"], 2, "cannot be read"),
        (["n1", "--only", "mounts", "--skip", "mounts"], 2, "leave no check"),
        (["n1", "--wait", "inf"], 2, "--wait"),
        ([","], 2, "NODES: name the nodes"),
        ([""], 2, "NODES: name the nodes, such as n[1-8]"),
        (["n1", "--only", "gpu-tmp"], 2, "--only gpu-tmp: unknown check"),
        (["n1", "--skip", "nonsense"], 2, "--skip nonsense: unknown check"),
        (["n1", "--policy", "/nowhere"], 2, "/nowhere: no such file"),
    ],
)
def test_mistakes(
    args: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str], mocker: Any
) -> None:
    mocker.patch("os.geteuid", return_value=0)
    run = mocker.patch("hpresume.health.deep.run.deep_check")
    assert main(["deep-check", *args]) == code
    assert words in capsys.readouterr().err
    run.assert_not_called()


def test_a_user_without_root(capsys: pytest.CaptureFixture[str], mocker: Any) -> None:
    mocker.patch("os.geteuid", return_value=1000)
    assert main(["deep-check", "n1"]) == 1
    assert "deep-check needs root" in capsys.readouterr().err


def test_one_run_at_a_time_and_no_lock_left() -> None:
    with only_run("unit-test"):
        with pytest.raises(UsageError, match="runs on this host already"), only_run("unit-test"):
            pass
        with only_run("unit-test-2"):
            pass
    with only_run("unit-test"):
        pass


def reservation(name: str, nodes: str) -> str:
    return f"ReservationName={name} Nodes={nodes} Flags=IGNORE_JOBS Users=root State=ACTIVE"


class FakeSlurm(Runner):
    """Reservations by name; deleting ``stuck`` fails."""

    def __init__(self, *shown: str, stuck: bool = False) -> None:
        self.shown = list(shown)
        self.stuck = stuck
        self.calls: list[list[str]] = []

    def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
        self.calls.append(list(argv))
        if "show" in argv:
            return Answer("\n".join(self.shown) or "No reservations in the system", "", 0)
        if argv[1] == "delete" and self.stuck:
            return Answer("", "Access/permission denied", 1)
        if argv[0] == "salloc":
            return Answer("", "salloc: error: Job submit/allocate failed: Access denied", 1)
        return Answer("", "", 0)

    def deleted(self) -> list[str]:
        return [argv[2].partition("=")[2] for argv in self.calls if argv[1] == "delete"]


class FakeGateway:
    """Nodes with or without the feature; no jobs."""

    def __init__(self, *marked: str) -> None:
        features = {name: (FEATURE,) if name in marked else () for name in ("n1", "n2", "n3", "n4")}
        self.all = {
            name: Node(
                name,
                frozenset({"IDLE"}),
                partitions=("main",),
                features=("a100", *has),
                available_features=("a100", "old", *has),
            )
            for name, has in features.items()
        }
        self.updated: list[tuple[str, dict[str, str]]] = []

    def nodes(self, names: Any = None) -> dict[str, Node]:
        return self.all if names is None else {name: self.all[name] for name in names}

    def own_jobs(self) -> tuple[()]:
        return ()

    def update_node(self, name: str, **fields: str) -> None:
        self.updated.append((name, fields))


CLEAN = {"AvailableFeatures": "a100,old", "ActiveFeatures": "a100"}


def test_what_killed_runs_of_this_host_left_is_removed() -> None:
    runner = FakeSlurm(
        reservation(f"hpresume-deep-{HOST}-77", "n[1-2]"),
        reservation("hpresume-deep-elsewhere-5", "n3"),
        reservation("maintenance", "n4"),
    )
    gateway = FakeGateway("n1", "n3", "n4")
    said: list[str] = []
    clean_up(Slurm(gateway, runner), said.append)  # type: ignore[arg-type]
    assert runner.deleted() == [f"hpresume-deep-{HOST}-77"]
    # n3 is in a deep check of another host; n4's reservation is no deep check.
    assert dict(gateway.updated) == {"n1": CLEAN, "n4": CLEAN}
    assert said == [f"removing what an interrupted run left behind: hpresume-deep-{HOST}-77"]


def test_nothing_left_behind_is_nothing_to_do() -> None:
    runner, gateway = FakeSlurm(), FakeGateway()
    clean_up(Slurm(gateway, runner), pytest.fail)  # type: ignore[arg-type]
    assert (runner.deleted(), gateway.updated) == ([], [])


def test_a_job_that_does_not_start_leaves_nothing() -> None:
    runner, gateway = FakeSlurm(), FakeGateway()
    with (
        pytest.raises(HpresumeError, match=r"no job on the reserved nodes: .*Access denied"),
        taken(Slurm(gateway, runner), ["n1", "n2"], 0, 60, pytest.fail),  # type: ignore[arg-type]
    ):
        pytest.fail("there is no job")
    assert runner.deleted() == [f"hpresume-deep-{HOST}-{os.getpid()}"]
    shown = {"AvailableFeatures": f"a100,old,{FEATURE}", "ActiveFeatures": f"a100,{FEATURE}"}
    assert [fields for _, fields in gateway.updated[:2]] == [shown, shown]


def test_a_node_that_slurm_does_not_know_is_a_mistake_and_named() -> None:
    runner, gateway = FakeSlurm(), FakeGateway()
    names = ["n1", "n8", "n9"]
    with (
        pytest.raises(UsageError, match="Slurm knows no node n8,n9: nothing is checked"),
        taken(Slurm(gateway, runner), names, 0, 60, pytest.fail),  # type: ignore[arg-type]
    ):
        pytest.fail("there is no such node")
    assert (runner.calls, gateway.updated) == ([], [])


def test_what_was_found_is_told_though_the_nodes_cannot_be_given_back(mocker: Any) -> None:
    mocker.patch.object(occupy.holding, "hold", return_value=occupy.holding.Holding(Runner(), 7))
    runner, gateway = FakeSlurm(stuck=True), FakeGateway()
    said: list[str] = []
    with taken(Slurm(gateway, runner), ["n1"], 0, 60, said.append) as held:  # type: ignore[arg-type]
        assert [node.name for node in held.nodes] == ["n1"]
        assert held.trouble == []
    assert "is not removed yet, the next run does it" in held.trouble[0]
    assert said == held.trouble
