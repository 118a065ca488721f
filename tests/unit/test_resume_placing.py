"""Where the user's own options put the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpresume.resume.placing import nodes_given, placed_again, task_nodes
from hpresume.slurm.srun_options import Arity, OptionSpec, OptionTable, SplitArgv, split_argv

TABLE = OptionTable(
    [
        OptionSpec("nodelist", Arity.REQUIRED, "w"),
        OptionSpec("distribution", Arity.REQUIRED, "m"),
    ]
)


def split(options: str) -> SplitArgv:
    return split_argv(["srun", *options.split(), "true"], TABLE)


@pytest.mark.parametrize(
    ("options", "environ", "wanted"),
    [
        ("", {}, ""),
        ("-w n2,n1", {}, ""),
        ("-w n2,n1,n2 -m arbitrary", {}, "n2 n1 n2"),
        ("-w n2 -m Arbitrary:block,Pack", {}, "n2"),
        ("-w n2,n1 -m block", {"SLURM_DISTRIBUTION": "arbitrary"}, ""),
        ("-w n[1-2],n1", {"SLURM_DISTRIBUTION": "arbitrary"}, "n1 n2 n1"),
        ("-m arbitrary", {}, ""),
        ("", {"SLURM_HOSTFILE": "hosts"}, "n3 n3 n1"),
        ("-m arbitrary", {"SLURM_HOSTFILE": "./hosts"}, "n3 n3 n1"),
        ("-w n1", {"SLURM_HOSTFILE": "hosts"}, ""),
        ("", {"SLURM_HOSTFILE": "missing"}, ""),
        ("", {"SLURM_HOSTFILE": "odd"}, ""),
    ],
)
def test_the_node_of_every_task(
    options: str,
    environ: dict[str, str],
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("n3\nn3\nn1\n")
    Path("odd").write_bytes(b"n3*2\n\xff\n")
    assert task_nodes(split(options), environ) == tuple(wanted.split())


@pytest.mark.parametrize(
    ("options", "job", "wanted"),
    [
        ("", "n1,n2", []),
        ("-w n1,n2", "n[1-3]", []),
        ("-w n1,n2", "", []),
        ("-w n1,n2", "n[1,3]", ["--nodelist=n1,n3"]),
        ("-w n1,n2,n2", "n[1,3]", ["--nodelist=n1,n3"]),
        ("-w n1,n2", "n1", ["--nodelist=n1"]),
        ("-w n2,n1,n2 -m arbitrary", "n[1,3]", ["--nodelist=n3,n1,n3", "--distribution=arbitrary"]),
    ],
)
def test_nodes_that_the_job_lost(options: str, job: str, wanted: list[str]) -> None:
    assert placed_again(split(options), {"SLURM_JOB_NODELIST": job})[1] == wanted


def test_without_options_that_can_be_read() -> None:
    assert nodes_given(None, "nodelist") == task_nodes(None, {"SLURM_HOSTFILE": "x"}) == ()
    assert placed_again(None, {"SLURM_JOB_NODELIST": "n1"}) == ((), [])
