"""What is refused before there is a donor, and what a donor asks for."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hpresume.errors import (
    SlurmDeniedError,
    SlurmError,
    SlurmTimeoutError,
    SlurmTransientError,
)
from hpresume.slurm.grow import grow, refusal, salloc_argv
from hpresume.slurm.models import ClusterConfig, DonorSpec, Job, JobState
from hpresume.slurm.runner import Runner

JOB = Job(job_id=1, state=JobState.RUNNING, nodes=("n1", "n2"), partition="main")
CONFIG = ClusterConfig(
    cluster_name="lab",
    version=(22, 5, 8),
    slurmd_timeout_s=300,
    kill_wait_s=30,
    slurmd_port=6818,
    proctrack="proctrack/linuxproc",
    prolog_flags=frozenset(),
    scheduler_parameters=("permit_job_expansion",),
    job_requeue=True,
)
SPEC = DonorSpec(target_job_id=1, num_nodes=1, partition="main")


def test_nothing_speaks_against_growing_a_plain_job() -> None:
    assert refusal(JOB, SPEC, CONFIG) is None
    assert refusal(replace(JOB, exclusive=True), SPEC, CONFIG) is None


@pytest.mark.parametrize(
    ("job", "spec", "config", "words"),
    [
        (replace(JOB, state=JobState.PENDING), SPEC, CONFIG, "PENDING, not RUNNING"),
        (JOB, SPEC, replace(CONFIG, scheduler_parameters=()), "permit_job_expansion"),
        (JOB, SPEC, replace(CONFIG, prolog_flags=frozenset({"CONTAIN"})), "extern step"),
        (replace(JOB, tres_gres={"gres/gpu": 8}), SPEC, CONFIG, "holds gres/gpu"),
        (
            replace(JOB, exclusive=True),
            SPEC,
            replace(CONFIG, gres_types=("gpu",)),
            "exclusive job",
        ),
        (JOB, replace(SPEC, exclusive=True), replace(CONFIG, gres_types=("gpu",)), "GresTypes=gpu"),
    ],
    ids=["waits", "expansion off", "extern step", "gres", "exclusive", "exclusive donor"],
)
def test_what_slurm_would_refuse_half_way(
    job: Job, spec: DonorSpec, config: ClusterConfig, words: str
) -> None:
    assert words in (refusal(job, spec, config) or "")


def test_the_donor_gets_what_the_other_nodes_have() -> None:
    spec = DonorSpec(
        target_job_id=1,
        num_nodes=2,
        partition="main",
        qos="high",
        account="lab",
        reservation="keep",
        features="a&b",
        exclude=("n3", "n2"),
        cpus=8,
        memory_per_cpu_mb=500,
        time_limit_min=60,
    )
    argv = salloc_argv(JOB, spec, CONFIG, "name")
    assert argv[0] == "salloc"
    assert argv[-1] == "cat"
    assert set(argv[1:-1]) == {
        "--job-name=name",
        "--dependency=expand:1",
        "--nodes=2-2",
        "--exclude=n1,n2,n3",
        "--no-bell",
        "--partition=main",
        "--qos=high",
        "--account=lab",
        "--reservation=keep",
        "--constraint=a&b",
        "--ntasks-per-node=1",
        "--cpus-per-task=4",
        "--mem-per-cpu=500M",
        "--time=60",
    }


@pytest.mark.parametrize(
    ("spec", "parameters", "has", "has_not"),
    [
        (replace(SPEC, exclusive=True, cpus=4), (), "--exclusive", "--cpus-per-task"),
        (replace(SPEC, memory_per_node_mb=700), ("CR_CORE_MEMORY",), "--mem=700M", "--mem=0"),
        (SPEC, ("CR_CORE_MEMORY",), "--mem=0", "--mem-per-cpu"),
        (SPEC, ("CR_CORE",), "--nodes=1-1", "--mem"),
    ],
)
def test_the_donor_is_shaped_like_the_job(
    spec: DonorSpec, parameters: tuple[str, ...], has: str, has_not: str
) -> None:
    config = replace(CONFIG, select_parameters=frozenset(parameters))
    argv = salloc_argv(JOB, spec, config, "name")
    assert has in argv
    assert not any(word.startswith(has_not) for word in argv)


# --- the donor's life, with a shell script for salloc ------------------------------

GRANTED = (
    "echo salloc: Pending job allocation 7 >&2; echo salloc: Granted job allocation 7 >&2; cat"
)
WAITS = "echo salloc: Pending job allocation 7 >&2; exec sleep 60"


class SallocRunner(Runner):
    """Runs ``scripts`` in turn where salloc is wanted."""

    def __init__(self, *scripts: str) -> None:
        super().__init__()
        self.scripts = list(scripts)
        self.processes: list[subprocess.Popen[bytes]] = []

    @contextlib.contextmanager
    def started(
        self, argv: Sequence[str], cwd: str | None = None, *, stdin: int = subprocess.DEVNULL
    ) -> Iterator[subprocess.Popen[bytes]]:
        assert "salloc" in argv
        with super().started(["sh", "-c", self.scripts.pop(0)], cwd, stdin=stdin) as process:
            self.processes.append(process)
            yield process


class FakeGateway:
    """A cluster with job 1 and its donor 7; merging is what ``merge`` says."""

    def __init__(self, donor: Job, *merge: Exception | str) -> None:
        self.jobs = {1: JOB, 7: donor}
        self.merge = list(merge)
        self.cancelled: list[int] = []

    def config(self) -> ClusterConfig:
        return CONFIG

    def job(self, job_id: int) -> Job:
        return self.jobs[job_id]

    def own_jobs(self) -> tuple[Job, ...]:
        return ()

    def update_job(self, job_id: int, **fields: str) -> None:
        assert (job_id, fields) == (7, {"NumNodes": "0"})
        answer = self.merge.pop(0)
        if answer == "merged" or "merged" in str(answer):
            self.jobs[1] = replace(JOB, nodes=(*JOB.nodes, *self.jobs[7].nodes))
        if isinstance(answer, Exception):
            raise answer

    def cancel(self, job_id: int) -> None:
        self.cancelled.append(job_id)


DONOR = Job(job_id=7, state=JobState.RUNNING, nodes=("n5",), reason="Resources")


def run(gateway: Any, *scripts: str, timeout_s: float = 5.0) -> tuple[str, ...]:
    runner = SallocRunner(*scripts)
    try:
        return grow(gateway, runner, SPEC, timeout_s)
    finally:
        assert all(process.poll() is not None for process in runner.processes)


def test_a_donor_is_merged() -> None:
    assert run(FakeGateway(DONOR, "merged"), GRANTED) == ("n5",)


def test_a_merge_whose_answer_got_lost_is_not_repeated() -> None:
    gateway = FakeGateway(DONOR, SlurmTransientError("Socket timed out, but merged"))
    assert run(gateway, GRANTED) == ("n5",)


def test_a_transient_answer_brings_a_second_donor() -> None:
    gateway = FakeGateway(DONOR, SlurmTransientError("DB index"), "merged")
    assert run(gateway, GRANTED, GRANTED) == ("n5",)


def test_salloc_is_started_again_after_a_transient_error() -> None:
    refused = "echo salloc: error: Unable to contact slurm controller >&2; exit 1"
    assert run(FakeGateway(DONOR, "merged"), refused, GRANTED) == ("n5",)


@pytest.mark.parametrize(
    ("donor", "script", "kind", "words"),
    [
        (DONOR, WAITS, SlurmTimeoutError, "Resources"),
        (
            DONOR,
            "echo salloc: error: Job submit/allocate failed: Invalid qos specification >&2; exit 1",
            SlurmDeniedError,
            "Invalid qos",
        ),
        (replace(DONOR, tres_gres={"gres/gpu": 2}), GRANTED, SlurmDeniedError, "n5"),
        (replace(DONOR, state=JobState.CANCELLED), GRANTED, SlurmError, "ended before"),
        (replace(DONOR, flags=frozenset({"CONFIGURING"})), GRANTED, SlurmTimeoutError, "not ready"),
    ],
    ids=["no nodes", "refused", "gres", "cancelled", "booting"],
)
def test_a_donor_that_does_not_come(
    donor: Job, script: str, kind: type[SlurmError], words: str
) -> None:
    began = time.monotonic()
    with pytest.raises(kind, match=words):
        run(FakeGateway(donor), script, timeout_s=0.6)
    assert time.monotonic() - began < 3
