"""From silent ranks and silent output to a hang that is examined first.

The FAKE watch says what the test wants of beats and touches; time is a number.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from hpresume.config import ResumeSettings
from hpresume.errors import SlurmTransientError
from hpresume.resume import output
from hpresume.resume.hang import Touch
from hpresume.resume.hang_watch import Finding, HangWatch
from hpresume.resume.output import OutputFile
from hpresume.resume.watch import Watch

NODES = ["n0", "n1"]
BEATS = ResumeSettings(heartbeat_file="/t/{rank}", hang_timeout=10.0, hang_grace=30.0)
PRINTS = ResumeSettings(output_timeout=10.0, hang_grace=0.0)
RUNNING = "rank 0 on n0\nrank 1 on n1\n"


@dataclass
class FakeWatch:
    """Beats of nodes and touches of ranks, by the time of the last one."""

    told: dict[str, float]
    touches: dict[int, Touch] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    is_running: bool = True

    def told_at(self, node: str) -> float:
        return self.told.get(node, 0.0)

    def mute(self, nodes: Iterable[str], _now: float, _limit: float) -> frozenset[str]:
        return self.silent & set(nodes)


class Scene:
    """A hang watch, what it hears, and what an examination would find."""

    def __init__(self, settings: ResumeSettings, out: OutputFile | None = None) -> None:
        self.ears = FakeWatch({})
        self.found = RUNNING
        self.examined: list[list[str]] = []
        self.watch = HangWatch(settings, out, self._examine)

    def _examine(self, nodes: Sequence[str]) -> str:
        self.examined.append(list(nodes))
        if not self.found:
            raise SlurmTransientError("no thread")
        return self.found

    def hear(self, now: float, *ranks: int, nodes: Iterable[str] = NODES) -> None:
        """A beat of ``nodes``, with touches of ``ranks``; rank N is on node nN."""
        self.ears.touches |= {r: Touch(now, f"n{r}") for r in ranks}
        self.ears.told |= dict.fromkeys(nodes, now)

    def step(self, now: float) -> Finding | None:
        """One step; where it begins to examine, another one once that is over."""
        found = self.watch.step(cast(Watch, self.ears), NODES, 2, now)
        if self.watch.fd is None:
            return found
        assert found is None
        assert select.select([self.watch.fd], [], [], 10.0)[0]
        return self.watch.step(cast(Watch, self.ears), NODES, 2, now)


def test_a_silent_rank_is_examined_and_then_a_hang() -> None:
    scene = Scene(BEATS)
    scene.hear(1.0, 0, 1)
    assert scene.step(1.0) is None
    scene.hear(12.0, 0)
    assert scene.step(12.0) == Finding("rank 1 on n1 silent for 11 s", (), RUNNING)
    assert scene.examined == [NODES]


def test_a_rank_that_has_ended_is_waited_for_no_more(capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene(BEATS)
    scene.hear(1.0, 0, 1)
    scene.step(1.0)
    scene.found = "rank 0 on n0\nno rank is left on n1\n"
    for now in range(12, 100, 10):
        scene.hear(float(now), 0)
        assert scene.step(float(now)) is None
    assert len(scene.examined) == 1
    assert "[Auto Resume] rank 1 ended; no heartbeat" in capfd.readouterr().err
    scene.hear(110.0)
    hung = scene.step(110.0)
    assert hung is not None
    assert hung.text == "rank 0 on n0 silent for 18 s"


def test_one_that_goes_on_while_it_is_examined_does_not_hang() -> None:
    scene = Scene(BEATS)
    scene.hear(1.0, 0, 1)
    scene.step(1.0)
    scene.hear(12.0, 0)
    assert scene.watch.step(cast(Watch, scene.ears), NODES, 2, 12.0) is None
    assert scene.watch.fd is not None
    assert select.select([scene.watch.fd], [], [], 10.0)[0]
    scene.hear(12.5, 1)
    assert scene.step(12.5) is None
    assert scene.watch.fd is None


@pytest.mark.parametrize("answer", ["", "no stacks: srun: no such file\n", "rank 0 on n0\n"])
def test_without_evidence_it_is_a_hang_all_the_same(answer: str) -> None:
    scene = Scene(BEATS)
    scene.hear(1.0, 0, 1)
    scene.step(1.0)
    scene.hear(12.0, 0)
    scene.found = answer
    hung = scene.step(12.0)
    assert hung is not None
    assert hung.text == "rank 1 on n1 silent for 11 s"


def test_what_a_node_has_not_told_yet_is_no_silence() -> None:
    """Beats that come rarely, or late: a touch may be on its way with the next one."""
    scene = Scene(BEATS)
    scene.hear(1.0, 0, 1)
    scene.step(1.0)
    scene.hear(60.0, 0, nodes=["n0"])
    assert scene.step(60.0) is None
    scene.hear(61.0, 1, nodes=["n1"])
    assert scene.step(61.0) is None
    assert scene.examined == []


def test_nothing_is_judged_without_a_watch_step() -> None:
    scene = Scene(BEATS)
    scene.hear(1.0, 0, 1)
    scene.step(1.0)
    scene.hear(50.0)
    scene.ears.is_running = False
    assert scene.step(50.0) is None


def test_a_frozen_node_is_blamed_for_the_ranks_that_wait_for_it() -> None:
    scene = Scene(BEATS)
    scene.hear(1.0, 0, 1)
    scene.step(1.0)
    scene.hear(12.0, 0, nodes=["n0"])
    scene.ears.silent = frozenset({"n1"})
    assert scene.step(12.0) is None
    scene.hear(23.0, nodes=["n0"])
    scene.found = "rank 0 on n0\n"
    assert scene.step(23.0) == Finding("rank 0 on n0 silent for 11 s", ("n1",), scene.found)
    assert scene.examined == [["n0"]]  # the other one would not answer


def test_nobody_touched_is_told_with_the_file() -> None:
    scene = Scene(BEATS)
    for now in (1.0, 32.0):
        scene.hear(now)
        hung = scene.step(now)
    assert hung is not None
    assert hung.text == "no rank has touched its heartbeat file for 31 s (/t/{rank})"


def test_time_in_which_this_process_was_stopped_does_not_count(tmp_path: Path) -> None:
    """As by ``scontrol suspend``, which stops the step and its output too."""
    path = tmp_path / "out"
    path.write_text("x")
    scene = Scene(PRINTS, OutputFile((str(path),), 0.0))
    assert scene.step(9.0) is None
    scene.watch.forgive(3600.0)
    assert scene.step(3610.0) is None
    assert scene.step(3611.0) == Finding("no output for 11 s", (), RUNNING)


def test_output_in_any_of_the_files_counts(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("x")
    scene = Scene(PRINTS, OutputFile((str(out), str(err)), 0.0))
    assert scene.watch.looks_at_output
    err.write_text("it was not there yet")
    assert scene.step(9.0) is None
    assert scene.step(18.0) is None
    assert scene.step(20.0) is not None


# -- where the output goes -----------------------------------------------------


@pytest.mark.parametrize(
    ("out", "err", "targets"),
    [
        ("", "", (1, 2)),
        ("all", "", (1, 2)),
        ("0", "", (1, 2)),
        ("log", "", ("log",)),
        ("log", "log.err", ("log", "log.err")),
        ("", "log.err", (1, "log.err")),
        ("", "none", (1,)),
        ("train-%j.log", "", ("train-7.log",)),
        ("train-%j-%t.log", "", ()),
        ("none", "", ()),
        ("log", "log.%t", ("log",)),
    ],
)
def test_where_srun_writes_to(
    tmp_path: Path, out: str, err: str, targets: tuple[int | str, ...]
) -> None:
    kept = os.dup(1), os.dup(2)
    try:
        with (tmp_path / "batch").open("w") as batch:
            os.dup2(batch.fileno(), 1)
            os.dup2(batch.fileno(), 2)
        found = output.find(out, err, 7)
    finally:
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for fd in kept:
            os.close(fd)
    assert found == targets


def test_a_pipe_tells_nothing() -> None:
    kept = os.dup(1)
    reader, writer = os.pipe()
    try:
        os.dup2(writer, 1)
        found = output.find("", "", 7), output.find("log", "", 7)
    finally:
        os.dup2(kept, 1)
        for fd in (kept, reader, writer):
            os.close(fd)
    assert found == ((), ("log",))
    assert output.find("%j.log", "", None) == ()
