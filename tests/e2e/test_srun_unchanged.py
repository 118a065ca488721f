"""A protected srun does what plain srun does, byte for byte: on real Slurm, both ways to one.

Most scripts run in an allocation, with the real srun and with a protected one;
stdout, stderr, exit code and the files they leave must be the same.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import E2eCluster, wait_for
from steps import Run
from terminal import CTRL_C, Terminal
from ways import PLUGIN, WRAPPER, Way, compile_spank, environ_of, start

from hpresume.devcluster.lifecycle import slurm_version

pytestmark = pytest.mark.e2e

#: What the tasks of a protected step are told, as documented.
TOLD = {"HPRESUME_ATTEMPT", "MASTER_PORT"}
TOLD_NODES = {"NODE_LIST", "MASTER_NODE", "MASTER_ADDR"}

#: Variables that differ between two runs of the same srun. Bash sets the last.
PASSING = {
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "SLURM_SRUN_COMM_PORT",
    "SLURM_STEP_LAUNCHER_PORT",
    "SLURM_TASK_PID",
    "SRUN",
    "_",
}


@pytest.fixture(scope="module", params=[PLUGIN, WRAPPER])
def way_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def module_cluster(way_name: str, machine: None) -> Iterator[E2eCluster]:
    cluster = start(way_name, nodes=3, gpus_per_node=1)
    yield cluster
    cluster.down()


@pytest.fixture(scope="module")
def way(way_name: str, module_cluster: E2eCluster) -> Way:
    return Way(module_cluster, way_name)


@pytest.fixture(scope="module")
def inside(way: Way) -> Iterator[dict[str, str]]:
    """The environment of an allocation of two nodes; steps share it (--overlap)."""
    with way.allocated("-N2") as environ:
        yield environ | {"SLURM_OVERLAP": "1"}


# -- words, streams, files, codes ---------------------------------------------------

# From Slurm 24.11 on, plain srun takes the nodes of a job in turn where a step needs fewer; a
# protected one keeps the first. So scripts that show the node name it (-w).
ALIKE = {
    # arguments
    "quoting": r"""$SRUN -n1 printf '[%s]' '' 'a b' '*' '$HOME' '"' "'" '\' $'new\nline' '' '#' """,
    "not utf-8": r"""$SRUN -n1 printf '%s' $'\xff\xfe\x80 \xc3' | od -c""",
    "own options": "$SRUN -n1 printf '[%s]' --auto-resume=0 --auto-r -N9 -- --pty -w n9 --help",
    "dashes": "$SRUN -n1 -- printf '[%s]' -- --auto-resume=1 -- x",
    "dashes as a value": "$SRUN -n1 -J -- bash -c 'echo $SLURM_JOB_NAME; echo $#' x --",
    "our option as a value": "$SRUN -n1 -J --auto-resume=0 bash -c 'echo $SLURM_JOB_NAME'",
    "a colon among others": "$SRUN -n1 printf '[%s]' :: a:b ': ' ' :'",
    "many and long": "$SRUN -n1 bash -c 'echo $# ${#3}' $(printf '%0120000d %.0s' {1..8}) x",
    "cluster of letters": "$SRUN -lN2 hostname | sort",
    "values in all forms": "$SRUN -N 2 -n2 --label --job-name 'a b' printenv SLURM_NNODES | sort",
    "no command": "$SRUN -N2",
    "no command after dashes": "$SRUN -n1 --",
    "an empty command": "$SRUN -n1 ''",
    "a missing command": "$SRUN -n1 ./missing a b",
    "version": "$SRUN --version; $SRUN -V",
    "help": "$SRUN --help; $SRUN --usage",
    "multi-prog": r"""printf '0 echo a %%t\n1 echo b %%o\n' >conf
        $SRUN -l -n2 --multi-prog conf | sort""",
    "bcast": "$SRUN -n1 --bcast=/tmp/echo /bin/echo 'a b'",
    # nodes
    "nodelist": "$SRUN -l -w n2,n1 hostname | sort; $SRUN -N1 -w n2 hostname",
    "nodelist in a file": "echo n2 >./hosts; $SRUN -N1 -w ./hosts hostname",
    "exclude": "$SRUN -N1 -n1 -x n1 hostname",
    "arbitrary": "printf 'n2\nn1\nn2' >h; SLURM_HOSTFILE=h $SRUN -lm arbitrary hostname | sort",
    "a node that is not in the job": "$SRUN -N1 -w n3 hostname",
    # standard streams
    "label": "echo a | $SRUN -l -n2 cat | sort",
    "stdin from a pipe": "seq 1000000 | $SRUN -n1 md5sum",
    "stdin to every task": "seq 50000 | $SRUN -n2 md5sum",
    "stdin to one task": "echo a | $SRUN -l -n2 --input=1 cat",
    "stdin none": "echo a | $SRUN -n1 -i none cat; cat",
    "stdin from a file": "seq 9 >in; $SRUN -n1 -i in cat; $SRUN -n1 cat <in",
    "stdin from nowhere": "$SRUN -n1 cat </dev/null",
    "stdin closed": "$SRUN -n1 -w n1 hostname <&-",
    "stderr closed": "$SRUN -n1 -w n1 hostname 2>&-",
    "stdin left to others": "seq 9 | { $SRUN -n1 -i none true; cat; }",
    "stdin of a loop": "seq 3 | while read x; do $SRUN -n1 echo $x </dev/null; done",
    "much output": "$SRUN -n1 seq 300000 | md5sum",
    "output that is not read": "$SRUN -n1 seq 300000 | head -n1; echo ${PIPESTATUS[*]}",
    "stdout and stderr": "$SRUN -n1 bash -c 'echo out; echo err >&2' >o 2>e",
    "unbuffered": "$SRUN -n1 -w n1 -u bash -c 'printf x; exit 3'",
    "output file": "$SRUN -n2 -o out-%j-%t-%N bash -c 'echo $SLURM_PROCID; echo err >&2'",
    "output file with %J": "$SRUN -n1 -o out echo a; $SRUN -n1 --open-mode=append -o out echo b",
    "output none": "$SRUN -n1 -o none bash -c 'echo a; echo b >&2'",
    "error file": "$SRUN -n2 -l -e err-%t ls /missing",
    "error none": "$SRUN -n1 -e none bash -c 'echo a; echo b >&2'",
    "output on a descriptor": "exec 7>seven; $SRUN -n1 -o /dev/fd/7 echo a; echo b >&7",
    # what srun hands to its tasks
    "umask": "umask 027; $SRUN -n1 bash -c 'umask; >made'; stat -c %a made",
    "limits": "ulimit -n 333; ulimit -Ss 4096; $SRUN -n1 bash -c 'ulimit -a; ulimit -Ha'",
    "no file may grow": "ulimit -f 0; $SRUN -n1 -w n1 hostname 2>/dev/null",
    "priority": "nice -n 3 $SRUN -n1 nice",
    "directory": "mkdir 'a b'; cd 'a b'; $SRUN -n1 pwd; $SRUN -n1 -D / pwd",
    "signals of the task": "$SRUN -n1 grep -E '^Sig(Blk|Ign)' /proc/self/status",
    "descriptors of the task": "exec 8<.; $SRUN -n1 bash -c 'ls /proc/$$/fd'",
    "exported functions": 'f() { echo "in $1"; }; export -f f; $SRUN -n1 bash -c \'f "a b"\'',
    # codes
    "code 0": "$SRUN -n1 true",
    "code 1": "$SRUN -n1 -w n1 false",
    "code 77": "$SRUN -n1 -w n1 bash -c 'exit 77'",
    "code 139": "$SRUN -n1 -w n1 bash -c 'kill -SEGV $$'",
    "code 137": "$SRUN -n1 -w n1 bash -c 'kill -KILL $$'",
    "the highest code": "$SRUN -n2 bash -c 'exit $((3 + SLURM_PROCID))'",
    # srun does not kill a task that had not begun when the other one ended.
    "a bad exit kills": "$SRUN -n2 -K bash -c 'if [ $SLURM_PROCID = 1 ]; then"
    " touch here; exec sleep 60; fi; until [ -e here ]; do sleep 0.05; done; exit 9'",
    "not in this job": "$SRUN -N9 hostname",
    "unknown job": "$SRUN --jobid=999999 hostname",
    # variables that srun reads
    "SLURM_NNODES": "SLURM_NNODES=1 $SRUN bash -c 'echo $SLURM_NNODES'",
    "SLURM_NTASKS": "SLURM_NTASKS=3 $SRUN -l bash -c 'echo $SLURM_NTASKS' | sort",
    "SLURM_LABELIO": "SLURM_LABELIO=1 $SRUN -n1 echo a",
    "SLURM_STDOUTMODE": "SLURM_STDOUTMODE=none $SRUN -n1 echo a; cat",
    "SLURM_WORKING_DIR": "SLURM_WORKING_DIR=/ $SRUN -n1 pwd",
    "SLURM_EXPORT_ENV": "X=1 SLURM_EXPORT_ENV=NONE $SRUN -n1 -w n1 /usr/bin/env"
    " | grep -v ^SLURM_ | sort",
    "SLURM_EXIT_ERROR": "SLURM_EXIT_ERROR=5 $SRUN --jobid=999999 hostname",
    "export NONE": "X=1 $SRUN --export=NONE -n1 -w n1 /usr/bin/env | grep -v ^SLURM_ | sort",
    "export some": "X='a b' $SRUN --export=X,Y='c d' -n1 -w n1 /usr/bin/env"
    " | grep -v ^SLURM_ | sort",
    # Python's variables are the training's
    "PYTHONHOME": "PYTHONHOME=/nowhere $SRUN -n1 printenv PYTHONHOME",
    "PYTHONPATH": """for name in os enum select typing sitecustomize; do echo 1/0 >$name.py; done
        PYTHONPATH=$PWD PYTHONINSPECT=1 PYTHONVERBOSE=1 $SRUN -n1 printenv PYTHONPATH""",
    # the shell around it
    "in the background": "$SRUN -n1 -w n1 bash -c 'exit 5' & wait $!; echo $?",
    "two at once": "$SRUN -n1 echo a >a & $SRUN -n1 echo b >b & wait",
    "exec": "exec $SRUN -n1 -w n1 bash -c 'exit 6'",
    "no HOME": "env -u HOME $SRUN -n1 echo a",
}


