"""When a requeued job may be brought back, and how the finisher is told which one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_mock import MockerFixture

from hpresume.resume import finisher
from hpresume.resume.finisher import Finishing, is_ready
from hpresume.resume.model import NodeFault, Sign
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.models import Job, JobState, Node

PLAN = Finishing(7, 1, 3, ("n3",), ())
PENDING = Job(7, JobState.PENDING, restarts=2)


def flagged(job: Job, *flags: str) -> Job:
    return replace(job, flags=frozenset(flags))


@pytest.mark.parametrize(
    ("job", "ready"),
    [
        (PENDING, True),
        (flagged(PENDING, "REQUEUED"), True),
        # An update of a job that is still COMPLETING corrupts its GPU accounting.
        (flagged(PENDING, "COMPLETING"), False),
        (flagged(PENDING, "COMPLETING", "REQUEUED"), False),
        # Not requeued yet.
        (replace(PENDING, restarts=1), False),
        (Job(7, JobState.RUNNING, restarts=1), False),
        (flagged(Job(7, JobState.RUNNING, restarts=1), "COMPLETING"), False),
        # Its end, and nothing that says that it comes back.
        (flagged(Job(7, JobState.NODE_FAIL, restarts=1), "COMPLETING"), False),
        (flagged(Job(7, JobState.NODE_FAIL, restarts=1), "REQUEUED"), False),
        (Job(7, JobState.CANCELLED, restarts=1), None),
        (Job(7, JobState.COMPLETED, restarts=2), None),
        # Slurm or somebody else was faster.
        (Job(7, JobState.RUNNING, restarts=2), None),
    ],
)
def test_is_ready(job: Job, ready: bool | None) -> None:
    assert is_ready(job, PLAN) is ready


@settings(deadline=None)
@given(st.sampled_from(JobState), st.frozensets(st.sampled_from(["COMPLETING", "REQUEUED"])))
def test_a_job_is_never_updated_while_it_completes(state: JobState, flags: frozenset[str]) -> None:
    ready = is_ready(Job(7, state, flags, restarts=2), PLAN)
    assert not ready or (state is JobState.PENDING and "COMPLETING" not in flags)


@pytest.mark.parametrize(
    ("needed", "silent", "excluded"),
    [
        (3, (), ("n3",)),
        (3, ("n4",), ("n3", "n4")),
        # The job would be held for good.
        (3, ("n4", "n5"), ("n3",)),
    ],
)
def test_nodes_that_died_unnoticed_are_kept_out(
    mocker: MockerFixture, needed: int, silent: tuple[str, ...], excluded: tuple[str, ...]
) -> None:
    names = [f"n{i}" for i in range(1, 6)]
    known = {n: Node(n, frozenset({"IDLE"}), partitions=("p",)) for n in names}
    known["n9"] = Node("n9", frozenset({"IDLE"}), partitions=("other",))
    gateway = mocker.create_autospec(CliGateway, instance=True)
    gateway.nodes.return_value = known
    gateway.job.return_value = replace(PENDING, partition="p")
    faults = tuple(NodeFault(n, Sign.LOST, "no answer") for n in silent)
    look = mocker.create_autospec(finisher.look_once, return_value=faults)
    assert finisher.choose(gateway, replace(PLAN, num_nodes=needed), look) == excluded
    assert look.call_args.args[0] == ["n1", "n2", "n4", "n5"]


NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True), max_size=4).map(tuple)


@settings(deadline=None)
@given(st.builds(Finishing, *[st.integers(0, 2**31)] * 3, NAMES, NAMES, st.just(20.0)))
def test_the_plan_survives_the_command_line(plan: Finishing) -> None:
    argv = plan.to_argv()
    assert all(isinstance(word, str) for word in argv)
    assert Finishing.from_argv(argv) == plan
