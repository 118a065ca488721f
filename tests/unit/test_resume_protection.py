"""What is announced at the start of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpresume.config import ResumeSettings
from hpresume.resume.model import Cause, Context, History, Snapshot, StepShape, Verdict
from hpresume.resume.protection import lines, lost_host_seconds, requeue_seconds
from hpresume.slurm.models import ClusterConfig, Job, JobState

POLICY = ResumeSettings()
CONFIG = ClusterConfig(
    cluster_name="c",
    version=(24, 11, 5),
    slurmd_timeout_s=300,
    kill_wait_s=30,
    slurmd_port=6818,
    proctrack="proctrack/linuxproc",
    prolog_flags=frozenset(),
    scheduler_parameters=("permit_job_expansion",),
    job_requeue=True,
)
CGROUP = replace(CONFIG, proctrack="proctrack/cgroup")
GPU_JOB = Job(
    7,
    JobState.RUNNING,
    nodes=("n1", "n2", "n3"),
    num_nodes=3,
    batch=True,
    batch_host="n1",
    requeue=True,
    tres_gres={"gres/gpu": 4},
)
CPU_JOB = replace(GPU_JOB, tres_gres={})
SALLOC = replace(CPU_JOB, batch=False, batch_host="")
GPU_SALLOC = replace(GPU_JOB, batch=False, batch_host="")


def standing(of: Job | None, nodes: str = "n1 n2 n3", **fields: object) -> Snapshot:
    names = tuple(nodes.split())
    base = Snapshot(
        Context.BATCH, Verdict(Cause.COMPLETED), 0, StepShape(names, len(names)), CONFIG, of
    )
    return replace(base, **fields)  # type: ignore[arg-type]


FOUR = replace(GPU_JOB, nodes=("n1", "n2", "n3", "n4"), num_nodes=4)
AFTER = "after the loss of a node "
WARNING = "warning: after the loss of a node the step cannot go on: "


@pytest.mark.parametrize(
    ("snapshot", "policy", "said"),
    [
        (standing(FOUR), POLICY, f"{AFTER}the step goes on with a spare of the job"),
        (standing(CPU_JOB), POLICY, f"{AFTER}the step goes on with a new node, merged into"),
        (standing(GPU_JOB), POLICY, f"{AFTER}the job is requeued, to run again in about 5 s"),
        (
            standing(GPU_JOB, config=CGROUP),
            POLICY,
            f"{AFTER}the job is requeued, to run again in about 526 s"
            " (proctrack/cgroup ends the process that could speed it up)",
        ),
        (
            standing(SALLOC, context=Context.STANDALONE),
            POLICY,
            f"{AFTER}the step goes on in a new allocation",
        ),
        (standing(replace(GPU_JOB, requeue=False)), POLICY, WARNING),
        (standing(GPU_SALLOC, context=Context.ALLOCATION), POLICY, WARNING),
        (standing(FOUR), replace(POLICY, ladder=("same",)), WARNING),
        (standing(FOUR, unusable=frozenset({"n4"})), replace(POLICY, ladder=("spare",)), WARNING),
        (standing(FOUR), replace(POLICY, max_resumes=0), f"{WARNING}max_resumes = 0 is reached"),
        (
            standing(FOUR, history=History(resumes=10)),
            POLICY,
            f"{WARNING}max_resumes = 10 is reached",
        ),
    ],
    ids=[
        "spare", "grow", "requeue", "slow requeue", "srun alone", "no requeue", "salloc", "ladder",
        "bad spare", "no resumes", "budget",
    ],
)  # fmt: skip
def test_what_a_lost_node_means(snapshot: Snapshot, policy: ResumeSettings, said: str) -> None:
    assert lines(snapshot, policy)[1].startswith(said)


def test_the_first_line_names_nodes_spares_and_heartbeat() -> None:
    policy = replace(POLICY, heartbeat=0.5)
    first = lines(standing(FOUR), policy)[0]
    assert first == "protecting the step on n1,n2,n3: heartbeat every 0.5 s, spare n4"
    assert "spare" not in lines(standing(GPU_JOB), policy)[0]


def test_a_bad_node_is_no_spare() -> None:
    said = lines(standing(FOUR, unusable=frozenset({"n4"})), POLICY)
    assert "spare" not in said[0]


def test_a_node_with_other_steps_is_the_last_spare() -> None:
    five = replace(FOUR, nodes=("n1", "n2", "n3", "n4", "n5"), num_nodes=5)
    assert lines(standing(five, busy=frozenset({"n4"})), POLICY)[0].endswith(", spare n5")
    busy = frozenset({"n4", "n5"})
    first = lines(standing(five, busy=busy), POLICY)[0]
    assert first.endswith(", spare n4,n5 beside other steps")


@pytest.mark.parametrize(
    ("here", "warned"), [("n2", True), ("n9", False), ("", False)], ids=["inside", "outside", "no"]
)
def test_the_loss_of_the_node_that_a_shell_of_the_job_runs_on(here: str, warned: bool) -> None:
    said = lines(standing(SALLOC, context=Context.ALLOCATION, here=here), POLICY)
    text = f"warning: the loss of {here}, on which this srun runs, ends the step"
    assert (text in said) is warned
    assert not any(
        "on which this srun" in line for line in lines(standing(FOUR, here="n1"), POLICY)
    )


def test_the_loss_of_the_batch_host_is_slurms_to_handle() -> None:
    said = lines(standing(GPU_JOB), POLICY)
    assert len(said) == 3
    assert said[2] == (
        "after the loss of n1, which runs the batch script, Slurm itself requeues the job"
        " in about 526 s"
    )


def test_the_loss_of_the_batch_host_without_requeue_is_a_warning() -> None:
    said = lines(standing(replace(FOUR, requeue=False)), POLICY)
    assert said[2].startswith("warning: the loss of n1, which runs the batch script, ends the job")


@pytest.mark.parametrize(
    "snapshot",
    [
        standing(SALLOC, context=Context.ALLOCATION),
        standing(CPU_JOB, context=Context.ATTACHED),
    ],
)
def test_no_word_about_a_batch_host_elsewhere(snapshot: Snapshot) -> None:
    assert not any("batch script" in line for line in lines(snapshot, POLICY)[2:])


def test_a_step_on_the_batch_host_alone_is_told_about_that_only() -> None:
    said = lines(standing(replace(GPU_JOB, nodes=("n1",), num_nodes=1), "n1"), POLICY)
    assert len(said) == 2
    assert "which runs the batch script" in said[1]


def test_a_step_without_a_known_job_says_so() -> None:
    said = lines(standing(None), POLICY)
    assert said[1].startswith("warning: ")


@pytest.mark.parametrize(
    ("fast", "waits", "seconds"),
    [(True, False, 5), (False, False, 126), (True, True, 405), (False, True, 526)],
)
def test_requeue_seconds(fast: bool, waits: bool, seconds: float) -> None:
    assert requeue_seconds(CONFIG, fast=fast, waits_for_nodes=waits) == seconds


@pytest.mark.parametrize(
    ("policy", "missing"),
    [
        (POLICY, ""),
        (replace(POLICY, regrow=True, checkpoint="/c", min_nodes=2), ""),
        (replace(POLICY, regrow=True, min_nodes=2), "HPRESUME_CHECKPOINT"),
        (replace(POLICY, regrow=True, checkpoint="/c"), "HPRESUME_MIN_NODES"),
        (replace(POLICY, regrow=True), "HPRESUME_CHECKPOINT"),
    ],
)
def test_regrow_says_what_it_needs(policy: ResumeSettings, missing: str) -> None:
    said = [line for line in lines(standing(GPU_JOB), policy) if "regrow" in line]
    if missing:
        (line,) = said
        assert line.startswith("warning: regrow does nothing without")
        assert missing in line
    else:
        assert said == []


HANG_IN_VAIN = (
    "warning: hang_timeout does nothing without heartbeat_file (HPRESUME_HEARTBEAT_FILE: the file"
    " that every rank touches)"
)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (POLICY, []),
        (replace(POLICY, hang_timeout=5.0), [HANG_IN_VAIN]),
        (
            replace(POLICY, hang_timeout=5.0, heartbeat_file="/t/{rank}"),
            ["taken for a hang: a rank that is silent for 5 s"],
        ),
        (
            replace(POLICY, heartbeat_file="/t/{rank}", hang_timeout=5.0, output_timeout=60.0),
            ["taken for a hang: a rank that is silent for 5 s, or no output for 60 s"],
        ),
    ],
)
def test_what_is_taken_for_a_hang_is_said(policy: ResumeSettings, said: list[str]) -> None:
    assert [line for line in lines(standing(GPU_JOB), policy) if "hang" in line] == said


def test_output_that_nobody_sees_is_said() -> None:
    policy = replace(POLICY, output_timeout=60.0)
    said = lines(standing(GPU_JOB), policy, sees_output=False)
    assert [line for line in said if "output" in line] == [
        "warning: output_timeout does nothing: it needs the step's output in one file, not on a"
        " terminal, in a pipe, or in a file a task"
    ]
    assert not [line for line in said if "hang" in line]


def test_min_nodes_that_the_step_does_not_have_is_said() -> None:
    size = len(standing(GPU_JOB).step.nodes)

    def said(min_nodes: int) -> list[str]:
        found = lines(standing(GPU_JOB), replace(POLICY, min_nodes=min_nodes))
        return [line for line in found if "min_nodes" in line]

    assert said(size) == []
    assert said(size + 1) == [
        f"warning: min_nodes is {size + 1}, but the step has {size} nodes:"
        " it never goes on with fewer"
    ]


@pytest.mark.parametrize(
    ("nodes", "tcp_timeout_s", "plugin", "expected"),
    [
        (3, 2, True, 10.0),
        (8, 10, True, 10.0),
        (3, 2, False, 20.3),
        (6, 1, False, 14.3),
        (7, 2, False, 39.3),
        (100, 1, False, 28.3),
    ],
)
def test_how_long_the_loss_of_the_batch_host_takes(nodes, tcp_timeout_s, plugin, expected):
    config = replace(CONFIG, tcp_timeout_s=tcp_timeout_s)
    assert lost_host_seconds(config, nodes, plugin=plugin) == pytest.approx(expected)


REPLACE = replace(POLICY, replace_timeout=120.0)
REGROW = replace(POLICY, min_nodes=2, regrow=True, checkpoint="/ckpt")


@pytest.mark.parametrize(
    ("policy", "version", "of", "said"),
    [
        (REPLACE, (21, 8, 5), GPU_JOB, "warning: replace_timeout does nothing: a step with GPUs"),
        (REGROW, (21, 8, 5), GPU_JOB, "warning: regrow does nothing: a step with GPUs"),
        (POLICY, (21, 8, 5), GPU_JOB, ""),
        (REPLACE, (21, 8, 5), CPU_JOB, ""),
        (REPLACE, (22, 5, 8), GPU_JOB, ""),
    ],
)
def test_a_return_that_would_be_in_vain_is_said(
    policy: ResumeSettings, version: tuple[int, int, int], of: Job, said: str
) -> None:
    found = lines(standing(of, config=replace(CONFIG, version=version)), policy)
    assert [line for line in found if "does nothing" in line] == [
        f"{said} under Slurm before 22.05 cannot start over the dead step of a lost node"
    ] * bool(said)


def test_a_step_that_cannot_overlap_waits_for_nobody() -> None:
    step = StepShape(("n1", "n2", "n3"), 3, can_overlap=False)
    found = lines(standing(GPU_JOB, step=step), REPLACE)
    assert "warning: replace_timeout does nothing: srun --exclusive" in "\n".join(found)
