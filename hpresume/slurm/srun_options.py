"""Reading of srun's command line, as srun itself reads it.

srun parses its arguments with ``getopt_long`` and the option string ``+…``: options end at the
first other word or at ``--``, long options may be abbreviated, flags may be clustered. Which
options there are depends on the Slurm version and on the plugins, so they are taken from
``srun --help`` (see srun_help), with what that text leaves out added from a table below.

Arguments are plain lists. Where a function takes ``argv`` it is the whole list, the name of the
program first; indices count it, as libc's ``optind`` does and as the plugin reports them.
Pure; a faulty command line is a UsageError in srun's own words. Imports next to nothing: under
the wrapper script this runs before the user's step can start.
"""

from __future__ import annotations

from hpresume.errors import SlurmError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

AUTO_RESUME = "auto-resume"


class Arity:
    """Whether an option takes a value."""

    NONE = "none"
    REQUIRED = "required"
    OPTIONAL = "optional"


class _Record:
    """A small frozen value. (The import of dataclasses takes longer than all this module does.)"""

    __slots__: tuple[str, ...] = ()

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Record) and (
            (type(self), self._values()) == (type(other), other._values())
        )

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"{type(self).__name__} is frozen")
        object.__setattr__(self, name, value)


class OptionSpec(_Record):
    """One option of srun. ``canonical`` is the name shared by an option and its other spellings."""

    __slots__ = ("arity", "canonical", "name", "short")

    def __init__(self, name: str, arity: str, short: str | None = None) -> None:
        self.name = name
        self.arity = arity
        self.short = short
        self.canonical = _SPELLINGS.get(name, name)

    def same_as(self, other: OptionSpec) -> bool:
        """Whether the two are spellings of one option to getopt."""
        return self.canonical == other.canonical and self.arity == other.arity


class ParsedOption(_Record):
    """An option found in argv: canonical long name, value, and ``argv[start:end]`` that held it.

    A cluster such as ``-lN2`` gives several with the same range.
    """

    __slots__ = ("end", "name", "start", "value")

    def __init__(self, name: str, value: str | None, start: int, end: int) -> None:
        self.name = name
        self.value = value
        self.start = start
        self.end = end


class SplitArgv(_Record):
    """argv taken apart: srun's options, and where the user's command begins.

    ``insert_at`` is where further options can be put so that they win over the user's:
    at ``command_index``, or before the ``--`` that ends the options.
    """

    __slots__ = ("argv", "command_index", "insert_at", "options")

    def __init__(
        self,
        argv: tuple[str, ...],
        options: tuple[ParsedOption, ...],
        insert_at: int,
        command_index: int,
    ) -> None:
        self.argv = argv
        self.options = options
        self.insert_at = insert_at
        self.command_index = command_index

    @property
    def command(self) -> tuple[str, ...]:
        """The user's command with its arguments; empty where there is none."""
        return self.argv[self.command_index :]

    def last(self, *names: str) -> ParsedOption | None:
        """The last occurrence of any of ``names`` (canonical long names): the one that counts."""
        for option in reversed(self.options):
            if option.name in names:
                return option
        return None

    def value_of(self, *names: str) -> str | None:
        """The value that counts for ``names``; None where not given, or given without a value."""
        option = self.last(*names)
        return option.value if option else None

    def given(self, *names: str) -> bool:
        """Whether any of ``names`` is among the options."""
        return self.last(*names) is not None


class SupervisorSplit(_Record):
    """What the plugin would have handed over: see split_for_supervisor."""

    __slots__ = ("argv", "command_index", "protect")

    def __init__(self, protect: bool, argv: list[str], command_index: int) -> None:
        self.protect = protect
        self.argv = argv
        self.command_index = command_index


class OptionTable:
    """The options of one srun, looked up by letter or by (abbreviated) long name."""

    def __init__(self, specs: Iterable[OptionSpec]) -> None:
        self._long = {spec.name: spec for spec in specs}
        self._short = {spec.short: spec for spec in self._long.values() if spec.short}

    def __iter__(self) -> Iterator[OptionSpec]:
        return iter(self._long.values())

    def __contains__(self, name: str) -> bool:
        return name in self._long

    def dump(self) -> str:
        """The table as text that load reads, a line for each option."""
        return "".join(f"{spec.name} {spec.arity} {spec.short or '-'}\n" for spec in self)

    @classmethod
    def load(cls, text: str) -> OptionTable:
        """Read what dump wrote; raises ValueError for anything else."""
        specs = []
        for line in text.splitlines():
            name, arity, short = line.split(" ")
            if arity not in (Arity.NONE, Arity.REQUIRED, Arity.OPTIONAL):
                raise ValueError(f"not an arity: {arity!r}")
            specs.append(OptionSpec(name, arity, None if short == "-" else short))
        if not specs:
            raise ValueError("an empty table")
        return cls(specs)

    def short(self, letter: str) -> OptionSpec:
        """The option with that letter; raises UsageError where there is none."""
        try:
            return self._short[letter]
        except KeyError:
            raise UsageError(f"srun: invalid option -- '{letter}'") from None

    def long(self, word: str) -> OptionSpec:
        """The option that ``word`` (``--name`` or ``--name=value``, name abbreviated) means."""
        name = word[2:].partition("=")[0]
        if name in self._long:
            return self._long[name]
        found = [spec for key, spec in self._long.items() if key.startswith(name)]
        if not found:
            raise UsageError(f"srun: unrecognized option '{word}'")
        first, *others = found
        others = [spec for spec in others if not spec.same_as(first)]
        if others:
            names = " ".join(f"'--{spec.name}'" for spec in (first, *others))
            raise UsageError(f"srun: option '{word}' is ambiguous; possibilities: {names}")
        return first


