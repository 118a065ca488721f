"""What the plugin does in slurmstepd when the batch host is lost (fake_spank/stepd.c)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from shim import Build, build_shim

# Of slurm.h, the same in all releases.
PENDING, RUNNING, SUSPENDED, FAILED, NODE_FAIL = 0, 1, 2, 5, 7
REQUEUED, COMPLETING = 1 << 10, 1 << 15
DOWN, IDLE, ALLOCATED = 1, 2, 3
DRAIN, NOT_RESPONDING = 1 << 9, 1 << 10

BATCH_SCRIPT = 4294967291
EXTERN = 4294967292

ENDED = PENDING | REQUEUED | COMPLETING

Stepd = Callable[..., list[str]]


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build_shim(tmp_path_factory.mktemp("shim"), request.param == "sanitized", "stepd.c")


@pytest.fixture
def stepd(build: Build) -> Stepd:
    def run(*orders: str, says: bool = False) -> list[str]:
        done = subprocess.run(
            [build.host, build.plugin],
            input="\n".join(orders),
            env={"ASAN_OPTIONS": "detect_leaks=0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, bool(done.stderr)) == (0, says), done.stderr
        return done.stdout.splitlines()

    return run


def test_a_step_that_is_starting(stepd):
    lost = f"job {ENDED} 1 {DOWN}"
    assert stepd(lost, "init", "tell", says=True) == ["init rc=0", "cut short"]


@pytest.mark.parametrize(
    ("state", "batch", "node", "end"),
    [
        (ENDED, 1, DOWN, "cut short"),
        (NODE_FAIL | COMPLETING, 1, DOWN, "cut short"),
        (FAILED | COMPLETING, 1, DOWN | DRAIN | NOT_RESPONDING, "cut short"),
        # It runs: whoever does not answer may answer yet.
        (RUNNING, 1, DOWN, "waits on"),
        (SUSPENDED, 1, DOWN, "waits on"),
        # Its end has another cause, and its srun may be busy.
        (ENDED, 1, ALLOCATED, "waits on"),
        (ENDED, 1, IDLE | NOT_RESPONDING, "waits on"),
        # Its srun is elsewhere.
        (ENDED, 0, DOWN, "waits on"),
    ],
)
def test_when_a_wait_is_cut_short(stepd, state, batch, node, end):
    said = stepd(f"job {state} {batch} {node}", "task-exit", "tell", says=end == "cut short")
    assert said == ["task-exit rc=0", end]


@pytest.mark.parametrize(
    ("step", "told", "threads"),
    [
        (0, "HPRESUME_ATTEMPT", "2"),
        (0, "HPRESUME_OWN_STEP", "2"),
        (EXTERN, "-", "2"),
        # Nobody asked for protection here.
        (0, "-", "1"),
    ],
)
def test_steps_that_nobody_protects_are_left_alone(stepd, step, told, threads):
    orders = ("init", "task-exit", "exit")
    for order in orders:
        assert stepd(f"step {step}", f"told {told}", order, "threads")[-1] == threads


def test_without_slurmctld_nothing_is_known(stepd):
    assert stepd("no-slurmctld", "task-exit", "tell") == ["task-exit rc=0", "waits on"]


def test_every_wait_and_the_pause_after_it_but_no_other(stepd):
    lost = f"job {ENDED} 1 {DOWN}"
    said = stepd(
        lost, "task-exit", "tell", "pause 30000", "tell", "pause 30000", "pause 200", says=True
    )
    assert said[1:] == ["cut short"] * 4 + ["slept"]


def test_it_goes_on_when_slurm_has_unloaded_the_plugin(stepd):
    """The tree of a step comes after its end; so does all of an extern step."""
    lost = f"job {ENDED} 1 {DOWN}"
    assert stepd(f"step {EXTERN}", lost, "exit", "tell", says=True) == ["exit rc=0", "cut short"]


def test_a_batch_script_needs_no_watch_and_a_step_one(stepd):
    said = stepd(f"step {BATCH_SCRIPT}", "task-exit", "threads")
    said += stepd("task-exit", "task-exit", "threads")
    assert said == ["task-exit rc=0", "1", "task-exit rc=0", "task-exit rc=0", "2"]
