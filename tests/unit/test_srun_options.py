"""srun's command line: our reading of it against libc's getopt_long and the installed srun."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hpresume.errors import SlurmError, UsageError
from hpresume.slurm import srun_help
from hpresume.slurm.srun_options import (
    AUTO_RESUME,
    Arity,
    OptionSpec,
    OptionTable,
    ParsedOption,
    SupervisorSplit,
    auto_resume_value,
    insertion_index,
    is_heterogeneous,
    parse_help,
    split_argv,
    split_for_supervisor,
    without_options,
)

ROOT = Path(__file__).resolve().parents[2]

HELP = """\
Usage: srun [OPTIONS...] program [args...]

Run options:
  -A, --account=name          whom to charge
  -k, --no-kill               a flag, says this line
  -I, --immediate[=secs]      how long to wait
      --container             Path to a bundle
  -B  --extra-node-info=S[:C[:T]]  no comma, and text
                              --not-an-option in the middle of it
      --bcast=<dest_path>     copy the program
  -l, --label                 prefix of the lines
  -N, --nodes=N               how many nodes (N = min[-max])
      --ntasks-per-node=n     how many
  -J, --job-name=jobname      what to call it
      --power=flags           gone later

Options provided by plugins:
      --auto-resume=[0|1]     [hpresume] about this
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image
      --container-writable    [pyxis] a flag

      --a-very-long-option-of-a-plugin-that-does-not-fit=VALUE
                              more about it

Help options:
  -h, --help                  show this help message
