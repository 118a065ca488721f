"""srun's command line: our reading of it, and against libc's getopt_long."""

from __future__ import annotations

import ctypes
import os

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from srun_text import HELP

from hpresume.errors import SlurmError, UsageError
from hpresume.slurm.srun_options import (
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


def test_a_table_from_the_cache_splits_as_the_fresh_one() -> None:
    """Arities read from a file equal the constants without being the same objects."""
    table = parse_help("      --label   x\n  -w, --nodelist=hosts...   x\n      --x11[=all]   x\n")
    cached = OptionTable.load(table.dump())
    argv = ["srun", "-w", "n2,n3", "--nodelist", "n4", "--x11", "cmd", "-w"]
    assert split_argv(argv, cached) == split_argv(argv, table)
    assert split_argv(argv, cached).command_index == 6
