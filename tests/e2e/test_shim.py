"""The plugin and the wrapper in a real cluster, with a supervisor that only tells what it got."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from cluster import E2eCluster

from hpresume.devcluster.lifecycle import slurm_version

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "spank" / "hpresume.so"
CLUSTER = {"nodes": 2, "gpus_per_node": 0, "plugin": True}
REMOTE_VARIABLE = "_SLURM_SPANK_OPTION_hpresume_auto_resume"
LOCAL_VARIABLE = "SLURM_SPANK_" + REMOTE_VARIABLE

# Read from /proc, because Python changes its own view of some of it.
TELL = f"""#!{sys.executable} -IS
import json, os
def read(name):
    with open("/proc/self/" + name, "rb") as file:
        return file.read().decode(errors="surrogateescape")
status = dict(line.split(":\\t", 1) for line in read("status").splitlines() if ":\\t" in line)
environ = dict(entry.split("=", 1) for entry in read("environ").split("\\0")[:-1])
fds = {{}}
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and os.path.exists("/proc/self/fd/" + name):
        fds[name] = os.readlink("/proc/self/fd/" + name)
print(json.dumps({{
    "argv": read("cmdline").split("\\0")[2:-1], "environ": environ,
    "blocked": status["SigBlk"], "fds": fds,
}}))
"""


@pytest.fixture
def supervisor(cluster: E2eCluster) -> Path:
    """A program in place of hpresume, and the plugin told to start it."""
    program = cluster.home() / "hpresume"
    program.write_text(TELL)
    program.chmod(0o755)
    set_supervisor(cluster, program)
    return program


def set_supervisor(cluster: E2eCluster, program: Path | str) -> None:
    cluster.layout.plugstack_conf.write_text(f"optional {PLUGIN} supervisor={program}\n")


def shell(cluster: E2eCluster, script: str, **env: str) -> tuple[str, str, int]:
    done = cluster.exec(["bash", "-c", script], user="trainer", env=env)
    return done.stdout, done.stderr, done.returncode


def told(text: str) -> dict:
    """What the supervisor of the only handed-over srun in ``text`` got."""
    (line,) = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(line)


def test_a_plain_srun_leaves_no_trace(cluster, supervisor):
    plain = ("", "--auto-resume=0", "--auto-resume --auto-r=0 --")
    # Overlapping, or srun says that it waits for the end of the one before.
    script = "; ".join(f"srun --overlap {options} env" for options in plain)
    out, err, code = shell(cluster, f"salloc -Q -N2 bash -c '{script}'")
    assert (err, code) == ("", 0)
    assert out.count("SLURM_PROCID=") == 2 * len(plain)
    assert "SPANK" not in out
    assert "auto_resume" not in out


def test_a_batch_step_is_handed_over_with_the_batch_environment(cluster, supervisor):
    script = cluster.home() / "job.sh"
    script.write_text(
        "#!/bin/bash\n"
        'python3 -c "import json, os; print(json.dumps(dict(os.environ)))" >before.json\n'
        f"exec 7<{script}\n"
        "srun -N 2 --auto-resume=1 -lJ name -- train --lr 1 '' 'a b' --auto-resume=0\n"
    )
    argv = ["sbatch", "--wait", "-N2", "--output=out", "--error=err", str(script)]
    done = cluster.exec(argv, user="trainer")
    assert (cluster.home() / "err").read_text() == ""
    assert done.returncode == 0
    got = told((cluster.home() / "out").read_text())
    assert got["argv"] == [
        *(str(supervisor), "supervise", "--plugin", "--srun=/usr/bin/srun", "--command-index=7"),
        *(
            "--slurm={}.{:02}".format(*slurm_version()),
            "--",
            "srun",
            "-N",
            "2",
            "--auto-resume=1",
            "-lJ",
            "name",
            "--",
        ),
        *("train", "--lr", "1", "", "a b", "--auto-resume=0"),
    ]
    before = json.loads((cluster.home() / "before.json").read_text())
    ignore = {"_", "SHLVL", "OLDPWD", "LC_CTYPE"}
    changed = {
        name
        for name in before.keys() | got["environ"].keys()
        if before.get(name) != got["environ"].get(name)
    }
    assert changed <= ignore
    assert got["blocked"] == "0000000000000000"
    assert got["fds"] == {"7": str(script)}


def test_in_an_allocation_and_on_its_own(cluster, supervisor):
    for script in ("salloc -Q -N1 srun --auto-resume train", "srun --auto-resume -N1 train"):
        out, err, code = shell(cluster, script)
        assert (err, code) == ("", 0)
        assert told(out)["argv"][-1] == "train"
    # Nothing was asked of Slurm for the step that the supervisor did not start.
    assert cluster.jobs() == []


def test_the_environment_does_not_switch_it_on(cluster, supervisor):
    out, err, code = shell(cluster, "srun -N1 env", **{LOCAL_VARIABLE: "1", REMOTE_VARIABLE: "1"})
    assert (err, code) == ("", 0)
    assert "SLURM_PROCID=0" in out
    assert "SPANK" not in out


def test_a_protected_step_does_not_protect_its_children(cluster, supervisor):
    supervisor.write_text(
        "#!/bin/bash\n"
        "# As the supervisor does: the real srun, told to leave this call alone.\n"
        'while [ "$1" != --auto-resume ]; do shift; done\n'
        'exec srun --overlap --auto-resume=0 "${@:2}"\n'
    )
    out, err, code = shell(cluster, "salloc -Q -N1 srun --auto-resume srun --overlap env")
    assert (err, code) == ("", 0)
    assert "SLURM_PROCID=0" in out
    assert "SPANK" not in out


@pytest.mark.parametrize("command", ["sbatch --wrap=hostname", "salloc hostname"])
def test_other_commands_refuse_the_option(cluster, supervisor, command):
    name, rest = command.split(" ", 1)
    _, err, code = shell(cluster, f"{name} --auto-resume=1 {rest}")
    assert f"{name}: unrecognized option '--auto-resume=1'" in err
    assert code != 0


def test_heterogeneous_steps_arrive_whole(cluster, supervisor):
    for first, second in (("--auto-resume", ""), ("", "--auto-resume")):
        out, _, code = shell(cluster, f"salloc -Q -N2 srun -N1 {first} a : {second} -N1 -n 1 b")
        assert code == 0
        argv = told(out)["argv"]
        (index,) = [int(word[16:]) for word in argv if word.startswith("--command-index=")]
        srun = argv[argv.index("--") + 1 :]
        assert (srun[index], srun[-1]) == ("a", "b")


def test_a_supervisor_that_is_missing_stops_the_step(cluster, supervisor):
    set_supervisor(cluster, "/nowhere/hpresume")
    out, err, code = shell(cluster, "srun -N1 --auto-resume hostname")
    assert (out, code) == ("", 1)
    assert "/nowhere/hpresume: No such file or directory; the step was not started" in err
    out, err, code = shell(cluster, "srun -N2 hostname")
    assert (sorted(out.split()), err, code) == (["n1", "n2"], "", 0)


def test_wrong_arguments_in_plugstack_conf_harm_nobody_else(cluster, supervisor):
    set_supervisor(cluster, "relative nonsense")
    out, err, code = shell(cluster, "srun -N2 hostname")
    assert (sorted(out.split()), err, code) == (["n1", "n2"], "", 0)
    _, err, code = shell(cluster, "srun -N1 --auto-resume hostname")
    assert code == 1
    assert "supervisor=relative is not supervisor=/absolute/path; the step was not" in err


def test_slurmstepd_says_nothing_about_the_option(cluster, supervisor):
    shell(cluster, "srun -N2 --auto-resume=0 true")
    logs = cluster.logs(lines=10_000)
    assert "auto-resume" not in logs
    assert "hpresume: " not in logs


def test_the_wrapper_where_there_is_no_plugin(cluster, supervisor):
    cluster.layout.plugstack_conf.write_text("")
    folder = cluster.home() / "bin"
    folder.mkdir(exist_ok=True)
    for link, target in (("srun", ROOT / "scripts/srun"), ("hpresume", supervisor)):
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(target)
    path = f"{folder}:{os.defpath}"
    out, err, code = shell(cluster, "srun -N2 hostname", PATH=path)
    assert (sorted(out.split()), err, code) == (["n1", "n2"], "", 0)
    out, err, code = shell(cluster, "srun -N2 --auto-resume train ''", PATH=path)
    assert (err, code) == ("", 0)
    assert told(out)["argv"][1:] == [
        *("supervise", "--wrapper", "--srun=/bin/srun", "--"),
        *("srun", "-N2", "--auto-resume", "train", ""),
    ]