@pytest.mark.parametrize("script", ALIKE.values(), ids=ALIKE.keys())
def test_alike(way: Way, inside: dict[str, str], script: str) -> None:
    if script == ALIKE["output that is not read"] and slurm_version() < (22, 5):
        pytest.skip("srun of Slurm 21.08 frees memory twice now and then (4 of 20 plain ones)")
    protected, plain = way.both(script, **inside)
    assert protected == plain


# -- the option ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "on"),
    [
        ("--auto-resume", True),
        ("--auto-resume=", True),
        ("--auto-r", True),
        ("--auto-resu=1 -J x", True),
        ("--auto-resume=0 --auto-resume --", True),
        ("-ln1 --auto-resume=1 -N 1 --", True),
        ("--auto-resume=0", False),
        ("--auto-resume=1 --auto-r=0 --", False),
        ("-J --auto-resume=1", False),
    ],
)
def test_spellings(way: Way, inside: dict[str, str], options: str, on: bool) -> None:
    done = way.sh(f"srun -n1 {options} bash -c 'echo on=$HPRESUME_ATTEMPT'", **inside)
    label = "0: " if "-l" in options else ""
    assert (done.stdout, done.code) == (f"{label}on={1 if on else ''}\n", 0)


# -- the environment of the tasks ---------------------------------------------------


