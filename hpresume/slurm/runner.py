"""The one place where hpresume starts Slurm's tools.

Argument lists only, never a shell; every call has a time limit, after which
the tool's whole process group is killed; the environment is made here, so
that variables of the surrounding job or of the user's shell cannot change what
a tool does or prints.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpresume import process_group
from hpresume.errors import SlurmError, SlurmTimeoutError, SlurmToolError, SlurmTransientError
from hpresume.slurm.answers import NO_CONFIGURATION, classify

#: Input variables of Slurm's tools. Inside a job, SLURM_* describes that job
#: (SLURM_JOB_ID turns salloc into a call about it, SLURM_CLUSTERS sends a call
#: elsewhere); the others are defaults of options (SQUEUE_FORMAT, SALLOC_*, …).
_TOOL_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SQUEUE_",
    "SCONTROL_",
    "SCANCEL_",
    "SALLOC_",
    "SBATCH_",
    "SRUN_",
    "SINFO_",
    "SACCT_",
    "_SLURM_",
)

#: How to reach Slurm and who the caller is: these have to stay.
_KEPT = frozenset(
    {
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_JWT",
        "SLURM_SACK_JWKS",
        "SLURM_SACK_KEY",
        "SLURM_SACK_SOCKET",
    }
)

#: The machine or the user's limits leave no room for one more process now.
_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})

#: Texts as the parsers expect them; times as Unix seconds (no time zone, no
#: summer time), honoured by every release since 2.6.
_FIXED = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


def tool_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a tool of Slurm runs, made from ``environ``."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not name.startswith(_TOOL_PREFIXES)
    }
    return kept | _FIXED


@dataclass(frozen=True)
class Answer:
    """What a tool printed and how it ended (negative: by that signal)."""

    stdout: str
    stderr: str
    returncode: int

    @property
    def text(self) -> str:
        """Everything the tool said; tools use both streams for errors."""
        return f"{self.stdout}\n{self.stderr}"


class Runner:
    """Runs Slurm's tools; the seam that unit tests replace."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environment = tool_environment(os.environ if environ is None else environ)

    def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
        """Run ``argv`` and return its answer, whatever its exit code."""
        with self.started(argv, cwd) as process:
            try:
                stdout, stderr = process.communicate(timeout=max(timeout_s, 0.001))
            except subprocess.TimeoutExpired as error:
                raise SlurmTimeoutError(
                    f"{_shown(argv)}: no answer within {timeout_s:.1f} s"
                ) from error
        return Answer(_text(stdout), _text(stderr), process.returncode)

    def check(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> str:
        """Run ``argv``; its output, or the error class its words stand for."""
        answer = self.run(argv, timeout_s, cwd)
        if answer.returncode != 0:
            raise failure(argv, answer)
        return answer.stdout

    @contextlib.contextmanager
    def started(
        self, argv: Sequence[str], cwd: str | None = None, *, stdin: int = subprocess.DEVNULL
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A running tool in a process group of its own, dead when the block ends."""
        try:
            process = process_group.start(argv, self._environment, cwd, stdin)
        except FileNotFoundError as error:
            raise SlurmToolError(
                f"{argv[0]} is not on PATH: install Slurm's client tools"
            ) from error
        except OSError as error:
            kind = SlurmTransientError if error.errno in _SHORTAGES else SlurmToolError
            raise kind(f"{argv[0]} cannot be started: {error}") from error
        with process_group.held(process):
            yield process


def failure(argv: Sequence[str], answer: Answer) -> SlurmError:
    """The error to raise for an answer with a non-zero exit code."""
    kind, line = classify(answer.text)
    if NO_CONFIGURATION in answer.text:
        line = "no slurm.conf is found here: set SLURM_CONF where it is not in its usual place"
    said = line or f"exit code {answer.returncode} without a word"
    return kind(f"{_shown(argv)}: {_shortened(said, 300)}")


def _shown(argv: Sequence[str]) -> str:
    return _shortened(" ".join(argv), 120)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _text(output: bytes) -> str:
    return output.decode("utf-8", errors="replace")
