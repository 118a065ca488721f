"""Asking nodes for their health, over a FAKE srun."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpresume.health import after_failure
from hpresume.health.after_failure import PREFIX
from hpresume.resume import inquiry
from hpresume.resume.node_health import HealthReport
from hpresume.resume.signals import Received


class Signals:
    """A signal pipe that a test feeds."""

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe()

    def feed(self, signum: int) -> None:
        os.write(self._writer, bytes([signum]))

    def read(self) -> list[Received]:
        return [Received(n, from_terminal=False) for n in os.read(self.fd, 64)]


@pytest.fixture
def signals() -> Signals:
    return Signals()


def fake_srun(folder: Path, body: str) -> str:
    path = folder / "srun"
    path.write_text(f'#!/bin/sh\nhere={folder}\necho "$*" >> $here/calls\n{body}\n')
    path.chmod(0o755)
    return str(path)


def examine(
    srun: str, signals: Signals, *, limit_s: float = 20.0, devices: bool = False
) -> HealthReport:
    environ = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "HOME": "/root"}
    pipe: Any = signals
    return inquiry.examine(
        srun, 7, ("n1", "n2"), environ, pipe, age_s=40.0, limit_s=limit_s, devices=devices
    )


GOOD = f"echo '{PREFIX} n1 done 3'; echo '{PREFIX} n2 done 3'"


def test_all_nodes_answer(tmp_path: Path, signals: Signals) -> None:
    report = examine(fake_srun(tmp_path, f'{GOOD}\nenv | grep -c SLURM > "$here/env"'), signals)
    assert report == HealthReport()
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert "--nodelist=n1,n2" in call
    assert "--gres=none" in call
    # How old the kernel's messages may be: the attempt's age and the slack; and the tools' time.
    program = f"{sys.executable} -I -S {after_failure.__file__}"
    assert call.endswith(f"{program} 100.0 17.5")
    assert (tmp_path / "env").read_text() == "0\n"


def test_one_node_does_not_answer(tmp_path: Path, signals: Signals) -> None:
    body = (
        f"echo '{PREFIX} n1 fail gpu-ecc replace 0.0 two'; echo '{PREFIX} n1 done 3'\n"
        "echo $$ > $here/pid; exec sleep 300"
    )
    begun = time.monotonic()
    report = examine(fake_srun(tmp_path, body), signals, limit_s=1.0)
    assert 0.9 < time.monotonic() - begun < 4
    assert [f.node for f in report.findings] == ["n1"]
    assert report.silent == ("n2",)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_asks_to_end(tmp_path: Path, signals: Signals, signum: int) -> None:
    signals.feed(signal.SIGUSR1)
    signals.feed(signum)
    begun = time.monotonic()
    report = examine(fake_srun(tmp_path, "exec sleep 300"), signals, limit_s=60.0)
    assert time.monotonic() - begun < 10
    assert report.interrupted == signal.Signals(signum).name


def test_without_the_gpus_where_they_cannot_be_shared(tmp_path: Path, signals: Signals) -> None:
    """srun refuses the step that asks for them: what needs none of them is looked at."""
    body = f'case "$*" in *--immediate=*) exit 1;; esac\n{GOOD}'
    assert examine(fake_srun(tmp_path, body), signals, devices=True) == HealthReport()
    first, second = (tmp_path / "calls").read_text().splitlines()
    assert "--gres" not in first
    assert "--gres=none" in second


def test_with_the_gpus_once(tmp_path: Path, signals: Signals) -> None:
    examine(fake_srun(tmp_path, GOOD), signals, devices=True)
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert "--gres" not in call


def test_no_srun(tmp_path: Path, signals: Signals) -> None:
    report = examine(str(tmp_path / "nowhere"), signals)
    assert report.silent == ("n1", "n2")
