"""When a step with fewer nodes is left for one on all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpresume.config import ResumeSettings
from hpresume.resume.model import (
    Cause,
    Context,
    History,
    Restart,
    Rung,
    Snapshot,
    StepShape,
    Verdict,
)
from hpresume.resume.regrow import MOST_S, QUIET_S, Outlook, Sight, after_look, full_start, is_time
from hpresume.slurm.models import ClusterConfig, Job, JobState

NOW = 1_000_000.0
POLICY = ResumeSettings(min_nodes=2, regrow=True, checkpoint="/ckpt")
CONFIG = ClusterConfig(
    cluster_name="c",
    version=(22, 5, 8),
    slurmd_timeout_s=300,
    kill_wait_s=30,
    slurmd_port=6818,
    proctrack="proctrack/linuxproc",
    prolog_flags=frozenset(),
    scheduler_parameters=(),
    job_requeue=True,
)
JOB = Job(
    7,
    JobState.RUNNING,
    nodes=("n1", "n2", "n3"),
    num_nodes=3,
    batch=True,
    batch_host="n1",
    requeue=True,
    tres_gres={"gres/gpu": 4},
)
ALL = ("n1", "n2", "n3")
FEWER = Snapshot(
    Context.BATCH,
    Verdict(Cause.COMPLETED),
    0,
    StepShape(("n1", "n2"), 3, tasks_per_node=1),
    CONFIG,
    JOB,
)

STARTS = [
    ("all nodes are there", FEWER, POLICY, Restart(Rung.SPARE, ALL)),
    (
        "over the dead step of the first attempt",
        replace(FEWER, haunted=frozenset(ALL)),
        POLICY,
        Restart(Rung.SPARE, ALL, overlap=True),
    ),
    (
        "no budget is used",
        replace(FEWER, history=History(resumes=10, without_progress=5)),
        POLICY,
        Restart(Rung.SPARE, ALL),
    ),
    (
        "a node is not back yet",
        replace(FEWER, unusable=frozenset({"n3"})),
        POLICY,
        "not enough good nodes in the job",
    ),
    (
        "it has left the job",
        replace(FEWER, job=replace(JOB, nodes=("n1", "n2"))),
        POLICY,
        "not enough good nodes in the job",
    ),
    (
        "the user excludes it",
        replace(FEWER, step=replace(FEWER.step, excluded=frozenset({"n3"}))),
        POLICY,
        "not enough good nodes in the job",
    ),
    (
        "it has all nodes",
        replace(FEWER, step=replace(FEWER.step, nodes=ALL)),
        POLICY,
        "it has all its nodes",
    ),
    (
        "the job is about to end",
        replace(FEWER, job=replace(JOB, end_time=NOW + 10)),
        POLICY,
        "10 s are left of the job's time limit",
    ),
    (
        "no other way is switched on",
        FEWER,
        replace(POLICY, ladder=("fewer",)),
        Restart(Rung.FEWER, ALL),
    ),
]


@pytest.mark.parametrize(
    ("snapshot", "policy", "wanted"), [c[1:] for c in STARTS], ids=[c[0] for c in STARTS]
)
def test_full_start(snapshot: Snapshot, policy: ResumeSettings, wanted: Restart | str) -> None:
    assert full_start(snapshot, policy, NOW) == wanted


THERE, AWAY = ALL, ()

#: Looks at (time, nodes, checkpoint's time), and when it is first time to leave.
LOOKS = [
    ("nobody is back", [(0, AWAY, 5), (5, AWAY, 8)], None),
    ("no checkpoint since", [(0, THERE, 5), (1, THERE, 5)], None),
    ("there never was a checkpoint", [(0, THERE, 0), (1, THERE, 0)], None),
    ("a checkpoint before the return", [(0, AWAY, 5), (5, AWAY, 8), (10, THERE, 8)], None),
    ("a checkpoint after it", [(0, THERE, 5), (1, THERE, 8)], 1 + QUIET_S),
    ("the first one at all", [(0, THERE, 0), (1, THERE, 8)], 1 + QUIET_S),
    ("written for a while", [(0, THERE, 5), (1, THERE, 8), (2, THERE, 9)], 2 + QUIET_S),
    ("the node went again", [(0, THERE, 5), (1, THERE, 8), (2, AWAY, 8)], None),
    (
        "it went and came back after the checkpoint",
        [(0, THERE, 5), (1, AWAY, 8), (2, THERE, 8)],
        None,
    ),
    ("an older one was put in its place", [(0, THERE, 5), (1, THERE, 3)], None),
    (
        "never quiet",
        [(0, THERE, 5), *((t, THERE, 5.0 + t) for t in range(1, 100))],
        1 + MOST_S,
    ),
]


@pytest.mark.parametrize(("looks", "wanted"), [c[1:] for c in LOOKS], ids=[c[0] for c in LOOKS])
def test_when(looks: list[tuple[float, tuple[str, ...], float]], wanted: float | None) -> None:
    outlook, found = Outlook(), None
    pending = list(looks)
    for tenth in range(1100):
        now = tenth / 10
        if pending and pending[0][0] <= now:
            _, nodes, saved = pending.pop(0)
            outlook = after_look(outlook, Sight(nodes, saved), now)
        if is_time(outlook, now):
            found = now
            break
    assert found == (None if wanted is None else pytest.approx(wanted))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=30))
def test_never_without_a_newer_checkpoint_since_the_nodes_came(
    looks: list[tuple[bool, int]],
) -> None:
    outlook, since = Outlook(), None
    for now, (there, saved) in enumerate(looks):
        outlook = after_look(outlook, Sight(ALL if there else (), saved), now)
        since = None if not there else saved if since is None else since
        if is_time(outlook, now) or is_time(outlook, now + 2 * MOST_S):
            assert since is not None
            assert saved > since