@pytest.mark.parametrize("options", ["", "-N1 -n1 -w n1", "-n1 -w n1 --exact"])
def test_tasks_see_the_documented_variables_only(
    way: Way, inside: dict[str, str], options: str
) -> None:
    odd = {"A.B": "1", "EMPTY": "", "LINES": "9", "IFS": "x", "PWD": "/", "X": "a\nb\\ 'c'"}
    script = f"$SRUN {options} bash -c '[ $SLURM_PROCID = 1 ] || env -0'"
    ours, plain = (
        environ_of(way.sh(script, srun, **inside, **odd))
        for srun in ("srun --auto-resume=1", way.plain)
    )
    assert {k for k in plain if k not in PASSING and ours.get(k) != plain[k]} == set()
    assert TOLD <= ours.keys() - plain.keys() <= TOLD | TOLD_NODES
    assert ours["HPRESUME_ATTEMPT"] == "1"
    if not options:
        assert (ours["NODE_LIST"], ours["MASTER_NODE"]) == ("n1,n2", "n1")


def test_the_users_own_values_are_kept_on_the_first_attempt(
    way: Way, inside: dict[str, str]
) -> None:
    own = {"MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "29500", "NODE_LIST": "mine"}
    script = "$SRUN -N2 -n2 bash -c '[ $SLURM_PROCID = 1 ] || env -0'"
    got = environ_of(way.sh(script, **inside, **own))
    assert {k: got[k] for k in own} == own


# -- steps that live long enough to be watched --------------------------------------


def test_streams_of_a_watched_step(way: Way, inside: dict[str, str]) -> None:
    """Nothing of the watch step's gets into them, and nothing of them is taken."""
    script = """
        for i in $(seq 15); do echo "line $i"; sleep 0.1; done |
            $SRUN -l -n2 bash -c 'while read x; do echo "$SLURM_PROCID: $x"; done; exit 3' |
            sort
        echo ${PIPESTATUS[*]}
        """
    fast = {"HPRESUME_WATCH_DELAY": "0", "HPRESUME_HEARTBEAT": "0.1"}
    ours, plain = way.both(script, **inside, **fast)
    assert ours == plain
    assert "0: 0: line 15" in ours[0]


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "<&-"])
def test_closed_streams_of_a_watched_step(way: Way, inside: dict[str, str], closed: str) -> None:
    script = f"$SRUN -n1 -w n1 -o none bash -c 'sleep 1; exit 5' {closed}"
    ours, plain = way.both(script, HPRESUME_WATCH_DELAY="0", **inside)
    assert ours == plain
    assert ours[2] == 5