"""


@pytest.fixture(scope="module")
def table() -> OptionTable:
    return parse_help(HELP)


def spec_of(table: OptionTable, name: str) -> OptionSpec:
    return table.long(f"--{name}")


# -- the help


@pytest.mark.parametrize(
    ("name", "short", "arity"),
    [
        ("account", "A", Arity.REQUIRED),
        ("label", "l", Arity.NONE),
        ("immediate", "I", Arity.OPTIONAL),
        ("extra-node-info", "B", Arity.REQUIRED),
        ("no-kill", "k", Arity.OPTIONAL),
        ("container", None, Arity.REQUIRED),
        ("bcast", None, Arity.OPTIONAL),
        ("auto-resume", None, Arity.OPTIONAL),
        ("container-image", None, Arity.REQUIRED),
        ("container-writable", None, Arity.NONE),
        ("a-very-long-option-of-a-plugin-that-does-not-fit", None, Arity.REQUIRED),
        ("help", "h", Arity.NONE),
        # not in the help at all
        ("open-mode", None, Arity.REQUIRED),
        ("nodefile", "F", Arity.REQUIRED),
        ("test-only", None, Arity.NONE),
    ],
)
def test_options_of_the_help(table, name, short, arity):
    spec = spec_of(table, name)
    assert (spec.name, spec.short, spec.arity) == (name, short, arity)


def test_text_in_a_description_is_no_option(table):
    assert "not-an-option" not in table


def test_without_a_list_of_names_all_undocumented_options_are_known(table):
    assert {"uid", "power", "mem-update", "segment", "x11"} < {spec.name for spec in table}


def test_the_list_of_names_decides_which_options_there_are():
    table = parse_help("options: nodes test-only of-a-newer-slurm label\n" + HELP)
    assert [(spec.name, spec.short, spec.arity) for spec in table] == [
        ("nodes", "N", Arity.REQUIRED),
        ("test-only", None, Arity.NONE),
        ("of-a-newer-slurm", None, Arity.REQUIRED),
        ("label", "l", Arity.NONE),
    ]


@pytest.mark.parametrize("text", ["", "srun: fatal: no configuration\n"])
def test_text_without_options(text):
    with pytest.raises(SlurmError, match="cannot be read"):
        parse_help(text)


def test_a_table_survives_being_kept(table):
    assert list(OptionTable.load(table.dump())) == list(table)


@pytest.mark.parametrize("text", ["", "a none\n", "a some -\n", "a none - b\n", "\n"])
def test_other_text_is_not_a_table(text):
    with pytest.raises(ValueError):
        OptionTable.load(text)


def test_values_are_frozen(table):
    split = split_argv(["srun", "-l", "x"], table)
    for value in (split, split.options[0], spec_of(table, "nodes")):
        with pytest.raises(AttributeError, match="frozen"):
            setattr(value, value.__slots__[0], 1)
        assert hash(value) == hash(value)
        assert repr(value).startswith(type(value).__name__)


# -- argv


def test_split(table):
    argv = ["srun", "-lN", "2", "--job-name", "x", "--immediate", "--account=me", "cmd", "-l", "--"]
    split = split_argv(argv, table)
    assert split.options == (
        ParsedOption("label", None, 1, 3),
        ParsedOption("nodes", "2", 1, 3),
        ParsedOption("job-name", "x", 3, 5),
        ParsedOption("immediate", None, 5, 6),
        ParsedOption("account", "me", 6, 7),
    )
    assert (split.insert_at, split.command_index) == (7, 7)
    assert split.command == ("cmd", "-l", "--")


def test_the_last_value_counts_over_all_spellings(table):
    argv = ["srun", "-N1", "--nodes=2", "--tasks-per-node=3", "--ntasks-per-node=4", "-l", "x"]
    split = split_argv(argv, table)
    assert split.value_of("nodes") == "2"
    assert split.value_of("ntasks-per-node") == "4"
    assert split.value_of("account", "nodes") == "2"
    assert (split.given("label"), split.value_of("label")) == (True, None)
    assert (split.given("account"), split.value_of("account")) == (False, None)


VALUES = {"nodes": "N", "relative": "r", "nodelist": "w", "job-name": "J"}


@pytest.mark.parametrize(
    ("argv", "left"),
    [
        ("srun -N2 -r1 x", "srun -N2 x"),
        ("srun -r 1 -N2 -- x -r 1", "srun -N2 -- x -r 1"),
        ("srun -lr1 -N2 x", "srun -l -N2 x"),
        ("srun -llr 1 -N2 x", "srun -ll -N2 x"),
        ("srun --relative=1 -r 2 --rel 3 x", "srun x"),
        ("srun -w n1 --nodelist n2 -r1 -J -r x", "srun -J -r x"),
        ("srun -l x", "srun -l x"),
        ("srun x", "srun x"),
    ],
)
def test_options_are_taken_out(argv, left):
    table = OptionTable(
        [
            OptionSpec("label", Arity.NONE, "l"),
            OptionSpec("no-kill", Arity.OPTIONAL, "k"),
            *(OptionSpec(name, Arity.REQUIRED, short) for name, short in VALUES.items()),
        ]
    )
    words = argv.split()
    options = split_argv(words, table).options
    assert without_options(words, options, ("relative", "nodelist")) == left.split()


@pytest.mark.parametrize(
    ("argv", "insert_at", "command_index"),
    [
        (["srun"], 1, 1),
        (["srun", "cmd"], 1, 1),
        (["srun", "-", "-l"], 1, 1),
        (["srun", "", "-l"], 1, 1),
        (["srun", "--", "cmd"], 1, 2),
        (["srun", "-l", "--"], 2, 3),
        (["srun", "-J", "--", "cmd"], 3, 3),
        (["srun", "-J", "--", "--", "cmd"], 3, 4),
        (["srun", "--job-name", "--", "--", "--", "cmd"], 3, 4),
        (["srun", "-I", "5", "cmd"], 2, 2),
        (["srun", "-I5", "cmd"], 2, 2),
        (["srun", "--container-image", "a", "cmd"], 3, 3),
    ],
    ids=str,
)
def test_where_the_options_end(table, argv, insert_at, command_index):
    split = split_argv(argv, table)
    assert (split.insert_at, split.command_index) == (insert_at, command_index)
    if split.command:
        assert insertion_index(argv, command_index, table) == insert_at


def test_insertion_where_the_options_cannot_be_read(table):
    assert insertion_index(["srun", "--unheard-of", "--", "cmd"], 3, table) == 2
    assert insertion_index(["srun", "--unheard-of", "cmd"], 2, table) == 2


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


# -- against libc


class CLongOption(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("has_arg", ctypes.c_int),
        ("flag", ctypes.c_void_p),
        ("val", ctypes.c_int),
    )


class Getopt:
    """libc's getopt_long with an OptionTable, called as srun calls it."""

    def __init__(self, table: OptionTable) -> None:
        specs = list(table)
        names = sorted({spec.canonical for spec in specs})
        values = {name: 1000 + number for number, name in enumerate(names)}
        for spec in specs:
            if spec.short:
                values[spec.canonical] = ord(spec.short)
        self.names = {value: name for name, value in values.items()}
        arity = {Arity.NONE: 0, Arity.REQUIRED: 1, Arity.OPTIONAL: 2}
        self.options = (CLongOption * (len(specs) + 1))()
        for number, spec in enumerate(specs):
            self.options[number] = CLongOption(
                spec.name.encode(), arity[spec.arity], None, values[spec.canonical]
            )
        self.letters = b"+" + b"".join(
            spec.short.encode() + b":" * arity[spec.arity] for spec in specs if spec.short
        )
        self.libc = ctypes.CDLL(None)
        ctypes.c_int.in_dll(self.libc, "opterr").value = 0

    def split(self, argv: list[str]) -> tuple[list[tuple[str, str | None]], int] | None:
        """Options and the index of the command; None where getopt refuses."""
        words = (ctypes.c_char_p * (len(argv) + 1))(*map(os.fsencode, argv), None)
        optind = ctypes.c_int.in_dll(self.libc, "optind")
        optarg = ctypes.c_char_p.in_dll(self.libc, "optarg")
        optind.value = 0
        found: list[tuple[str, str | None]] = []
        while True:
            value = self.libc.getopt_long(len(argv), words, self.letters, self.options, None)
            if value == -1:
                return found, optind.value
            if value == ord("?"):
                return None
            text = optarg.value
            found.append((self.names[value], None if text is None else os.fsdecode(text)))


