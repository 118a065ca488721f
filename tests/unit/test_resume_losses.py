"""What counts against a silent node."""

from __future__ import annotations

import select
import sys

import pytest
from pytest_mock import MockerFixture

from hpresume.resume.detect import Pulse
from hpresume.resume.losses import Losses, about_mute, is_stale
from hpresume.resume.watch import Watch
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.models import Node


@pytest.mark.parametrize(
    ("asked", "before", "answered", "stale"),
    [
        pytest.param(9.2, None, 10.1, False, id="asked, and Slurm right after it"),
        pytest.param(3.0, None, 10.0, True, id="this host may have been cut off as well"),
        pytest.param(3.0, 2.5, 10.0, True, id="it may just have been connected again"),
        pytest.param(3.0, 1.5, 10.0, False, id="Slurm answered before it and after it"),
        pytest.param(3.0, 5.0, 10.0, True, id="asked before both answers"),
        pytest.param(9.5, 9.0, 10.0, False, id="two answers in a row"),
    ],
)
def test_is_stale(asked: float, before: float | None, answered: float, stale: bool) -> None:
    assert is_stale(asked, before, answered) is stale


@pytest.mark.parametrize(
    ("heard", "is_up", "words"),
    [
        (True, True, "n2 is silent but its address answers; the step goes on"),
        (True, False, "n2 is silent but its address answers; the step goes on"),
        (
            False,
            True,
            "n2 was not heard of yet, but its address answers; the step goes on"
            f" (does {sys.executable} run there?)",
        ),
    ],
)
def test_a_silent_node_that_answers(heard: bool, is_up: bool, words: str) -> None:
    assert about_mute("n2", heard=heard, is_up=is_up) == words


def test_no_node_is_blamed_for_a_watch_step_that_does_not_come_up() -> None:
    said = {about_mute(node, heard=False, is_up=False) for node in ("n1", "n2")}
    assert len(said) == 1
    assert said.pop().startswith("the watch step has not come up on any node yet; ")


@pytest.mark.parametrize("heard", [True, False])
def test_a_node_that_answers_is_only_told_of(
    heard: bool, mocker: MockerFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once; and where no agent ever spoke, what may be missing there."""
    watch = mocker.create_autospec(Watch, instance=True)
    watch.is_running, watch.is_up, watch.has_beaten.return_value = True, True, heard
    watch.last_beat.return_value = 1.0
    gateway = mocker.create_autospec(CliGateway, instance=True)
    gateway.nodes.return_value = {"n1": Node("n1", frozenset({"IDLE"}))}
    losses = Losses(gateway, 0.0, set(), 0.0)
    for now in (5.0, 5.1, 8.0, 8.1):
        assert losses.confirm(watch, ["n1"], {"n1": Pulse.MUTE}, now, ended=False) == ()
        if losses.fd is not None:
            select.select([losses.fd], [], [], 5)
    (line,) = capfd.readouterr().err.splitlines()
    assert "its address answers; the step goes on" in line
    assert (f"(does {sys.executable} run there?)" in line) is not heard


def test_a_probe_right_after_one_that_was_doubted_counts_no_more() -> None:
    """A host that is connected again cannot reach others for a moment ("No route to host")."""
    assert is_stale(10.0, None, 10.0, doubted=10.0)
    assert is_stale(10.9, 9.95, 10.0, doubted=10.0)
    assert not is_stale(11.0, 9.95, 10.0, doubted=10.0)
    assert not is_stale(50.0, 10.0, 50.1, doubted=10.0)