# -- signals ------------------------------------------------------------------------

SIGNALS = r"""
cat >task <<'END'
#!/bin/bash
for name in HUP INT QUIT USR1 USR2 ALRM TERM; do trap "echo got $name; exit 9" $name; done
>up$1
until [ -e stop$1 ]; do sleep 0.05; done
END
chmod +x task
said() { until grep -q "$2" err$1; do sleep 0.05; done; }
signal() {  # a number, the signal, what the shell does before
    local srun=$SRUN
    eval "$3"
    $srun -N1 -w n1 ./task $1 >out$1 2>err$1 & local pid=$!
    until [ -e up$1 ]; do sleep 0.05; done
    case $srun in *auto-resume*) said $1 protecting ;; esac
    kill -$2 $pid
    case $2 in
    INT) said $1 'one more' && >stop$1 ;;
    ALRM) >stop$1 ;;
    esac
    wait $pid
    {
        echo "$2 ($3): $?"
        cat out$1
        # What else is said of a kill is a matter of chance.
        grep -E '^srun: (forcing|Quit|interrupt|error: n1: task)' err$1 | sort
    } >result$1
}
exec 2>/dev/null
for name in HUP INT QUIT TERM USR1 USR2 ALRM; do signal 1$name $name 'set -m' & done
# Also what is ignored: in the background of a script, under nohup, by a trap.
for name in INT QUIT; do signal 2$name $name & done
signal 3 HUP 'set -m; srun="nohup $srun"' &
signal 4 USR1 "set -m; trap '' USR1" &
wait
cat result*
rm *
"""


def test_signals(way: Way, inside: dict[str, str]) -> None:
    ours, plain = way.both(SIGNALS, HPRESUME_WATCH_DELAY="0", **inside)
    assert ours == plain
    assert ours[0].count("got USR1") == 2
    assert ours[0].count("one more") == 2
    no_steps_left(way, inside)


