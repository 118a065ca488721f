"""The supervisor as a process, around a FAKE srun, in surroundings that users really have."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

FAKE_SRUN = """#!/bin/sh
exit 3
"""

FAKE_SCONTROL = """#!/bin/sh
echo "scontrol $*" >> "${0%/*}/asked"
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""


class Surroundings:
    """A folder with a fake srun and scontrol, and a user's environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SLURM_JOB_ID": "7"}

    def supervise(self, ignored: signal.Signals | None = None) -> subprocess.CompletedProcess[str]:
        def ignore() -> None:
            if ignored is not None:
                signal.signal(ignored, signal.SIG_IGN)

        argv = [sys.executable, "-m", "hpresume", "supervise", "--plugin"]
        argv += [f"--srun={self.folder}/srun", "--command-index=2", "--"]
        return subprocess.run(
            [*argv, "srun", "--auto-resume=1", "true"],
            env=self.environ, preexec_fn=ignore, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip

    @property
    def asked(self) -> str:
        path = self.folder / "asked"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def surroundings(tmp_path: Path) -> Surroundings:
    return Surroundings(tmp_path)


def test_the_steps_exit_code_with_sigchld_ignored(surroundings: Surroundings) -> None:
    """As after ``trap '' CHLD``: the kernel then keeps no exit codes."""
    done = surroundings.supervise(ignored=signal.SIGCHLD)
    assert (done.returncode, done.stderr) == (3, "")


def test_slurms_tools_are_found_where_srun_is(surroundings: Surroundings) -> None:
    surroundings.environ["PATH"] = "/nonexistent"
    done = surroundings.supervise()
    assert (done.returncode, done.stderr) == (3, "")
    assert "show job" in surroundings.asked


def test_without_slurms_tools_the_exit_code_is_the_steps(surroundings: Surroundings) -> None:
    (surroundings.folder / "scontrol").unlink()
    surroundings.environ["PATH"] = "/nonexistent"
    done = surroundings.supervise()
    assert done.returncode == 3
    assert "internal error" not in done.stderr


def test_without_a_path(surroundings: Surroundings) -> None:
    del surroundings.environ["PATH"]
    assert surroundings.supervise().returncode == 3
