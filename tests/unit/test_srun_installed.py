"""srun's command line: our reading of it against the installed srun's."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpresume.errors import UsageError
from hpresume.slurm import srun_help
from hpresume.slurm.srun_options import (
    AUTO_RESUME,
    Arity,
    OptionSpec,
    OptionTable,
    insertion_index,
    parse_help,
    split_argv,
)

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RealSrun:
    """The installed srun with the plugin; without a cluster, as far as its options go."""

    conf: Path
    table: OptionTable
    text: str

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["srun", *argv],
            env={**os.environ, "SLURM_CONF": str(self.conf)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def real_srun(tmp_path_factory: pytest.TempPathFactory) -> RealSrun:
    if shutil.which("srun") is None or not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("needs srun, cc, make and slurm/spank.h")
    folder = tmp_path_factory.mktemp("srun")
    subprocess.run(
        ["make", "-s", "-C", ROOT / "spank", f"BUILD_DIR={folder}"],
        check=True,
        capture_output=True,
    )
    supervisor = folder / "supervisor"
    supervisor.write_text('#!/bin/sh\necho "$4"\n')
    supervisor.chmod(0o755)
    plugstack = folder / "plugstack.conf"
    plugstack.write_text(f"optional {folder}/hpresume.so supervisor={supervisor}\n")
    conf = folder / "slurm.conf"
    conf.write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nNodeName=localhost\n"
        f"PartitionName=p Nodes=ALL Default=YES\nPlugStackConfig={plugstack}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        text = srun_help.ask_srun(shutil.which("srun") or "srun")
    return RealSrun(conf, parse_help(text), text)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nosuch=3", "x"], "srun: unrecognized option '--nosuch=3'"),
        (["-y"], "srun: invalid option -- 'y'"),
        (["-ly"], "srun: invalid option -- 'y'"),
        (["-l-"], "srun: invalid option -- '-'"),
        (["--nodes"], "srun: option '--nodes' requires an argument"),
        (["--accou"], "srun: option '--account' requires an argument"),
        (["-lN"], "srun: option requires an argument -- 'N'"),
        (["--label=1"], "srun: option '--label' doesn't allow an argument"),
        (["--lab="], "srun: option '--label' doesn't allow an argument"),
        (["--imm=", "-q"], "srun: option requires an argument -- 'q'"),
    ],
    ids=str,
)
def test_errors_in_the_words_of_srun(real_srun, argv, message):
    with pytest.raises(UsageError) as caught:
        split_argv(["srun", *argv], real_srun.table)
    assert str(caught.value) == message
    assert message in real_srun.run(*argv).stderr.splitlines()


@pytest.mark.parametrize("word", ["--no", "--a", "--cpu", "--c=3", "--ntasks-per", "--=x"])
def test_ambiguous_abbreviations(real_srun, word):
    argv = [word, "cmd"]
    with pytest.raises(UsageError) as caught:
        split_argv(["srun", *argv], real_srun.table)
    assert str(caught.value) == real_srun.run(*argv).stderr.splitlines()[0]


def test_the_real_help(real_srun):
    assert real_srun.table.long(f"--{AUTO_RESUME}").arity is Arity.OPTIONAL
    assert len(list(real_srun.table)) > 120
    assert real_srun.table.long("--nodes") == OptionSpec("nodes", Arity.REQUIRED, "N")


valid_options = st.sampled_from(
    [
        *(["-N", "2"], ["-N2"], ["-lN2"], ["--nodes", "2"], ["--nodes=1-2"], ["-ulN", "1"]),
        *(["-I"], ["-I5"], ["--immediate"], ["--immed=3"], ["-K"], ["-K0"], ["--kill"]),
        *(["-k"], ["-koff"], ["--no-kill"], ["--resv-ports"], ["--resv-p=2"]),
        *(["-J", "--"], ["-J", ""], ["--job-name=--"], ["-J--"], ["--job-name", ":"]),
        *(["--gres", "gpu:1"], ["--gres=none"], ["--exclusive"], ["--exclusive=user"]),
        *(["-o", "out"], ["-oout"], ["--open-mode", "append"], ["--open=append"], ["-D/tmp"]),
        *(["--comment", "-N"], ["--comment=a b"], ["--export", "NONE"], ["--exp=A=b"]),
        *(["--cpu_bind", "none"], ["--cpu-bi=none"], ["--tasks-per-node", "2"], ["--test-only"]),
        *(["--auto-resume=1"], ["--auto-r"], ["--auto-="], ["--propagate"], ["--prop=NONE"]),
        *(
            ["--container", "x"],
            ["--hint", "compute_bound"],
            ["--mpi", "none"],
            ["-mblock"],
            ["-t5"],
        ),
    ]
)
commands = st.lists(
    st.sampled_from(["cmd", "-N", "--auto-resume=0", "--", "", "-", "x", "--nodes"]), max_size=3
).map(lambda rest: ["cmd", *rest])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(options=st.lists(valid_options, max_size=6), end=st.booleans(), command=commands)
def test_the_split_is_that_of_the_real_srun(real_srun, options, end, command):
    argv = [word for option in options for word in option]
    argv = ["--auto-resume", *argv, *(["--"] if end else []), *command]
    done = real_srun.run(*argv)
    split = split_argv(["srun", *argv], real_srun.table)
    assert done.stdout == f"--command-index={split.command_index}\n", done.stderr
    assert split.command == tuple(command)
    assert insertion_index(split.argv, split.command_index, real_srun.table) == split.insert_at


@settings(max_examples=50, deadline=None)
@given(options=st.lists(valid_options, max_size=4), end=st.booleans(), command=commands)
def test_what_is_put_at_insert_at_is_an_option_to_the_real_srun(real_srun, options, end, command):
    argv = [word for option in options for word in option]
    argv = ["srun", "--auto-resume", *argv, *(["--"] if end else []), *command]
    split = split_argv(argv, real_srun.table)
    done = real_srun.run(*argv[1 : split.insert_at], "--auto-resume=2", *argv[split.insert_at :])
    assert "--auto-resume=2: the value must be" in done.stderr
