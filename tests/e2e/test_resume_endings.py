"""Endings that are nobody's failure: no resume, and srun's own exit code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from cluster import E2eCluster
from steps import Run
from terminal import CTRL_C, Terminal
from trio import Trio, kill_srun, step_of

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 6, "gpus_per_node": 0, "plugin": True}

#: Ranks that do not end by an interrupt, but only when srun kills them.
IGNORE_INT = "trap '' INT\n"

#: A rank that writes down every signal it gets.
TELL_SIGNALS = """exec python3 -c '
import os, signal
wanted = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
with open(os.environ["RUN_DIR"] + "/signals", "a", buffering=1) as log:
    print(os.environ["SLURM_PROCID"], "ready", file=log)
    while True:
        print(os.environ["SLURM_PROCID"], signal.sigwait(wanted).name, file=log)
'
"""


@pytest.fixture(scope="module", autouse=True)
def limited(machine: None) -> Iterator[tuple[Trio, Trio]]:
    """Steps that run into the time limit of their job, and into their own.

    The shortest limit is a minute, so they run beside all other tests.
    """
    cluster = E2eCluster.start(nodes=6, gpus_per_node=0, plugin=True)
    try:
        yield (
            Trio(cluster, "--time=1", nodes=1),
            Trio(cluster, nodes=1, step="--time=1"),
        )
    finally:
        cluster.down()


def test_the_supervisor_is_asked_to_end(cluster: E2eCluster) -> None:
    trio = Trio(cluster)
    for run in trio:
        kill_srun(run, "TERM")
    trio.ended("cancelled")


def test_the_supervisor_is_interrupted_twice(cluster: E2eCluster) -> None:
    trio = Trio(cluster, on_up=IGNORE_INT)
    for run in trio:
        kill_srun(run, "INT")
        run.wait_output("srun: interrupt (one more within 1 sec to abort)")
        kill_srun(run, "INT")
    assert trio.ended("cancelled") == "137"
    for run in trio:
        assert run.output().count("tasks 0-1: running") == 1


def interrupt(terminal: Terminal, run: Run, protection: str) -> list[str]:
    """Run a step that is interrupted once, and one that is twice; their exit codes."""
    codes = []
    attempt = 1 if protection else 0
    for presses in (1, 2):
        (run.dir / "ranks").unlink(missing_ok=True)
        (run.dir / "stop").unlink(missing_ok=True)
        terminal.press(f"srun {protection} -N2 -n2 {run.rank_script}; echo code=$?\n")
        run.wait_up(attempt, 2)
        if protection:
            terminal.expect("after the loss of a node ")  # the last line
        terminal.press(CTRL_C)
        terminal.expect(r"srun: interrupt \(one more within 1 sec to abort\)")
        between = terminal.expect(r"(?s)(.*)tasks 0-1: running")
        assert "interrupt" not in between[1]
        if presses == 2:
            terminal.press(CTRL_C)
        else:
            run.stop()
        ended = terminal.expect(r"(?s)(.*)code=(\d+)")
        assert "[Auto Resume]" not in ended[1]
        codes.append(ended[2])
        terminal.expect(r"\$ ")
    return codes


@pytest.mark.parametrize("shell", [[], ["salloc", "-N2", "--exclusive"]], ids=["alone", "salloc"])
def test_ctrl_c_on_a_terminal(cluster: E2eCluster, shell: list[str]) -> None:
    run = Run(cluster, HPRESUME_RESUME_ON="any")
    run.write("on_up.sh", IGNORE_INT)
    with Terminal(run, *shell) as terminal:
        codes = interrupt(terminal, run, "")
        assert codes == ["0", "137"]
        assert interrupt(terminal, run, "--auto-resume=1") == codes


def test_a_signal_for_the_tasks_reaches_each_of_them_once(cluster: E2eCluster) -> None:
    trio = Trio(cluster, on_up=TELL_SIGNALS)

    def wait_told(word: str) -> None:
        for run in trio:
            run.wait(
                lambda run=run: run.output("signals").count(f"{word}\n") == 2,
                20,
                f"not every rank says {word}",
            )

    wait_told("ready")
    for signal in ("USR1", "USR2"):
        for run in trio:
            kill_srun(run, signal)
        wait_told(f"SIG{signal}")
    for run in trio:
        lines = run.output("signals").splitlines()
        for rank in "01":
            mine = [line[2:] for line in lines if line[0] == rank]
            assert mine == ["ready", "SIGUSR1", "SIGUSR2"]


def test_the_job_is_cancelled(cluster: E2eCluster) -> None:
    trio = Trio(cluster)
    cluster.exec(["scancel", *(str(run.job_id) for run in trio)], user="trainer", check=True)
    trio.ended("cancelled")


def test_the_step_is_cancelled(cluster: E2eCluster) -> None:
    trio = Trio(cluster)
    cluster.exec(["scancel", *map(step_of, trio)], user="trainer", check=True)
    trio.ended("cancelled")


def test_the_jobs_are_preempted(make_cluster: Callable[..., E2eCluster]) -> None:
    cluster = make_cluster(
        nodes=6, gpus_per_node=0, plugin=True,
        overrides=(
            ("PreemptType", "preempt/partition_prio"),
            ("PreemptMode", "REQUEUE"),
            ("PartitionName", "requeued Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE"),
            ("PartitionName", "cancelled Nodes=ALL PriorityTier=1 PreemptMode=CANCEL"),
            ("PartitionName", "urgent Nodes=ALL PriorityTier=9"),
        ),
    )  # fmt: skip
    requeued = Trio(cluster, "--partition=requeued", nodes=1)
    cancelled = Trio(cluster, "--partition=cancelled", nodes=1)
    urgent = Run(cluster)
    urgent.batch("srun {rank}", "--partition=urgent", "-N6", "--exclusive")
    urgent.wait_up(0, 6)
    cancelled.ended("preempted")
    # Of a requeue nobody says why; the signal may be seen before it, or not.
    requeued.ended("cancelled", "unknown", for_good=False)


#: Ranks that save at SIGTERM and end, as their training was told that it is preempted.
SAVE_AT_TERM = 'trap "exit 143" TERM\n'


def test_ranks_that_end_in_the_grace_of_a_preemption(
    make_cluster: Callable[..., E2eCluster],
) -> None:
    """They are not started again, also where every failure is resumed; the next run goes on."""
    cluster = make_cluster(
        nodes=2, gpus_per_node=0, plugin=True,
        overrides=(
            ("PreemptType", "preempt/partition_prio"),
            ("PreemptMode", "REQUEUE"),
            ("PartitionName", "low Nodes=ALL PriorityTier=1 GraceTime=60"),
            ("PartitionName", "urgent Nodes=ALL PriorityTier=9"),
        ),
    )  # fmt: skip
    run, urgent = Run(cluster, HPRESUME_RESUME_ON="any", HPRESUME_BACKOFF="0"), Run(cluster)
    run.write("on_up.sh", SAVE_AT_TERM)
    run.batch(
        "srun --auto-resume=1 {rank}; echo code=$?; sleep 600", "--partition=low", "-N2",
        "--exclusive",
    )  # fmt: skip
    run.wait_up(1, 2)
    run.wait_watched(1)
    urgent.batch("srun {rank}", "--partition=urgent", "-N2", "--exclusive")
    out = run.wait_output("code=", timeout=40)
    assert "code=143" in out
    assert not run.ups(2)
    assert [r["cause"] for r in run.events("ended")] == ["preempted"]
    assert len(run.events("interrupted")) == 1
    assert run.events("finished") == []


def test_applications_that_end_by_themselves(cluster: E2eCluster) -> None:
    """With the default settings: the batch script sees the same code, once."""
    plain, protected = Run(cluster), Run(cluster, HPRESUME_WATCH_DELAY="0")
    endings = ("exit 0", "exit 1", "exit 77", "kill -SEGV $$")
    for run, option in ((plain, ""), (protected, "--auto-resume")):
        lines = [
            f"srun {option} -N2 bash -c 'echo >> $RUN_DIR/ran; sleep {age}; {ending}'; echo code=$?"
            for age in (0, 1.5)
            for ending in endings
        ]
        run.batch("\n".join(lines), "-N2", "--exclusive")
    codes = [
        re.findall(r"^code=(\d+)$", run.wait_end(), re.MULTILINE) for run in (plain, protected)
    ]
    assert codes == [["0", "1", "77", "139"] * 2] * 2
    for run in (plain, protected):
        assert run.output("ran").count("\n") == 2 * 8
    # Those of some age were watched.
    assert len(protected.events("watched")) >= 4
    assert {r["cause"] for r in protected.events("ended")} == {"application failure"}


def test_the_time_limits_of_job_and_step(limited: tuple[Trio, Trio]) -> None:
    for trio in limited:
        trio.ended("time limit")