def no_steps_left(way: Way, inside: dict[str, str]) -> None:
    argv = ["squeue", "--steps", "--noheader", f"--jobs={inside['SLURM_JOB_ID']}", "--format=%i"]
    ended = lambda: not way.cluster.exec(argv, check=True).stdout.split()  # noqa: E731
    wait_for(ended, time.monotonic() + 60, "steps are left")


@pytest.mark.parametrize("how", ["timeout 1", "timeout --foreground 1"])
def test_timeout(way: Way, inside: dict[str, str], how: str) -> None:
    """Its signal comes to the process and to the group: only the code is no matter of chance."""
    ours, plain = way.both(f"{how} $SRUN -N1 -n1 sleep 60; echo $?", **inside)
    assert ours[0] == plain[0]
    no_steps_left(way, inside)


def test_a_signal_at_any_moment_leaves_nothing_behind(way: Way) -> None:
    """From the shell's fork to the running step, and while the job waits for nodes."""
    script = """
        for i in $(seq 0 8 120); do
            $SRUN -N1 sleep 600 & pid=$!
            sleep 0.$(printf %03d $i); kill -TERM $pid; wait $pid; echo $?
        done
        """
    before = way.running_jobs()
    done = way.sh(script)
    assert set(done.stdout.split()) <= {"137", "143", "1"}
    wait_for(lambda: way.running_jobs() == before, time.monotonic() + 60, "jobs are left")


# -- where srun is called ------------------------------------------------------------

PLACES = {
    "alone": "$SRUN -l -w n3 bash -c 'pwd; exit 4' -- 'a b'",
    "alone, its own job in a file": "$SRUN -w n3 -o job=%j-%t echo a",
    "alone, by variables": "SLURM_NODELIST=n3 SLURM_NTASKS=2 SLURM_LABELIO=1 $SRUN echo a | sort",
    "salloc": "salloc -Q -w n3 $SRUN -l hostname; salloc -Q -w n3 bash -c '$SRUN false'",
    "jobid": """salloc -Q -w n3 bash -c 'job=$SLURM_JOB_ID; for name in ${!SLURM_*}; do
        [ $name = SLURM_CONF ] || unset $name; done; $SRUN --jobid=$job -l hostname'""",
    "sbatch": r"""printf '#!/bin/bash\n%s\n' '$SRUN -l hostname; seq 9 | $SRUN cat' 'exit 5' >script
        sbatch -W -w n3 -o out script | tr -d 0-9; echo ${PIPESTATUS[*]}""",
    "a step of another step": """salloc -Q -w n3 srun --overlap bash -c '
        $SRUN --overlap -l bash -c "hostname; exit 6"; echo $?'""",
}


@pytest.mark.parametrize("script", PLACES.values(), ids=PLACES.keys())
def test_places(way: Way, script: str) -> None:
    ours, plain = way.both(script)
    assert ours == plain


# -- terminals ----------------------------------------------------------------------


PTY_TASK = """#!/bin/bash
stty size
read -p 'ask: ' x
until [ "$(stty size)" = "40 100" ]; do sleep 0.05; done
echo got=$x
read -s -n1 key
exit 7
"""


@pytest.mark.parametrize(("watched", "key", "code"), [(True, "x", 7), (False, CTRL_C, 130)])
def test_pty(way: Way, inside: dict[str, str], watched: bool, key: str, code: int) -> None:
    """The terminal is raw while the step runs, and as before afterwards."""
    run = Run(way.cluster, PATH=way.path, HPRESUME_WATCH_DELAY="0" if watched else "60", **inside)
    run.write("task", PTY_TASK)
    with Terminal(run) as terminal:
        before = terminal.settings()
        for srun in (way.plain, "srun --auto-resume=1"):
            terminal.resize(33, 77)
            terminal.press(f"{srun} -N1 -n1 --pty ./task; echo code=$?\n")
            terminal.expect(r"33 77\r\n")
            terminal.expect("ask: ")
            assert terminal.settings() != before
            if watched and srun != way.plain:
                # Each line from the left edge, although the terminal is raw.
                terminal.expect(r"\[Auto Resume\] protecting [^\n]*\r\n")
                terminal.expect(r"\[Auto Resume\] [^\n]*\r\n")
            terminal.resize(40, 100)
            terminal.press("hello\r")
            terminal.expect(r"\ngot=hello\r\n")
            terminal.press(key)
            terminal.expect(rf"code={code}\r\n")
            terminal.expect(r"\$ $")
            assert terminal.settings() == before