fragments = st.sampled_from(
    [
        *("-", "--", "l", "N", "I", "k", "J", "A", "2", "=", "=x", "", ":", "cmd", "h", "é", "+"),
        *("nodes", "label", "immediate", "job-name", "no", "a", "auto", "auto-resume", "acc"),
        *("container", "container-image", "cpu", "cpu_bind", "cpu-b", "ntasks-per-node", "tasks"),
    ]
)
words = st.lists(fragments, max_size=4).map("".join)
likely_words = st.sampled_from(
    [
        *("-N", "-N2", "-lN", "2", "-l", "-I", "-I5", "--", "-J", "--nodes", "--nod=3", "--imm"),
        *("--immediate=4", "--job-name", "--auto-resume", "--auto-r=1", "--tasks-per-node"),
        *("-k0", "--cpu_b=x", "--cpu-bind", "--het-group=1", "--pack=0", "-lkI", "cmd"),
    ]
)


@settings(max_examples=2000)
@given(argv=st.lists(likely_words | words, max_size=8))
def test_the_split_is_that_of_getopt_long(table, argv):
    whole = ["srun", *argv]
    expected = Getopt(table).split(whole)
    try:
        split = split_argv(whole, table)
    except UsageError:
        assert expected is None
    else:
        got = [(option.name, option.value) for option in split.options]
        assert (got, split.command_index) == expected


