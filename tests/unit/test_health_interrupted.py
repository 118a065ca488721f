"""A run of the checks that is ended in the middle, and tools that never stop talking."""

import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from health_node import FakeNode

ENV = Path(__file__).parents[2]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def started(
    node: FakeNode, tmp_path: Path, ignored: signal.Signals | None = None
) -> tuple["subprocess.Popen[str]", int]:
    """A deep check whose stress-ng runs, and the process of it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    node.file("/proc/stat", "cpu 1 1 1 1\ncpu0 1 1 1 1\n")
    node.tool("stress-ng", f"echo $$ > '{fifo}'; exec sleep 60")
    process = subprocess.Popen(
        [sys.executable, "-m", "hpresume", "check", "--only", "cpu-stress", "--policy",
         "/dev/null", "--root", str(node.root)],
        cwd=ENV, env=node.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: handle(ignored),
    )  # fmt: skip
    return process, int(fifo.read_text())


def handle(ignored: signal.Signals | None) -> None:
    """As a terminal's shell hands them on, whatever this process itself ignores (nohup)."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN if number is ignored else signal.SIG_DFL)


@pytest.mark.parametrize("number", ENDING)
def test_nothing_runs_on_after_an_interruption(
    node: FakeNode, tmp_path: Path, number: signal.Signals
) -> None:
    process, tool = started(node, tmp_path)
    end = os.pidfd_open(tool)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert out == ""
    assert "Traceback" not in err
    # It was killed; a pidfd can be read once its process has ended.
    assert select.select([end], [], [], 10)[0]
    os.close(end)


def test_a_signal_that_the_caller_ignores_is_ignored(node: FakeNode, tmp_path: Path) -> None:
    process, tool = started(node, tmp_path, ignored=signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    os.kill(tool, signal.SIGKILL)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "stress-ng was killed by signal 9" in out


@pytest.mark.parametrize("stream", [1, 2])
def test_a_tool_that_never_stops_talking_takes_no_memory(node: FakeNode, stream: int) -> None:
    node.tool("chronyc", f"exec yes {'x' * 1000} >&{stream}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = node.check("clock", timeout_s=20)
    assert result.status != "fail"
    # 8 MiB are kept, and copied twice; without a limit this grows by GBs a second.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)
