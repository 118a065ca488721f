"""The watch agent as the process it is on a node: lines out, and when it ends."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpresume.resume import agent
from hpresume.resume.agent import Lease, answers, fence, members
from hpresume.resume.watch import agent_command

LIMIT_S = 20.0


class Agent:
    """The agent with pipes for its input and output."""

    def __init__(self, *command: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            command or agent_command(0.01),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"SLURMD_NODENAME": "n7", **environ},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def line(self) -> bytes:
        assert select.select([self.stdout], [], [], LIMIT_S)[0], "no beat"
        return self.stdout.readline()

    def ended(self) -> tuple[int, bytes]:
        """Exit code and what it said on stderr; kills what does not end."""
        assert self.process.stderr is not None
        code = self.process.wait(timeout=LIMIT_S)
        return code, self.process.stderr.read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def beating() -> Iterator[Agent]:
    started = Agent()
    yield started
    started.close()


def test_it_beats_with_the_nodes_name_and_counts(beating: Agent) -> None:
    assert [beating.line() for _ in range(3)] == [
        b"hpresume-beat n7 1\n",
        b"hpresume-beat n7 2\n",
        b"hpresume-beat n7 3\n",
    ]


def test_it_ends_when_its_input_is_closed(beating: Agent) -> None:
    beating.line()
    beating.stdin.close()
    assert beating.ended() == (0, b"")


def test_input_is_read_and_ignored(beating: Agent) -> None:
    beating.stdin.write(b"x" * 10_000)
    beating.stdin.flush()
    last = [beating.line() for _ in range(5)][-1]
    assert last == b"hpresume-beat n7 5\n"
    assert beating.process.poll() is None


def test_it_ends_when_the_reader_is_gone(beating: Agent) -> None:
    beating.line()
    beating.stdout.close()
    assert beating.ended() == (0, b"")


def test_it_ends_while_it_waits_for_the_next_beat() -> None:
    slow = Agent(*agent_command(3600.0))
    try:
        assert slow.line() == b"hpresume-beat n7 1\n"
        slow.stdin.close()
        assert slow.ended() == (0, b"")
    finally:
        slow.close()


def test_outside_of_a_step_the_host_name_stands_in() -> None:
    named = Agent(SLURMD_NODENAME="")
    try:
        host = os.uname().nodename.split(".")[0]
        assert named.line() == f"hpresume-beat {host} 1\n".encode()
    finally:
        named.close()


def test_a_given_number_of_beats() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(agent.__file__).parent)!r});"
        " import agent; sys.exit(agent.run(0.001, beats=3))"
    )
    counted = Agent(sys.executable, "-I", "-S", "-c", code)
    try:
        assert counted.ended() == (0, b"")
        assert counted.stdout.read().count(b"\n") == 3
    finally:
        counted.close()


def test_it_runs_isolated_and_imports_nothing_of_ours() -> None:
    assert agent_command(0.5) == [sys.executable, "-I", "-S", agent.__file__, "0.5"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *agent_command(0.5)[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.endswith(" 1\n")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"select", "os"} <= loaded
    for heavy in ("hpresume", "site", "subprocess", "socket", "json", "threading", "typing", "re"):
        assert heavy not in loaded


# -- ranks' heartbeat files ------------------------------------------------------


def test_look_reads_the_ranks_files(tmp_path: Path) -> None:
    for name in ("beat.n7.0", "beat.n7.12", "beat.n8.1", "beat.n7.x", "beat.n7.", "other"):
        (tmp_path / name).touch()
    assert set(agent.look(f"{tmp_path}/beat.{{node}}.{{rank}}", "n7")) == {0, 12}
    assert agent.look(f"{tmp_path}/nowhere/beat.{{rank}}", "n7") == {}


def test_look_reads_past_links_to_nowhere_and_in_circles(tmp_path: Path) -> None:
    for rank in range(40):
        (tmp_path / f"beat.{rank}").touch()
        (tmp_path / f"beat.1{rank:02}").symlink_to("nowhere")
        (tmp_path / f"beat.2{rank:02}").symlink_to(f"beat.2{rank:02}")
    assert set(agent.look(f"{tmp_path}/beat.{{rank}}", "n7")) == set(range(40))


@pytest.mark.parametrize("folder", ["with space", "zeile\numbruch", "ümläut", "{", "%s", "*"])
def test_look_takes_any_folder(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "beat.3").touch()
    assert set(agent.look(f"{tmp_path}/{folder}/beat.{{rank}}", "n7")) == {3}


def test_touches_are_told_before_the_beat_that_vouches_for_them(tmp_path: Path) -> None:
    started = Agent(*agent_command(0.01, f"{tmp_path}/beat.{{rank}}"))
    try:
        number = int(started.line().split()[2])
        (tmp_path / "beat.1").touch()
        while not (line := started.line()).startswith(b"hpresume-touch"):
            number = int(line.split()[2])
        assert started.line() == b"hpresume-beat n7 %d\n" % (number + 1)
    finally:
        started.close()


def test_it_tells_changes_and_not_what_lies_there(tmp_path: Path) -> None:
    old, new = tmp_path / "beat.0", tmp_path / "beat.1"
    old.touch()
    started = Agent(*agent_command(0.01, f"{tmp_path}/beat.{{rank}}"))
    try:
        assert started.line().startswith(b"hpresume-beat n7 1")
        new.touch()
        line = started.line()
        while line.startswith(b"hpresume-beat"):
            line = started.line()
        assert line == b"hpresume-touch n7 1\n"
    finally:
        started.close()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("nr_free_pages 5\noom_kill 12\npgfault 3\n", 12),
        ("nr_free_pages 5\noom_kill 12", 12),
        ("my_oom_kill 4\n", 0),
        ("nr_free_pages 5\noom_kill many\n", 0),
        ("", 0),
    ],
)
def test_kills_for_lack_of_memory_are_read_from_the_kernel(
    tmp_path: Path, text: str, number: int
) -> None:
    counts = tmp_path / "vmstat"
    assert agent.memory_kills(str(counts)) == 0
    counts.write_text(text)
    assert agent.memory_kills(str(counts)) == number


def test_only_new_kills_are_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    counts = iter([5, 5, 7, 7])
    monkeypatch.setattr(agent, "memory_kills", lambda: next(counts))
    monkeypatch.setattr(agent.select, "select", lambda *_: ([], [], []))
    assert agent.run(0.0, beats=3) == 0
    assert capfd.readouterr().out.splitlines() == [
        "hpresume-beat n7 1",
        "hpresume-beat n7 2",
        "hpresume-memory n7 2",
        "hpresume-beat n7 3",
    ]


STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}


@pytest.fixture
def away() -> Iterator[dict[str, str]]:
    """The place of a supervisor whose host does not answer: a full queue drops what comes."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    waiting = []
    for _ in range(8):
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(listener.getsockname())
    port = str(listener.getsockname()[1])
    yield {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_SRUN_COMM_PORT": port}
    for sock in (listener, *waiting):
        sock.close()


def sleeping(**environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], env={"PATH": "/usr/bin:/bin", **environ})


