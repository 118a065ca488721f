"""Both helpers over what real Slurm said, and over damaged forms of it.

``test_entrypoint_recorded.json`` holds answers of scontrol 22.05.8, 24.11.5 and
26.05.5 as tasks of real steps got them, the tasks' environment, and the nodes
on which these tasks said to be.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpresume.entrypoint.main import as_shell
from hpresume.entrypoint.model import decide, read_task
from hpresume.entrypoint.observe import Slurm, observe
from hpresume.errors import HpresumeError
from hpresume.slurm import nodeset
from hpresume.slurm.runner import Answer, Runner

ROOT = Path(__file__).parent.parent.parent
HELPER = ROOT / "scripts/hpresume-env.sh"
RECORDED = json.loads(Path(__file__).with_suffix(".json").read_text())
NAMES = ("NODE_LIST", "MASTER_NODE", "MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK")
SHELLS = [shell for shell in ("bash", "dash", "busybox") if shutil.which(shell)]
SYSTEM_PATH = "/usr/bin:/bin"


def name_of(record):
    return (
        f"{record['case']}-{record['version']}-job{record['tasks'][0]['environ']['SLURM_JOB_ID']}"
    )


each_record = pytest.mark.parametrize("record", RECORDED, ids=name_of)


class ReplayRunner(Runner):
    """Gives recorded answers; a question that was not recorded fails the test."""

    def __init__(self, answers, row):
        self.answers, self.row = answers, row

    def run(self, argv, timeout_s, cwd=None):
        if argv[0] == "squeue":
            layout = next(w for w in argv if w.startswith("--format="))[len("--format=") :]
            for field, value in self.row.items():
                layout = layout.replace(field, value)
            return Answer(layout + "\n", "", 0)
        code, out, err = self.answers[" ".join(argv)]
        return Answer(out, err, code)


def in_process(environ, answers, row=()):
    runner = ReplayRunner(answers, dict(row))
    return decide(observe(read_task(environ), Slurm(runner, 0.5)))


def in_process_of(record, task):
    return in_process(task["environ"], record["answers"], record.get("squeue", ()))


def replay_folder(folder: Path, answers, row=()) -> str:
    """A PATH with a scontrol that replays ``answers`` and a squeue that shows ``row``."""
    folder.mkdir()
    for number, (command, (code, out, err)) in enumerate(answers.items()):
        (folder / f"{number}.out").write_text(out)
        (folder / f"{number}.err").write_text(err)
        with (folder / "table").open("a") as table:
            pattern = shlex.quote(command)
            table.write(f"({pattern}) cat {folder}/{number}.out; ")
            table.write(f"cat {folder}/{number}.err >&2; exit {code} ;;\n")
    table = (folder / "table").read_text() if answers else ""
    filled = "".join(f"s#{field}#{value}#;" for field, value in dict(row).items())
    bodies = {
        "scontrol": f'case "scontrol $*" in\n{table}esac\necho "$*: not recorded" >&2; exit 9\n',
        "squeue": "for word; do case $word in (--format=*) layout=${word#*=} ;; esac; done\n"
        f"printf '%s\\n' \"$layout\" | sed '{filled}'\n",
    }
    for tool, body in bodies.items():
        (folder / tool).write_text(f"#!/bin/sh\n{body}")
        (folder / tool).chmod(0o755)
    return f"{folder}:{SYSTEM_PATH}"


def shell_argv(shell: str, script: str) -> list[str]:
    return [*(["busybox", "sh"] if shell == "busybox" else [shell]), "-euc", script]


def source_helper(shell: str, path: str, environ: dict[str, str], script: str = ""):
    """Source the helper; the values of the six names, a line each (- where unset)."""
    shown = "; ".join(f'echo "${{{name}--}}"' for name in NAMES)
    return subprocess.run(
        shell_argv(shell, f". {HELPER}; {script or shown}"),
        env={"PATH": path, "HPRESUME_ENV_TIMEOUT": "1"} | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def evaluate(text: str) -> list[str]:
    """The six values after evaluating what ``hpresume env`` printed."""
    shown = "; ".join(f'echo "${{{name}--}}"' for name in NAMES)
    done = subprocess.run(
        ["sh", "-euc", f'eval "$1"; {shown}', "sh", text],
        env={"PATH": SYSTEM_PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\n")[:-1]


# ---------------------------------------------------------------- recorded answers


@each_record
def test_python_finds_the_nodes_that_the_tasks_were_on(record):
    ports = set()
    for task in record["tasks"]:
        found = in_process_of(record, task)
        assert list(found.node_list) == record["nodes"]
        assert found.master_addr == (record["address"] or record["nodes"][0])
        if task["host"] in record["nodes"] and "SLURMD_NODENAME" in task["environ"]:
            assert found.node_rank == record["nodes"].index(task["host"])
            assert found.node_rank == int(task["environ"]["SLURM_NODEID"])
        else:
            assert found.node_rank == -1
        ports.add(found.master_port)
    assert len(ports) == 1


@each_record
def test_shell_finds_what_python_finds(record, tmp_path):
    path = replay_folder(tmp_path / "bin", record["answers"])
    for index, task in enumerate(record["tasks"]):
        shell = SHELLS[index % len(SHELLS)]
        done = source_helper(shell, path, task["environ"])
        quiet = record["case"] != "ctldown"
        assert (done.returncode, done.stderr.count("\n")) == (0, 0 if quiet else 1), done.stderr
        expected = evaluate(as_shell(in_process_of(record, task)))
        assert done.stdout.split("\n")[:-1] == expected


@pytest.mark.parametrize("case", ["spare", "batch-shrunk", "forged-batch"])
def test_the_command_finds_it_through_real_processes(case, tmp_path):
    record = next(r for r in RECORDED if r["case"] == case and r["version"] == "26.05")
    path = replay_folder(tmp_path / "bin", record["answers"], record.get("squeue", ()))
    task = record["tasks"][-1]
    done = subprocess.run(
        [sys.executable, "-m", "hpresume", "env"],
        env={"PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | task["environ"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == as_shell(in_process_of(record, task)) + "\n"


def test_address_that_equals_the_name(tmp_path):
    """Slurm's default for a node without NodeAddr."""
    record = next(r for r in RECORDED if r["case"] == "spare")
    environ = record["tasks"][1]["environ"]
    answers = {
        command: (code, out.replace("NodeAddr=10.79.0.11", "NodeAddr=ep1"), err)
        for command, (code, out, err) in record["answers"].items()
    }
    assert in_process(environ, answers).master_addr == "ep1"
    done = source_helper("dash", replay_folder(tmp_path / "bin", answers), environ)
    assert done.stdout.split("\n")[2] == "ep1"