# -- reading srun --help

NAMES_PREFIX = "options: "

_HELP_LINE = r" {2,6}(?:-(\w)[, ] *)?--([A-Za-z0-9][\w-]*)(\[=|=(\S*)| |$)"
_PLUGIN_SECTION = "Options provided by plugins:"

# Spellings that share one value in srun's table; only then is a common abbreviation unambiguous.
# Source: the LONG_OPT_ values in slurm_opt.c.
_SPELLINGS = {
    "cpu_bind": "cpu-bind",
    "pack-group": "het-group",
    "tasks-per-node": "ntasks-per-node",
}

# Options that srun's help does not name, or names only in some configurations. Each version has
# some of them. Source: common_options[] in slurm_opt.c of 21.08 to 26.05, compared with _help()
# in srun's opt.c.
_UNDOCUMENTED = {
    Arity.REQUIRED: (
        "accel-bind autocomplete cluster context cpu-bind cpu_bind extra gid hint mem-bind "
        "mem-update msg-timeout network nodefile ntasks-per-gpu ntasks-per-tres open-mode "
        "pack-group prefer resources segment tasks-per-node treewidth uid"
    ),
    Arity.OPTIONAL: "external-launcher x11",
    Arity.NONE: "consolidate-segments debugger-test interactive pty stepmgr test-only whole",
}
_UNDOCUMENTED_LETTERS = {"nodefile": "F"}

# Options whose help line does not show that they take a value. Same source.
_ARITY = {
    "bcast": Arity.OPTIONAL,
    "container": Arity.REQUIRED,
    "container-id": Arity.REQUIRED,
    "kill-on-bad-exit": Arity.OPTIONAL,
    "no-kill": Arity.OPTIONAL,
    "overlap": Arity.OPTIONAL,
    "resv-ports": Arity.OPTIONAL,
}


def parse_help(text: str) -> OptionTable:
    """Read the output of ``srun --help``.

    A first line ``options: NAME…``, made by srun_help, says which options there are, in srun's
    order; without it the undocumented options of all versions are known too. For an option of a
    plugin the help tells the kind of value only by its description: ``[…]`` as a whole counts as
    optional, any other as required, none as a flag. Raises SlurmError for text without options.
    """
    import re

    help_line = re.compile(_HELP_LINE)
    specs: dict[str, OptionSpec] = {}
    of_plugin = False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            of_plugin = line == _PLUGIN_SECTION
        elif found := help_line.match(line):
            short, name, mark, value = found.groups()
            arity = _shown_arity(mark, value or "", of_plugin=of_plugin)
            if not of_plugin:
                arity = _ARITY.get(name, arity)
            # The first wins, as in srun: a plugin cannot redefine an option.
            specs.setdefault(name, OptionSpec(name, arity, short))
    if not specs:
        raise SlurmError("the output of srun --help cannot be read: it names no option")
    for arity, names in _UNDOCUMENTED.items():
        for name in names.split():
            letter = _UNDOCUMENTED_LETTERS.get(name)
            specs.setdefault(name, OptionSpec(name, arity, letter))
    if not text.startswith(NAMES_PREFIX):
        return OptionTable(specs.values())
    present = text.partition("\n")[0].removeprefix(NAMES_PREFIX).split()
    # One that is nowhere described is of a newer Slurm; most of its kind take a value.
    return OptionTable(specs.get(name) or OptionSpec(name, Arity.REQUIRED) for name in present)


def _shown_arity(mark: str, value: str, *, of_plugin: bool) -> str:
    if mark == "[=":
        return Arity.OPTIONAL
    if not mark.startswith("="):
        return Arity.NONE
    # All of it in one pair of brackets; not as in [USER@]IMAGE or [A][B].
    if of_plugin and value.startswith("[") and value.find("]") == len(value) - 1:
        return Arity.OPTIONAL
    return Arity.REQUIRED


# -- reading argv