@settings(max_examples=500)
@given(argv=st.lists(likely_words | words, max_size=8))
def test_ranges_cover_the_options_and_nothing_else(table, argv):
    whole = ["srun", *argv]
    try:
        split = split_argv(whole, table)
    except UsageError:
        assume(False)
    covered = {index for option in split.options for index in range(option.start, option.end)}
    assert covered == set(range(1, split.insert_at))
    assert whole[split.insert_at : split.command_index] in ([], ["--"])
    # What is left after the options starts with the command, however it looks.
    assert split.command == tuple(whole[split.command_index :])


# -- heterogeneous steps


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-N1", "a", ":", "-N1", "b"], True),
        (["echo", "a", ":", "b"], True),
        ([":", "b"], True),
        (["-J", ":", "a"], False),
        (["-l", "a", "::", "x:y", ": "], False),
        (["--", ":", "a"], True),
    ],
    ids=str,
)
def test_heterogeneous(table, argv, expected):
    whole = ["srun", *argv]
    assert is_heterogeneous(whole, split_argv(whole, table).command_index) is expected


# -- for the wrapper


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("-N2 cmd", (False, "-N2 cmd", 2)),
        ("--auto-resume -N2 cmd", (True, "-N2 cmd", 2)),
        ("-N2 --auto-resume=1 -- cmd", (True, "-N2 -- cmd", 3)),
        ("--auto-r -N2 --auto-resume=0 cmd", (False, "-N2 cmd", 2)),
        ("--auto-resume=0 --auto-= cmd", (True, "cmd", 1)),
        ("--auto-resume 1 cmd", (True, "1 cmd", 1)),
        ("-N2 cmd --auto-resume", (False, "-N2 cmd --auto-resume", 2)),
        ("-J --auto-resume cmd", (False, "-J --auto-resume cmd", 3)),
        ("--auto-resume cmd --auto-resume=0", (True, "cmd --auto-resume=0", 1)),
        ("--auto-resume -N1 a : --auto-resume b", (True, "-N1 a : b", 2)),
        ("-N1 a x : --auto-resume -N1 b", (True, "-N1 a x : -N1 b", 2)),
        ("a : --auto-resume b --auto-resume : --auto-r=0 c", (False, "a : b --auto-resume : c", 1)),
        ("a : -J --auto-resume b :", (False, "a : -J --auto-resume b :", 1)),
        ("--auto-resume : :", (True, ": :", 1)),
        ("--auto-resume", (True, "", 1)),
        ("", (False, "", 1)),
    ],
)
@pytest.mark.parametrize("plugin", [True, False], ids=["plugin", "no plugin"])
def test_split_for_supervisor(argv, expected, plugin):
    text = HELP if plugin else HELP.replace("      --auto-resume=[0|1]", "      --other")
    protect, rest, index = expected
    result = split_for_supervisor(["srun", *argv.split()], text)
    assert result == SupervisorSplit(protect, ["srun", *rest.split()], index)


@pytest.mark.parametrize("value", ["2", "no", " 1"])
def test_other_values_of_auto_resume(value):
    with pytest.raises(UsageError, match=r"must be 1 \(or none\) for on, 0 for off"):
        split_for_supervisor(["srun", f"--auto-resume={value}", "--auto-resume=1", "cmd"], HELP)


def test_values_of_auto_resume():
    on = [auto_resume_value(value) for value in (None, "", "1", "(null)")]
    assert on == [True] * 4
    assert auto_resume_value("0") is False


# -- the installed srun


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


def test_the_real_help(real_srun):
    assert spec_of(real_srun.table, AUTO_RESUME).arity is Arity.OPTIONAL
    assert len(list(real_srun.table)) > 120
    assert spec_of(real_srun.table, "nodes") == OptionSpec("nodes", Arity.REQUIRED, "N")


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


# -- the cache


