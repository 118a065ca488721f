"""Argument lists of the attempts and of the watch step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpresume.resume.command import (
    OWN_STEP,
    SrunCall,
    moved,
    neutral_environment,
    placement,
    reallocation,
    watch_command,
)


@pytest.mark.parametrize(
    ("argv", "insert_at", "plugin", "extra", "wanted"),
    [
        ("srun -N2 train.sh a", 2, True, (), "/r/srun -N2 --auto-resume=0 train.sh a"),
        ("srun -N2 train.sh a", 2, False, (), "/r/srun -N2 train.sh a"),
        ("srun train.sh", 1, True, (), "/r/srun --auto-resume=0 train.sh"),
        (
            "srun -N2 -- train.sh",
            2,
            True,
            ("-w", "n1"),
            "/r/srun -N2 -w n1 --auto-resume=0 -- train.sh",
        ),
        (
            "srun -w n9 train.sh",
            3,
            False,
            ("--nodelist=n1",),
            "/r/srun -w n9 --nodelist=n1 train.sh",
        ),
    ],
)
def test_attempt(
    argv: str, insert_at: int, plugin: bool, extra: tuple[str, ...], wanted: str
) -> None:
    call = SrunCall("/r/srun", tuple(argv.split()), insert_at, plugin)
    assert call.attempt(extra) == wanted.split()


def test_words_of_the_user_are_not_touched() -> None:
    argv = ("srun", "-J", "a name", "--", "run it", "", "--auto-resume=1", "é\udcff")
    assert SrunCall("/r/srun", argv, 3, False).attempt() == ["/r/srun", *argv[1:]]


@settings(deadline=None)
@given(st.lists(st.text(), min_size=1), st.lists(st.text()), st.booleans(), st.data())
def test_the_users_words_stay_in_their_order(
    argv: list[str], extra: list[str], plugin: bool, data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(argv)))
    made = SrunCall("/r/srun", tuple(argv), at, plugin).attempt(extra)
    own = len(extra) + plugin
    assert made[0] == "/r/srun"
    assert made[1:at] + made[at + own :] == argv[1:]
    assert made[at : at + len(extra)] == extra


def test_placement_of_a_later_attempt() -> None:
    options = placement(("n1", "n4"), overlap=False)
    assert options == ["--nodelist=n1,n4", "--nodes=2", "--open-mode=append"]
    assert placement(("n1", "n4"), overlap=True) == [*options, "--overlap"]


def test_placement_of_tasks_that_the_user_placed() -> None:
    options = placement(("n1", "n2"), overlap=False, task_nodes=("n2", "n3", "n3"))
    # no --nodes: srun of 24.11 refuses it beside the list
    wanted = ["--nodelist=n2,n1,n1", "--distribution=arbitrary", "--open-mode=append"]
    assert options == wanted


@pytest.mark.parametrize(
    ("names", "nodes", "wanted"),
    [
        ("n1 n2", "n1 n2", "n1 n2"),
        ("n3 n3 n1", "n1 n2", "n2 n2 n1"),
        ("n2 n3 n4 n3", "n1 n2 n5", "n2 n1 n5 n1"),
        ("n1 n2 n3", "n2", "n2 n2 n2"),
        ("", "n1", ""),
    ],
)
def test_what_was_on_a_node_moves_to_another_one(names: str, nodes: str, wanted: str) -> None:
    assert moved(names.split(), nodes.split()) == wanted.split()


@pytest.mark.parametrize(
    ("exclude", "nodelist", "count", "wanted"),
    [
        ((), None, 2, []),
        (("n3",), None, 2, ["--exclude=n3"]),
        (("n3", "n5"), ("n1", "n2"), 3, ["--exclude=n3,n5", "--nodelist=n1,n2", "--nodes=3"]),
        (("n3",), ("n1",), 0, ["--exclude=n3", "--nodelist=n1"]),
        (("n3",), (), 1, ["--exclude=n3", "--nodes=1"]),
    ],
)
def test_a_new_allocation(
    exclude: tuple[str, ...], nodelist: tuple[str, ...] | None, count: int, wanted: list[str]
) -> None:
    assert reallocation(exclude, nodelist, count) == ["--open-mode=append", *wanted]


def test_the_watch_step_takes_nothing_from_the_training() -> None:
    command = watch_command("/r/srun", 7, ("n1", "n2", "n3"), ("python3", "agent.py", "1"))
    assert command[0] == "/r/srun"
    assert command[-3:] == ["python3", "agent.py", "1"]
    options = command[1:-3]
    for wanted in (
        "--jobid=7",
        "--overlap",
        "--gres=none",
        "--mem=0",
        "--no-kill",
        "--wait=0",
        "--kill-on-bad-exit=0",
        "--prolog=none",
        "--epilog=none",
        "--nodes=3",
        "--ntasks=3",
        "--ntasks-per-node=1",
        "--nodelist=n1,n2,n3",
    ):
        assert wanted in options
    assert all(option.startswith("--") for option in options)
    assert not any(option.startswith(("--cpus-per-task", "--exact")) for option in options)


def test_a_step_beside_the_training_that_shares_its_gpus() -> None:
    """srun would wait for ever for GPUs that such a step cannot have."""
    plain = watch_command("/r/srun", 7, ("n1",), ("true",))
    shares = watch_command("/r/srun", 7, ("n1",), ("true",), devices=True)
    assert [o for o in plain if o not in shares] == ["--gres=none"]
    assert [o for o in shares if o not in plain] == ["--immediate=2"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("PATH", True),
        ("HOME", True),
        ("SLURM_CONF", True),
        ("SLURM_CLUSTERS", True),
        ("MY_SLURM_X", True),
        ("SLURMX", True),
        ("SLURM_JOB_ID", False),
        ("SLURM_NTASKS", False),
        ("SRUN_DEBUG", False),
        ("SLURMD_NODENAME", False),
        ("SBATCH_X", False),
        ("SALLOC_X", False),
        ("PMI_RANK", False),
        ("PMI2_X", False),
        ("PMIX_RANK", False),
        ("_SLURM_SPANK_OPTION_hpresume_auto_resume", False),
    ],
)
def test_neutral_environment(name: str, kept: bool) -> None:
    made = neutral_environment({name: "1"})
    assert made.pop(OWN_STEP) == "1"
    assert made == ({name: "1"} if kept else {})