def split_argv(argv: Sequence[str], table: OptionTable) -> SplitArgv:
    """Take ``argv`` apart exactly as srun's getopt_long does.

    Raises UsageError where srun would refuse: unknown or ambiguous option, missing or
    superfluous value.
    """
    options: list[ParsedOption] = []
    index = 1
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return SplitArgv(tuple(argv), tuple(options), index, index + 1)
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            found = [_read_long(argv, index, table)]
        else:
            found = _read_cluster(argv, index, table)
        options += found
        index = found[-1].end
    return SplitArgv(tuple(argv), tuple(options), index, index)


def _read_long(argv: Sequence[str], index: int, table: OptionTable) -> ParsedOption:
    word = argv[index]
    spec = table.long(word)
    _, equals, value = word.partition("=")
    if equals:
        if spec.arity == Arity.NONE:
            raise UsageError(f"srun: option '--{spec.name}' doesn't allow an argument")
        return ParsedOption(spec.canonical, value, index, index + 1)
    if spec.arity != Arity.REQUIRED:
        return ParsedOption(spec.canonical, None, index, index + 1)
    if index + 1 == len(argv):
        raise UsageError(f"srun: option '--{spec.name}' requires an argument")
    return ParsedOption(spec.canonical, argv[index + 1], index, index + 2)


def _read_cluster(argv: Sequence[str], index: int, table: OptionTable) -> list[ParsedOption]:
    """Read ``-abc``: flags up to the first letter that takes the rest, or the next word."""
    rest = argv[index][1:]
    options: list[ParsedOption] = []
    end = index + 1
    while rest:
        letter, rest = rest[0], rest[1:]
        spec = table.short(letter)
        value = None
        if spec.arity != Arity.NONE and rest:
            value, rest = rest, ""
        elif spec.arity == Arity.REQUIRED:
            if end == len(argv):
                raise UsageError(f"srun: option requires an argument -- '{letter}'")
            value, end = argv[end], end + 1
        options.append(ParsedOption(spec.canonical, value, index, end))
    return [ParsedOption(option.name, option.value, index, end) for option in options]


def without_options(
    argv: Sequence[str], options: Sequence[ParsedOption], names: Iterable[str]
) -> list[str]:
    """``argv`` without the options ``names``, which take values; ``options`` were found in it.

    The flags before one in a cluster (``-lr1``) stay.
    """
    rest, unwanted = list(argv), set(names)
    for option in reversed([option for option in options if option.name in unwanted]):
        flags = sum(other.start == option.start for other in options) - 1
        rest[option.start : option.end] = [argv[option.start][: 1 + flags]] if flags else []
    return rest


def is_heterogeneous(argv: Sequence[str], command_index: int) -> bool:
    """Whether srun takes the command line as a heterogeneous step.

    It does for a lone ``:`` anywhere after the first component's options, be it meant as an
    argument of the command (init_srun in srun_job.c).
    """
    return ":" in argv[command_index:]


def insertion_index(argv: Sequence[str], command_index: int, table: OptionTable) -> int:
    """Where options can be added to ``argv`` whose command is known to be at ``command_index``.

    Only a ``--`` before the command needs the table: it may be the end of the options or the
    value of the last one. Where the options cannot be read, it is taken for the end.
    """
    if command_index < 2 or argv[command_index - 1] != "--":
        return command_index
    try:
        return split_argv(argv[:command_index], table).insert_at
    except UsageError:
        return command_index - 1


# -- --auto-resume without the plugin


def auto_resume_value(value: str | None) -> bool:
    """Whether ``--auto-resume`` with that value means on; raises UsageError as the plugin does."""
    if value in (None, "", "1", "(null)"):
        return True
    if value == "0":
        return False
    raise UsageError(
        f"hpresume: --auto-resume={value}: the value must be 1 (or none) for on, 0 for off"
    )


def split_for_supervisor(argv: Sequence[str], table: OptionTable | str) -> SupervisorSplit:
    """Do for the wrapper script what the plugin does in srun.

    ``table`` may be the text of ``srun --help``. The result is whether the step is to be
    protected, ``argv`` without ``--auto-resume`` in any spelling, which the real srun need not
    know, and the index of the command in it. The command's own arguments are left alone.
    """
    known = parse_help(table) if isinstance(table, str) else table
    if AUTO_RESUME not in known:
        known = OptionTable([*known, OptionSpec(AUTO_RESUME, Arity.OPTIONAL)])
    values: list[bool] = []
    rest: list[str] = []
    command_index = 0
    component = list(argv)
    while True:
        split = split_argv(component, known)
        ours = [option for option in split.options if option.name == AUTO_RESUME]
        # As in srun, every value is checked, and the last one counts.
        values += [auto_resume_value(option.value) for option in ours]
        drop = {option.start for option in ours}
        # Of the other components of a heterogeneous step, each begins with its ":".
        end = split.command_index
        while end < len(component) and component[end] != ":":
            end += 1
        rest += [word for index, word in enumerate(component[:end]) if index not in drop]
        command_index = command_index or split.command_index - len(drop)
        if end == len(component):
            return SupervisorSplit(bool(values and values[-1]), rest, command_index)
        component = component[end:]