@pytest.fixture
def fake_srun(tmp_path, monkeypatch):
    """An srun that counts its calls and prints HELP."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    (tmp_path / "help").write_text(HELP)
    program = tmp_path / "srun"
    program.write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$1" >>calls\n'
        'if [ "$1" = --help ]; then cat help; else exit 1; fi\n'
    )
    program.chmod(0o755)
    return program


def calls(srun: Path) -> int:
    return len((srun.parent / "calls").read_text().splitlines())


def test_srun_is_asked_once(fake_srun):
    for _ in range(3):
        spec = srun_help.with_table(str(fake_srun), lambda table: table.long("--nodes"))
        assert spec == OptionSpec("nodes", Arity.REQUIRED, "N")
    assert calls(fake_srun) == 2


def test_another_srun_or_configuration_is_asked_again(fake_srun, monkeypatch):
    srun_help.with_table(str(fake_srun), list)
    monkeypatch.setenv("SLURM_CONF", "/elsewhere/slurm.conf")
    srun_help.with_table(str(fake_srun), list)
    os.utime(fake_srun, (1, 1))
    srun_help.with_table(str(fake_srun), list)
    assert calls(fake_srun) == 6


def test_an_error_is_believed_only_with_a_fresh_table(fake_srun):
    srun_help.with_table(str(fake_srun), list)
    help_file = fake_srun.parent / "help"
    help_file.write_text(HELP.replace("--container-writable", "--just-installed"))
    assert srun_help.with_table(str(fake_srun), lambda table: table.long("--just")).short is None
    with pytest.raises(UsageError, match="unrecognized"):
        srun_help.with_table(str(fake_srun), lambda table: table.long("--never"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"rubbish\n",
        b"hpresume option table 1\n",
        b"hpresume option table 1\na b c\n",
    ],
    ids=str,
)
def test_a_damaged_cache_is_replaced(fake_srun, content):
    srun_help.with_table(str(fake_srun), list)
    (file,) = (fake_srun.parent / "cache" / "hpresume").iterdir()
    file.write_bytes(content)
    assert AUTO_RESUME in srun_help.with_table(str(fake_srun), lambda table: table)
    assert file.read_text().endswith(parse_help(HELP).dump())


def test_an_old_cache_is_not_used(fake_srun):
    srun_help.with_table(str(fake_srun), list)
    (file,) = (fake_srun.parent / "cache" / "hpresume").iterdir()
    os.utime(file, (1, 1))
    srun_help.with_table(str(fake_srun), list)
    assert calls(fake_srun) == 4


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null", "relative"])
def test_no_place_for_a_cache(fake_srun, monkeypatch, place):
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    for _ in range(2):
        srun_help.with_table(str(fake_srun), list)
    assert calls(fake_srun) == 4
    assert not Path("relative").exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#!/bin/sh\necho oops >&2\nexit 1\n", "--help failed: oops"),
        ("#!/bin/sh\nexit 3\n", "--help failed: exit code 3"),
        ("#!/bin/sh\necho nothing useful\n", "cannot be read"),
        ("#!/nowhere/sh\n", "cannot run .*No such file"),
    ],
)
def test_an_srun_that_cannot_tell_its_options(fake_srun, script, message):
    fake_srun.write_text(script)
    with pytest.raises(SlurmError, match=message):
        srun_help.with_table(str(fake_srun), list)


def test_the_width_of_the_terminal_is_not_passed_on(fake_srun, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    fake_srun.write_text('#!/bin/sh\n[ -z "$COLUMNS" ] || exit 1\necho "  -l, --label  x"\n')
    assert "label" in srun_help.with_table(str(fake_srun), lambda table: table)


def test_a_table_from_the_cache_splits_as_the_fresh_one() -> None:
    """Arities read from a file equal the constants without being the same objects."""
    table = parse_help("      --label   x\n  -w, --nodelist=hosts...   x\n      --x11[=all]   x\n")
    cached = OptionTable.load(table.dump())
    argv = ["srun", "-w", "n2,n3", "--nodelist", "n4", "--x11", "cmd", "-w"]
    assert split_argv(argv, cached) == split_argv(argv, table)
    assert split_argv(argv, cached).command_index == 6