def test_job_control(way: Way) -> None:
    """Background, fg, Ctrl-Z, bg, fg: supervisor and srun stop and go on together."""
    fast = {"HPRESUME_WATCH_DELAY": "0", "HPRESUME_HEARTBEAT": "0.1"}
    run = Run(way.cluster, PATH=way.path, **fast)
    with Terminal(run) as terminal:
        terminal.press(f"srun --auto-resume=1 -w n3 {run.rank_script} &\n")
        run.wait_up(1, 1)
        terminal.expect(r"\[Auto Resume\] protecting the step on n3")
        terminal.press("fg\n")
        terminal.expect(r"srun --auto-resume=1 -w n3 \S+\r\n")
        terminal.press("\x1a")
        terminal.expect(r"\[1\]\+  Stopped ")
        # Silent for many heartbeats, and seen so by nobody.
        terminal.press("ps -o stat= --ppid $$ | sort -u; sleep 1.5; echo aw''ake\n")
        assert "\nT" in terminal.expect(r"(?s).*\nawake\r\n")[0]
        terminal.press("bg\n")
        terminal.expect(r"\[1\]\+ srun")
        terminal.press("fg\n")
        terminal.expect(r"srun --auto-resume=1 -w n3 \S+\r\n")
        run.stop()
        ended = terminal.expect(r"(?s)(.*)\$ $")
        terminal.press("echo code=$?\n")
        terminal.expect(r"code=0\r\n")
    assert "Auto Resume" not in ended[1]
    assert [up.attempt for up in run.ups()] == [1]


# -- further plugins ----------------------------------------------------------------

GREET = r"""
#include <stdlib.h>
#include <string.h>
#include <slurm/spank.h>
SPANK_PLUGIN(greet, 1)
static char whom[64], how[64];
static int on_whom(int val, const char *arg, int remote)
{
    strncpy(whom, arg ? arg : "nobody", sizeof(whom) - 1);
    return 0;
}
static int on_how(int val, const char *arg, int remote)
{
    strncpy(how, arg ? arg : "-", sizeof(how) - 1);
    return 0;
}
static struct spank_option options[] = {
    { "greet", "[whom]", "greet somebody", 2, 0, on_whom },
    { "greet-how", "words", "the words", 1, 0, on_how },
    { "greet-loud", NULL, "a flag", 0, 0, NULL },
    SPANK_OPTIONS_TABLE_END
};
int slurm_spank_init(spank_t sp, int ac, char **av)
{
    for (int i = 0; i < 3; i++)
        spank_option_register(sp, &options[i]);
    return 0;
}
int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
    spank_setenv(sp, "GREETED", whom, 1);
    spank_setenv(sp, "GREETED_HOW", how, 1);
    return 0;
}
"""


def test_options_of_other_plugins(way: Way, tmp_path_factory: pytest.TempPathFactory) -> None:
    if shutil.which("cc") is None or not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("needs cc and slurm/spank.h")
    way.plugstack(f"required {compile_spank(GREET, 'greet', way.cluster.home().parent)}")
    try:
        for options in ("--greet", "--greet=you --greet-loud", "--greet-how --auto-resume --greet"):
            script = (
                f"$SRUN -w n3 {options} bash -c 'echo $GREETED, $GREETED_HOW; exit 3' --greet=x"
            )
            ours, plain = way.both(script)
            assert ours == plain
            assert "," in ours[0]
        # The option of ours stands behind an option of theirs that takes a value.
        done = way.sh("srun -w n3 --greet-how hello --auto-resume printenv GREETED_HOW")
        assert (done.stdout, done.code) == ("hello\n", 0)
    finally:
        way.plugstack()


