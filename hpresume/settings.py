"""Where settings come from: defaults < ``/etc/hpresume/hpresume.toml`` < ``HPRESUME_*`` < flags.

A setting ``max_resumes`` of the table ``[resume]`` is ``HPRESUME_MAX_RESUMES`` in the
environment. Read before the first attempt of every srun that has any, so nothing
is imported that takes time: neither dataclasses nor typing, and the TOML parser
only where there is a file.
"""

from __future__ import annotations

from hpresume.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

#: The administrator's file; ``HPRESUME_CONFIG`` names another one.
SYSTEM_FILE = "/etc/hpresume/hpresume.toml"

_PREFIX = "HPRESUME_"

#: Variables with our prefix that are no settings of the resume table.
_RESERVED = frozenset({"CONFIG", "ATTEMPT", "SRUN", "SUPERVISOR"})
_RESERVED_PREFIXES = ("DEVCLUSTER", "TEST_", "DEMO_", "ENV_")

#: Rungs of the ladder, in the order in which they are tried.
RUNGS = ("same", "spare", "replace", "grow", "fewer", "requeue", "new")

_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

#: Longest value that an error shows (characters).
_MOST_SHOWN = 1000
_TOO_LONG = "a value too long to show"


def _duration(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        text = str(value).strip().lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text[len(number) :].strip()
        try:
            seconds = float(number) * _UNITS[unit]
        except (ValueError, KeyError):
            raise ValueError("a time such as 30, 500ms, 30s, 5m or 2h") from None
        if isinstance(value, bool) or not low <= seconds <= high:
            raise ValueError(f"a time from {low:g} s to {high:g} s")
        return seconds

    return parse


def _count(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not text.isascii() or not text.isdigit():
            raise ValueError(f"a whole number from {low} to {high}")
        number = int(text) if len(text) < 20 else high + 1
        if not low <= number <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return number

    return parse


def _choice(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(" or ".join(allowed))
        return str(value)

    return parse


def _switch(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false", "yes", "no", "on", "off", "1", "0"):
        raise ValueError("true or false")
    return text in ("true", "yes", "on", "1")


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("a text")
    return value


def _urls(value: Any) -> str:
    text = _text(value).strip()
    for url in filter(None, text.split(",")):
        host, colon, port = url.strip().removeprefix("http://").rstrip("/").rpartition(":")
        named = url.strip().startswith("http://") and colon and host and "/" not in host
        if not named or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
            raise ValueError("http://HOST:PORT, or several separated by commas")
    return text


def _heartbeat_file(value: Any) -> str:
    text = _text(value)
    if text and "{rank}" not in text:
        raise ValueError("a path with {rank} in it, such as /tmp/beat.{rank}")
    if text and not text.startswith("/"):
        raise ValueError("an absolute path, such as /tmp/beat.{rank}")
    if "{rank}" in text.rpartition("/")[0] or text.count("{rank}") > 1:
        raise ValueError("a path with {rank} once, in its last part")
    return text


def _grace(value: Any) -> str:
    text = _text(value).upper().removeprefix("SIG")
    name, _, seconds = text.partition("@")
    whole = seconds.isascii() and seconds.isdigit() and len(seconds) < 20
    if text and (name not in ("USR1", "USR2") or not whole or int(seconds) > 604_800):
        raise ValueError("USR1@SECONDS or USR2@SECONDS, up to a week, such as USR1@120")
    return text


def _rungs(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        raise ValueError("a list of " + ", ".join(RUNGS))
    chosen = tuple(n.strip() for n in names if n.strip())
    for name in chosen:
        if name not in RUNGS:
            raise ValueError("a list of " + ", ".join(RUNGS))
    return tuple(r for r in RUNGS if r in chosen)


#: Default, parser and meaning of every setting, in the order in which they are shown.
SETTINGS: dict[str, tuple[Any, Callable[[Any], Any], str]] = {
    "resume_on": (
        "node-failure",
        _choice("node-failure", "any"),
        "resume only after node failures, or after every failure",
    ),
    "max_resumes": (10, _count(0, 10_000), "most resumes of one step, counted across requeues"),
    "max_no_progress": (
        3,
        _count(1, 1000),
        "give up after this many attempts in a row without progress",
    ),
    "min_uptime": (
        60.0,
        _duration(0, 86_400),
        "an attempt that ran longer than this made progress (s)",
    ),
    "checkpoint": ("", _text, "file or directory whose newer modification time is progress"),
    "backoff": (
        2.0,
        _duration(0, 3600),
        "wait after the first attempt without progress, then doubled (s)",
    ),
    "backoff_max": (300.0, _duration(0, 86_400), "longest such wait (s)"),
    "heartbeat": (
        1.0,
        _duration(0.1, 60),
        "interval of the nodes' heartbeats in the watch step (s)",
    ),
    "heartbeat_timeout": (
        0.0,
        _duration(0, 3600),
        "silence after which a node that does not answer is lost (s); 0: twice the interval",
    ),
    "fence_timeout": (
        0.0,
        _duration(0, 3600),
        "a node cut off for this long ends its ranks, and the next attempt waits for that (s);"
        " 0: never",
    ),
    "watch_delay": (1.0, _duration(0, 60), "age of a step at which watching begins (s)"),
    "grow_timeout": (
        60.0,
        _duration(1, 86_400),
        "longest wait for a new node to merge into the job (s)",
    ),
    "replace_timeout": (
        0.0,
        _duration(0, 86_400),
        "longest wait for a lost node to come back under its name (s); 0: do not wait",
    ),
    "min_nodes": (0, _count(0, 100_000), "go on with as few nodes as this; 0: never with fewer"),
    "regrow": (
        False,
        _switch,
        "grow back to the full number of nodes at the next checkpoint, not only at a restart",
    ),
    "heartbeat_file": (
        "",
        _heartbeat_file,
        "file that every rank touches, with {rank} and perhaps {node} in its name",
    ),
    "hang_timeout": (
        600.0,
        _duration(1, 604_800),
        "a rank whose heartbeat_file is older than this hangs (s)",
    ),
    "hang_grace": (
        900.0,
        _duration(0, 604_800),
        "time an attempt has before its first heartbeats or output are due (s)",
    ),
    "output_timeout": (
        0.0,
        _duration(0, 604_800),
        "a step whose output file has not grown for this long hangs (s); 0: never",
    ),
    "health_check": (
        10.0,
        _duration(0, 600),
        "longest time for health checks of a failed step's nodes (s); 0: none are made",
    ),
    "frozen_timeout": (
        0.0,
        _duration(0, 604_800),
        "a node silent for this long is lost although its address answers (s); 0: never",
    ),
    "grace": (
        "",
        _grace,
        "signal and time before a step leaves a node that is set to FAIL or DRAIN; none: it stays",
    ),
    "min_time_left": (
        30.0,
        _duration(0, 86_400),
        "do not resume with less of the job's time limit left (s)",
    ),
    "ladder": (RUNGS, _rungs, "ways to go on that may be used: " + ", ".join(RUNGS)),
    "journal_dir": ("", _text, "directory of the journals; default: $XDG_STATE_HOME/hpresume"),
    "controller": (
        "",
        _urls,
        "http://HOST:PORT of hpresume controller, several separated by commas; none: there is none",
    ),
    "slurm_backend": ("cli", _choice("auto", "cli", "pyslurm"), "how Slurm is asked"),
}


def _parse(name: str, value: Any, source: str) -> Any:
    try:
        shown = repr(value)
    except ValueError:  # TOML's hexadecimal integers know no limit, most Pythons' decimals do
        shown, value = _TOO_LONG, None
    if len(shown) > _MOST_SHOWN:
        shown = _TOO_LONG
    try:
        return SETTINGS[name][1](value)
    except ValueError as error:
        raise ConfigError(f"{source}: {name} is {shown}; allowed is {error}") from None


def _nearest(name: str, shown: Callable[[str], str] = str) -> str:
    import difflib

    close = difflib.get_close_matches(name, SETTINGS, n=1)
    if close:
        return f"did you mean {shown(close[0])}?"
    return "known are: " + ", ".join(map(shown, SETTINGS))


def _is_meant(table: str) -> bool:
    import difflib

    return bool(difflib.get_close_matches(table.lower(), ["resume"], cutoff=0.7))


def _from_file(path: str, *, required: bool) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:
            import tomllib

            document = tomllib.load(stream)
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path}: no such file; HPRESUME_CONFIG names it") from None
        return {}
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); ask the administrator"
        ) from None
    except (ValueError, RecursionError) as error:  # TOML syntax and encoding errors alike
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for name in document:
        # Anything else is for another part of hpresume.
        if name in SETTINGS or (name != "resume" and _is_meant(name)):
            raise ConfigError(f"{path}: unknown {name}; settings belong into the table [resume]")
    table = document.get("resume", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: resume must be a table: [resume]")
    values = {}
    for name, value in table.items():
        if name not in SETTINGS:
            raise ConfigError(f"{path}: unknown setting resume.{name}; {_nearest(name)}")
        values[name] = _parse(name, value, path)
    return values


def read_settings(
    environ: Mapping[str, str], flags: Iterable[tuple[str, str]] = ()
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings that are not the default, and warnings to show (unknown ``HPRESUME_*``).

    Raises:
        ConfigError: a source cannot be read, or holds an unknown name or a
            value out of range; the message names source, name and what is allowed.
    """
    path = environ.get(_PREFIX + "CONFIG", "")
    values = _from_file(path or SYSTEM_FILE, required=bool(path))
    warnings: list[str] = []
    for variable, text in environ.items():
        if not variable.startswith(_PREFIX):
            continue
        rest = variable[len(_PREFIX) :]
        name = rest.lower()
        if name in SETTINGS and rest.isupper():
            values[name] = _parse(name, text, variable)
        elif rest not in _RESERVED and not rest.startswith(_RESERVED_PREFIXES):
            hint = _nearest(name, lambda known: _PREFIX + known.upper())
            warnings.append(f"{variable} is no setting and is ignored; {hint}")
    for name, text in flags:
        if name not in SETTINGS:
            raise ConfigError(f"--set {name}: unknown setting; {_nearest(name)}")
        values[name] = _parse(name, text, "--set")
    return values, tuple(warnings)