def test_several_ranks_share_a_node():
    record = next(r for r in RECORDED if r["case"] == "two-per-node")
    ranks = [in_process_of(record, t).node_rank for t in record["tasks"]]
    assert sorted(ranks) == [0, 0, 1, 1, 2, 2]


def test_the_supervisors_port_is_kept():
    record = next(r for r in RECORDED if r["case"] == "attempt2")
    for task in record["tasks"]:
        assert in_process_of(record, task).master_port == 23456


# ---------------------------------------------------------------- damaged answers


@st.composite
def damaged_text(draw, text):
    """``text`` with a piece cut out, doubled or replaced."""
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 40)))
    middle = draw(
        st.one_of(
            st.just(""),
            st.just(text[start:end] * 2),
            st.sampled_from(["=", "[", "]", ",", "-", "\n", "(null)", "NodeList=", "\0", "é"]),
            st.text(max_size=8),
        )
    )
    return text[:start] + middle + (text[end:] if draw(st.booleans()) else "")


@st.composite
def damaged_records(draw):
    record = draw(st.sampled_from([r for r in RECORDED if r["case"] != "ctldown"]))
    answers = {}
    for command, (code, out, err) in record["answers"].items():
        text = draw(damaged_text(out)) if draw(st.booleans()) else out
        answers[command] = (draw(st.sampled_from([code, code, code, 1])), text, err)
    return draw(st.sampled_from(record["tasks"]))["environ"], answers


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(damaged_records())
def test_damaged_answers_raise_nothing_unexpected(damaged):
    environ, answers = damaged
    try:
        found = in_process(environ, _lenient(answers))
    except HpresumeError:
        return
    assert found.node_list
    assert all(found.node_list)
    assert found.master_addr


def _lenient(answers):
    """Questions that damage leads to are answered: no such thing."""

    class Answers(dict):
        def __missing__(self, command):
            return (1, f"Node {command.split()[-1]} not found\n", "")

    return Answers(answers)


# ---------------------------------------------------------------- node lists in the shell

WORDS = st.sampled_from(["n", "gpu-a", "Rack1.", "x9y", "p4d_24"])


@st.composite
def brackets(draw):
    width = draw(st.sampled_from([0, 0, 2, 3]))
    starts = draw(st.lists(st.integers(0, 18), min_size=1, max_size=3, unique=True))
    ranges = []
    for start in (5 * number for number in sorted(starts)):
        end = start + draw(st.integers(0, 3))
        # Another number of digits is another range for Slurm.
        end = end if len(str(end)) == len(str(start)) or width else start
        low, high = f"{start:0{width}d}", f"{end:0{width}d}"
        ranges.append(low if start == end else f"{low}-{high}")
    return f"[{','.join(ranges)}]"


part = st.one_of(
    st.builds("{}{}".format, WORDS, st.integers(0, 99)),
    st.builds("{}{}".format, WORDS, brackets()),
    st.builds("{}{}{}".format, WORDS, brackets(), st.sampled_from(["x", "-ib"])),
    st.builds("{}{}b{}".format, WORDS, brackets(), brackets()),
)


