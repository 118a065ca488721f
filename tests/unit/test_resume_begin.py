"""Which allocation a protected srun joins, and the call of its later attempts."""

from __future__ import annotations

import pytest

from hpresume.resume.begin import _again, _allocation, _number, other_cluster
from hpresume.resume.command import SrunCall
from hpresume.slurm.srun_options import Arity, OptionSpec, OptionTable, split_argv

TABLE = OptionTable(
    [
        OptionSpec("jobid", Arity.REQUIRED, None),
        OptionSpec("clusters", Arity.REQUIRED, "M"),
        OptionSpec("relative", Arity.REQUIRED, "r"),
        OptionSpec("nodelist", Arity.REQUIRED, "w"),
        OptionSpec("nodes", Arity.REQUIRED, "N"),
    ]
)


@pytest.mark.parametrize(
    ("options", "environ", "allocation", "job_id"),
    [
        ([], {}, "", None),
        ([], {"SLURM_JOB_ID": "7"}, "7", 7),
        ([], {"SLURM_JOBID": "7"}, "7", 7),
        (["--jobid=8"], {"SLURM_JOB_ID": "7"}, "8", 8),
        # A task of a job array: its job has another number, unless it is the last one.
        (["--jobid=5_2"], {}, "5_2", None),
        (["--jobid", "5_2"], {"SLURM_JOB_ID": "7"}, "5_2", None),
    ],
)
def test_the_allocation(
    options: list[str], environ: dict[str, str], allocation: str, job_id: int | None
) -> None:
    split = split_argv(["srun", *options, "true"], TABLE)
    assert _allocation(split, environ) == allocation
    assert _number(allocation) == job_id


@pytest.mark.parametrize(
    ("options", "environ", "elsewhere"),
    [
        ([], {}, ""),
        ([], {"SLURM_CLUSTER_NAME": "c"}, ""),
        (["-Mc"], {"SLURM_CLUSTER_NAME": "c"}, ""),
        (["-M", "d"], {"SLURM_CLUSTER_NAME": "c"}, "d"),
        (["-Mc,d"], {}, "c,d"),
        ([], {"SLURM_CLUSTERS": "d"}, "d"),
        ([], {"SLURM_CLUSTERS": "c", "SLURM_CLUSTER_NAME": "c"}, ""),
        (["-Mc"], {"SLURM_CLUSTERS": "d", "SLURM_CLUSTER_NAME": "c"}, ""),
    ],
)
def test_a_step_for_another_cluster(
    options: list[str], environ: dict[str, str], elsewhere: str
) -> None:
    assert other_cluster(split_argv(["srun", *options, "true"], TABLE), environ) == elsewhere


@pytest.mark.parametrize(
    ("placed", "chosen", "left"),
    [
        (False, False, ["-N2", "-w", "n1,n2"]),
        (True, False, ["-N2"]),
        (True, True, []),
        (False, True, ["-w", "n1,n2"]),  # by SLURM_HOSTFILE
    ],
)
def test_what_later_attempts_choose_themselves(placed: bool, chosen: bool, left: list[str]) -> None:
    argv = ["srun", "-N2", "-r1", "-w", "n1,n2", "true"]
    call = SrunCall("/usr/bin/srun", tuple(argv), 5, plugin=False)
    again = _again(call, split_argv(argv, TABLE), placed=placed, chosen=chosen)
    assert again.attempt(["--x"]) == ["/usr/bin/srun", *left, "--x", "true"]