# -- those who do not ask for it ----------------------------------------------------


def test_a_plain_srun_of_another_user_is_the_same(way: Way) -> None:
    """Output and environment with the plugin, or under the wrapper, and without."""
    script = "srun -w n3 env -0"
    with_it = way.sh(script, user="other")
    with without_the_plugin(way):
        without = way.sh(f"{way.plain} -w n3 env -0", user="other")
    assert (with_it.stderr, with_it.code) == (without.stderr, without.code) == ("", 0)
    differing = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME"}
    got, plain = environ_of(with_it), environ_of(without)
    names = (got.keys() | plain.keys()) - differing - PASSING
    assert {k for k in names if got.get(k) != plain.get(k)} == set()


@contextmanager
def without_the_plugin(way: Way) -> Iterator[None]:
    """The cluster as it is where nobody has installed it."""
    text = way.cluster.layout.plugstack_conf.read_text()
    way.cluster.layout.plugstack_conf.write_text("")
    try:
        yield
    finally:
        way.cluster.layout.plugstack_conf.write_text(text)


# -- a protected srun in a protected step --------------------------------------------


def test_nested(way: Way, inside: dict[str, str]) -> None:
    """The inner one is protected by a supervisor of its own, for its own nodes."""
    script = """
        srun --auto-resume=1 -N2 -n2 bash -c '[ $SLURM_PROCID = 0 ] || exit 0
            env -0 >outer
            srun --auto-resume=1 -N1 -n1 env -0 >inner
            srun --auto-resume=1 -N1 -n1 bash -c "exit 7"'
        """
    done = way.sh(script, **inside)
    outer, inner = (
        dict(entry.split("=", 1) for entry in done.files[name].decode().split("\0")[:-1])
        for name in ("outer", "inner")
    )
    assert done.code == 7
    assert outer["HPRESUME_ATTEMPT"] == inner["HPRESUME_ATTEMPT"] == "1"
    # Two steps may share a node: not its port. And what is said of nodes is not the outer's.
    assert inner["MASTER_PORT"] != outer["MASTER_PORT"]
    assert inner.get("NODE_LIST") != "n1,n2"


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_nested_steps_that_lose_a_node(way: Way, cluster: E2eCluster, first: str) -> None:
    """The outer supervisor starts all again, whichever sees it first; nothing is left over."""
    slow, fast = "3", "0.2"
    outer_beat, inner_beat = (fast, slow) if first == "outer" else (slow, fast)
    run = Run(cluster, PATH=way.path, HPRESUME_HEARTBEAT=outer_beat)
    run.write("outer.sh", f"""#!/bin/bash
[ $SLURM_PROCID = 0 ] || exec {run.rank_script}
export RUN_DIR=$RUN_DIR/inner HPRESUME_HEARTBEAT={inner_beat}
exec srun --auto-resume=1 --overlap -N2 -n2 {run.rank_script}
""")  # fmt: skip
    inner = Run(cluster)
    inner.dir.rename(run.dir / "inner")
    inner.dir = run.dir / "inner"
    run.batch(f"srun --auto-resume=1 -N2 -n2 {run.dir}/outer.sh; echo code=$?", "-N3")
    inner.wait(lambda: len(inner.ups()) == 2, 30, "the inner step does not come up")
    run.wait(lambda: len(run.events("watched")) == 2, 30, "the steps are not watched")
    cluster.crash("n2")
    run.wait(lambda: {u.node for u in run.ups(2)} == {"n3"}, 40, "the outer does not come back")
    # The inner one that saw it first had two ranks of its own running again by then, if the
    # node was one of its own: from Slurm 24.11 on, it may have got others of the job.
    again = first == "inner" and "n2" in {u.node for u in inner.ups()[:2]}
    expected = 6 if again else 4
    inner.wait(lambda: len(inner.ups()) == expected, 30, "not again")
    assert {u.node for u in inner.ups()[-2:]} == {"n1", "n3"}
    inner.stop()
    out = run.finish()
    assert "code=0" in out
    assert len(inner.ups()) == expected
