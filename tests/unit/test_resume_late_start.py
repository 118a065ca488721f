"""What is said and done about a step that does not begin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pytest_mock import MockerFixture

from hpresume.config import ResumeSettings
from hpresume.resume.command import SrunCall
from hpresume.resume.execute import Executor
from hpresume.resume.journal import Past
from hpresume.resume.late_start import LateStart
from hpresume.resume.launch import Launch
from hpresume.resume.logbook import Logbook
from hpresume.resume.process import Child
from hpresume.resume.recovery import Recovery
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.models import Job, JobState, Step

JOB = Job(7, JobState.RUNNING, nodes=("n1", "n2"), num_nodes=2, tres_gres=("gres/gpu:4",))
OTHER = Step(7, "1", "RUNNING", ("n1",), name="other")
WATCH = Step(7, "2", "RUNNING", ("n1",), name="hpresume-watch")


@pytest.fixture
def late(mocker: MockerFixture) -> LateStart:
    call = SrunCall("/usr/bin/srun", ("srun", "true"), 1, True)
    launch = Launch(call, call, ResumeSettings(), {}, 7, Past(), 0, "key")
    gateway = mocker.create_autospec(CliGateway, instance=True)
    gateway.job.return_value = JOB
    gateway.steps.return_value = (OTHER, WATCH)
    logbook = mocker.create_autospec(Logbook, instance=True)
    logbook.attempt = 2
    logbook.ended_steps.return_value = frozenset()
    executor = mocker.create_autospec(Executor, instance=True)
    return LateStart(
        launch, gateway, executor, mocker.create_autospec(Recovery, instance=True), logbook
    )


@pytest.mark.parametrize(
    ("waited", "said"), [(6.0, False), (16.0, True)], ids=["soon", "after a while"]
)
def test_a_resumed_step_that_waits_for_another_one_says_so_once(
    late: LateStart,
    mocker: MockerFixture,
    capfd: pytest.CaptureFixture[str],
    waited: float,
    said: bool,
) -> None:
    child = mocker.create_autospec(Child, instance=True)
    for _ in range(2):
        late.find_out(7, waited, frozenset())
        assert late.instead_of(child) is child
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == int(said)
    assert not said or "other steps of this job use (1); with --overlap" in lines[0]


def test_the_next_attempt_says_it_again(
    late: LateStart, mocker: MockerFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    child = mocker.create_autospec(Child, instance=True)
    for _ in range(2):
        late.find_out(7, 16.0, frozenset())
        late.instead_of(child)
        late.next_attempt()
    assert capfd.readouterr().err.count("has not begun yet") == 2


def test_a_first_attempt_waits_as_plain_srun_does(
    late: LateStart, mocker: MockerFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    late._logbook.attempt = 1  # type: ignore[misc]
    late.find_out(7, 60.0, frozenset())
    late.instead_of(mocker.create_autospec(Child, instance=True))
    assert capfd.readouterr().err == ""


def test_cores_that_no_step_has_are_shared(late: LateStart, mocker: MockerFixture) -> None:
    late._gateway.steps.return_value = (WATCH,)  # type: ignore[attr-defined]
    late._gateway.job.return_value = replace(JOB, flags=frozenset(), num_nodes=1)  # type: ignore[attr-defined]
    mocker.patch.object(Job, "is_resized", True)
    begin = mocker.patch.object(LateStart, "_begin_anew")
    child = mocker.create_autospec(Child, instance=True)
    late.find_out(7, 6.0, frozenset())
    late.instead_of(child)
    begin.assert_called_once_with(7, child, ("--overlap",))


def test_where_overlap_would_not_help_that_is_said_once(
    late: LateStart, mocker: MockerFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """GPUs before 22.05."""
    late._gateway.steps.return_value = (WATCH,)  # type: ignore[attr-defined]
    late._gateway.job.return_value = replace(JOB, tres_gres={"gres/gpu": 4})  # type: ignore[attr-defined]
    late._gateway.config.return_value.overlaps_everything = False  # type: ignore[attr-defined]
    mocker.patch.object(Job, "is_resized", True)
    child = mocker.create_autospec(Child, instance=True)
    for waited in (6.0, 16.0):
        late.find_out(7, waited, frozenset())
        assert late.instead_of(child) is child
    said = capfd.readouterr().err
    assert said.count("the job has to start again (scontrol requeue 7)") == 1