@pytest.fixture(scope="module")
def no_answers(tmp_path_factory):
    """A PATH on which Slurm knows nothing."""
    return replay_folder(tmp_path_factory.mktemp("none") / "bin", {})


@settings(max_examples=60, deadline=None)
@given(st.lists(part, min_size=1, max_size=4).map(",".join))
def test_shell_reads_node_lists_as_python_does(no_answers, expression):
    environ = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": expression}
    done = source_helper("dash", no_answers, environ)
    assert done.stdout.split("\n")[0] == ",".join(nodeset.expand(expression))


@pytest.mark.parametrize(
    "expression",
    [
        "n[",
        "n]",
        "n[1-",
        "n[]",
        "n[3-1]",
        "n[1-2",
        "n[a-b]",
        "n[1-9999999]",
        "n;id",
        "$(id)",
        "a b",
    ],
)
def test_what_is_no_node_list_is_no_answer(no_answers, expression):
    environ = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": expression}
    done = source_helper("dash", no_answers, environ)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    with pytest.raises(HpresumeError):
        in_process(environ, _lenient({}))


# ---------------------------------------------------------------- the shell around the helper

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURMD_NODENAME": "n2",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_helper_leaves_nothing_but_its_variables(shell, tmp_path):
    path = replay_folder(tmp_path / "bin", {})
    listing = "{ declare -p; declare -F; }" if shell == "bash" else "set"
    script = f"""one=1; two=; {listing} > {tmp_path}/before
        . {HELPER}
        {listing} > {tmp_path}/after
        echo "$one$two$IFS$-"; """
    done = subprocess.run(
        shell_argv(shell, script),
        env={"PATH": path} | STEP,
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = (set((tmp_path / f).read_text().split("\n")) for f in ("before", "after"))
    changed = {line.partition("=")[0].split(" ")[-1] for line in before ^ after}
    of_the_shell = {"_", "PIPESTATUS", "BASH_ARGC", "BASH_ARGV", "BASH_LINENO", "LINENO"}
    assert changed - of_the_shell == set(NAMES)
    assert done.stdout.startswith("1 \t\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_helper_fails_loudly(shell, tmp_path):
    path = replay_folder(tmp_path / "bin", {})
    stale = {"MASTER_ADDR": "stale", "NODE_LIST": "stale", "SLURM_JOB_ID": "7"}
    done = source_helper(shell, path, stale, "echo reached")
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("hpresume-env.sh: the nodes are not known: scontrol ")
    assert done.stderr.count("\n") == 1

    # Not under -e: dash ends at a "." that fails, whatever stands behind it.
    script = f'set +e; . {HELPER} || echo "failed ${{MASTER_ADDR-}}${{NODE_LIST-}}"'
    handled = subprocess.run(
        shell_argv(shell, script),
        env={"PATH": path} | stale,
        capture_output=True,
        text=True,
        check=True,
    )
    assert handled.stdout == "failed \n"


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "7x"}, "'7x'"),
        (STEP | {"MASTER_PORT": "70000"}, "MASTER_PORT='70000'"),
        (STEP | {"HPRESUME_ATTEMPT": "two"}, "HPRESUME_ATTEMPT='two'"),
        (STEP | {"HPRESUME_ENV_TIMEOUT": "soon"}, "HPRESUME_ENV_TIMEOUT='soon'"),
    ],
)
def test_helper_names_what_is_wrong(environ, word):
    done = source_helper("dash", SYSTEM_PATH, environ)
    assert done.returncode != 0
    assert word in done.stderr
    assert done.stderr.count("\n") == 1


def test_helper_waits_within_the_bound(tmp_path):
    tool = tmp_path / "scontrol"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    begin = time.monotonic()
    done = source_helper("dash", f"{tmp_path}:{SYSTEM_PATH}", STEP)
    assert time.monotonic() - begin < 30
    assert done.returncode == 0
    assert done.stdout.split("\n")[:3] == ["n1,n2", "n1", "n1"]
    assert "no answer within" in done.stderr


def test_helper_asks_a_restarting_slurmctld_again(tmp_path):
    tool = tmp_path / "scontrol"
    tool.write_text(
        f"""#!/bin/sh
echo >> {tmp_path}/asked
if [ "$(wc -l < {tmp_path}/asked)" = 1 ]; then
    echo "Unable to contact slurm controller" >&2
    exit 1
fi
case $* in
(*step*) printf 'StepId=7.0 UserId=0\\n   State=RUNNING NodeList=n[1-2]\\n' ;;
(*node*) printf 'NodeName=n1\\n   NodeAddr=10.0.0.1 NodeHostName=n1\\n' ;;
esac
"""
    )
    tool.chmod(0o755)
    environ = STEP | {"HPRESUME_ENV_TIMEOUT": "15"}
    done = source_helper("dash", f"{tmp_path}:{SYSTEM_PATH}", environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:3] == ["n1,n2", "n1", "10.0.0.1"]


def test_helper_passes_shellcheck():
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", HELPER], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
