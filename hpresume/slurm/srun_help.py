"""The option table of the installed srun, cached: it is needed at every protected srun.

Asking srun takes about 10 ms, the cached answer half a millisecond. The cache is a file per srun
and configuration in the user's cache directory. It may be outdated, for example when a plugin was
added since; so with_table asks srun again before an error is believed.
"""

from __future__ import annotations

import os
import time
import zlib

from hpresume.errors import SlurmError, SlurmTimeoutError, UsageError
from hpresume.slurm.srun_options import NAMES_PREFIX, OptionTable, parse_help

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")

_MAX_AGE_S = 24 * 3600
_TIME_LIMIT_S = 30
_FORMAT = "hpresume option table 1\n"


def with_table(srun: str, use: Callable[[OptionTable], _T]) -> _T:
    """Return ``use(table)`` with the options of the program ``srun``.

    A UsageError from ``use`` counts only if it comes with a fresh table too. Raises SlurmError
    where srun cannot tell its options.
    """
    file = _cache_file(srun)
    cached = _read_cache(file)
    if cached is not None:
        try:
            return use(cached)
        except UsageError:
            pass
    table = parse_help(ask_srun(srun))
    _write_cache(file, table)
    return use(table)


def ask_srun(srun: str) -> str:
    """The output of ``srun --help``, after a line with the names of all options.

    The help leaves some out, which ones depends on version and build. An abbreviation that fits
    all options makes libc list them.
    """
    names = _run([srun, "--="]).stderr.partition("possibilities:")[2].partition("\n")[0]
    listed = [name.strip("'").removeprefix("--") for name in names.split()]
    text = _run([srun, "--help"])
    if text.returncode != 0:
        reason = text.stderr.strip().splitlines()[-1:] or [f"exit code {text.returncode}"]
        raise SlurmError(f"{srun} --help failed: {reason[0]}")
    return f"{NAMES_PREFIX}{' '.join(listed)}\n{text.stdout}" if listed else text.stdout


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    import subprocess

    # Slurm wraps the options of plugins at COLUMNS, and is not safe with odd values of it.
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environ["LC_ALL"] = "C"
    shown = " ".join(command)
    try:
        return subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmTimeoutError(f"{shown} did not answer within {_TIME_LIMIT_S} s") from None
    except OSError as error:
        raise SlurmError(f"cannot run {shown}: {error.strerror}") from error


def _cache_file(srun: str) -> str | None:
    """Where the answer of ``srun`` is kept: another program or configuration, another file."""
    try:
        status = os.stat(srun)
    except OSError:
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not base.startswith("/"):
        return None
    key = (srun, status.st_mtime_ns, status.st_size, os.environ.get("SLURM_CONF", ""))
    return f"{base}/hpresume/srun-options-{zlib.crc32(repr(key).encode()):08x}"


def _read_cache(file: str | None) -> OptionTable | None:
    if file is None:
        return None
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC), encoding="utf-8") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid != os.getuid() or time.time() - status.st_mtime > _MAX_AGE_S:
                return None
            text = stream.read()
        return OptionTable.load(text.removeprefix(_FORMAT)) if text.startswith(_FORMAT) else None
    except (OSError, ValueError):
        return None


def _write_cache(file: str | None, table: OptionTable) -> None:
    """Keep ``table``; without a place to keep it, the next srun asks again."""
    if file is None:
        return
    from contextlib import suppress
    from pathlib import Path

    new = Path(f"{file}.{os.getpid()}")
    try:
        new.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_text(_FORMAT + table.dump(), encoding="utf-8")
        new.replace(file)
    except OSError:
        with suppress(OSError):
            new.unlink()