@pytest.fixture
def others() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that belong to other steps, other jobs, or to none."""
    started = [
        sleeping(),
        sleeping(SLURM_JOB_ID="7", SLURM_STEP_ID="33"),
        sleeping(SLURM_JOB_ID="77", SLURM_STEP_ID="3"),
        sleeping(SLURM_JOB_ID="7"),
        sleeping(MY_SLURM_JOB_ID="7", MY_SLURM_STEP_ID="3"),
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_fence_ends_the_steps_processes_and_no_others(
    others: list[subprocess.Popen[bytes]],
) -> None:
    task = sleeping(**STEP)
    # One that empties its environment is still a child of the task.
    parent = subprocess.Popen(
        ["sh", "-c", "env -i sleep 600 & echo $!; wait"],
        env={"PATH": "/usr/bin:/bin", **STEP},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert set(members("7.3")) == {task.pid, parent.pid, child}
    assert fence("7.3") >= 3
    assert task.wait(LIMIT_S) == parent.wait(LIMIT_S) == -9
    parent.stdout.close()
    assert not os.path.exists(f"/proc/{child}") or members("7.3") == []
    assert [process.poll() for process in others] == [None] * len(others)


def test_a_lease_is_over_when_nothing_renews_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(agent, "_now", lambda: now[0])
    lease = Lease()
    assert not lease.is_over()
    lease.take(b"lease 7.3 5\n")
    now[0] = 104.9
    assert not lease.is_over()
    lease.take(b"lea")
    lease.take(b"se 7.3 5\nlease 7.3 nan?\nnoise\n")
    now[0] = 109.8
    assert not lease.is_over()
    now[0] = 110.0
    assert (lease.is_over(), lease.step, lease.seconds) == (True, "7.3", 5.0)
    # Whoever stays in reach is asked about once a lease, not once a beat.
    now[0] = 114.0
    assert not lease.is_over()
    now[0] = 115.0
    assert lease.is_over()


def test_an_agent_without_a_lease_fences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "_now", lambda: 1e9)
    assert not Lease().is_over()


def test_who_answers(away: dict[str, str]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = str(listener.getsockname()[1])
    here = {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_SRUN_COMM_PORT": port}
    assert answers(here)
    listener.close()
    assert answers(here)  # nobody listens any more: the kernel says so
    assert not answers(away)
    assert answers({})  # not known: nothing is done


def test_an_agent_that_is_cut_off_ends_its_step_once_the_lease_is_over(
    others: list[subprocess.Popen[bytes]], away: dict[str, str]
) -> None:
    task = sleeping(**STEP)
    cut_off = Agent(**away)
    try:
        cut_off.stdin.write(b"lease 7.3 0.3\n")
        cut_off.stdin.flush()
        began = time.monotonic()
        while not (line := cut_off.line()).startswith(b"hpresume-fenced"):
            assert time.monotonic() - began < LIMIT_S
        assert line == b"hpresume-fenced n7 0.3\n"
        assert time.monotonic() - began > 0.29
        assert task.wait(LIMIT_S) == -9
        assert cut_off.line().startswith(b"hpresume-beat n7 ")
        assert [process.poll() for process in others] == [None] * len(others)
    finally:
        cut_off.close()
        task.kill()
        task.wait()


def test_an_agent_whose_supervisor_is_only_silent_ends_nothing() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    task = sleeping(**STEP)
    beating = Agent(
        SLURM_LAUNCH_NODE_IPADDR="127.0.0.1",
        SLURM_SRUN_COMM_PORT=str(listener.getsockname()[1]),
    )
    try:
        beating.stdin.write(b"lease 7.3 0.1\n")
        beating.stdin.flush()
        for _ in range(2):  # asked twice
            assert select.select([listener], [], [], LIMIT_S)[0]
            listener.accept()[0].close()
        assert task.poll() is None
        assert beating.process.poll() is None
    finally:
        beating.close()
        listener.close()
        task.kill()
        task.wait()
