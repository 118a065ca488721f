"""Signals of the supervisor, in a process of their own."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from hpresume.resume.signals import ENDING, FORWARDED

#: Takes signals and prints them until it got SIGTERM.
PROGRAM = """
import select, signal, sys
from hpresume.resume.signals import SignalPipe
pipe = SignalPipe()
print("ready", pipe.read(), flush=True)
while True:
    select.select([pipe.fd], [], [])
    for got in pipe.read():
        print(signal.Signals(got.signum).name, got.from_terminal, flush=True)
        if got.signum == signal.SIGTERM:
            sys.exit(0)
"""


def start(before: Callable[[], object] | None = None) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready []\n"
    return started


def sent(process: subprocess.Popen[str], *signals: signal.Signals) -> list[str]:
    """What the program prints after each of ``signals``, SIGTERM last."""
    assert process.stdout is not None
    lines = []
    with process:
        for signum in signals:
            process.send_signal(signum)
            lines.append(process.stdout.readline().strip())
        process.send_signal(signal.SIGTERM)
        lines += process.stdout.read().split("\n")[:-1]
    assert process.returncode == 0
    return lines


def test_every_forwarded_signal_is_taken_with_its_name() -> None:
    others = [signal.Signals(s) for s in FORWARDED if s != signal.SIGTERM]
    assert sent(start(), *others) == [f"{s.name} False" for s in others] + ["SIGTERM False"]


def test_what_the_user_ignores_is_taken_too() -> None:
    """Under nohup, or in the background of a script: srun waits for signals and acts on them."""
    ignored = start(
        lambda: [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGHUP, signal.SIGINT)]
    )
    wanted = ["SIGHUP False", "SIGINT False", "SIGTERM False"]
    assert sent(ignored, signal.SIGHUP, signal.SIGINT) == wanted


def test_job_control_is_left_alone() -> None:
    assert not {signal.SIGTSTP, signal.SIGCONT, signal.SIGTTIN, signal.SIGTTOU} & set(FORWARDED)


def test_one_ctrl_c_does_not_ask_to_end() -> None:
    assert signal.SIGINT not in ENDING
    assert set(FORWARDED) > ENDING


def test_ctrl_c_on_a_terminal_is_told_from_kill() -> None:
    """srun is in the same process group and has it already: it must not get it twice."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
    try:
        said = b""
        while b"ready" not in said:
            said += _some(terminal)
        os.write(terminal, b"\x03")
        while not re.search(rb"SIGINT \w+\r\n", said):
            said += _some(terminal)
        os.kill(pid, signal.SIGINT)
        while not re.search(rb"SIGINT \w+\r\nSIGINT \w+\r\n", said):
            said += _some(terminal)
        os.kill(pid, signal.SIGTERM)
        while not re.search(rb"SIGTERM \w+\r\n", said):
            said += _some(terminal)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    lines = re.findall(r"SIG\w+ \w+", said.decode())  # between what the terminal echoes
    assert lines == ["SIGINT True", "SIGINT False", "SIGTERM False"]


def _some(fd: int) -> bytes:
    if not select.select([fd], [], [], 20)[0]:
        pytest.fail("no answer")
    return os.read(fd, 4096)


def test_the_signals_do_not_end_a_child_that_blocks_nothing() -> None:
    """The mask of the supervisor is not what a child starts with."""
    code = (
        "import os, signal\n"
        "from hpresume.resume.signals import SignalPipe\n"
        "from hpresume.resume.process import spawn\n"
        "pipe = SignalPipe()\n"
        "assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "child = spawn(['/bin/sh', '-c', 'kill -TERM $$; exit 9'], {})\n"
        "assert child.wait() == 143, child.exit_code\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
