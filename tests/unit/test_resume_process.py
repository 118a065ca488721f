"""Child processes, with real children."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpresume.resume import process
from hpresume.resume.process import Child, spawn

PY = sys.executable
ENVIRON = {"PATH": "/usr/bin:/bin"}
LIMIT_MS = 20_000


def readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(LIMIT_MS))


def told(code: str, **options: int | bool) -> object:
    """What a Python child prints as JSON."""
    read, write = os.pipe()
    child = spawn([PY, "-I", "-c", code], ENVIRON, stdout=write, **options)  # type: ignore[arg-type]
    os.close(write)
    with open(read) as stream:
        text = stream.read()
    assert child.wait() == 0
    return json.loads(text)


@pytest.mark.parametrize("without_setpriv", [False, True])
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -TERM $$", 128 + signal.SIGTERM),
        ("kill -KILL $$", 128 + signal.SIGKILL),
        ("kill -USR2 $$", 128 + signal.SIGUSR2),
    ],
)
def test_exit_codes_as_a_shell_tells_them(
    monkeypatch: pytest.MonkeyPatch, script: str, code: int, without_setpriv: bool
) -> None:
    if without_setpriv:
        monkeypatch.setattr(process, "_SETPRIV", "/nonexistent/setpriv")
    child = spawn(["/bin/sh", "-c", script], ENVIRON)
    assert readable(child.pidfd)
    assert child.poll() == code
    assert child.poll() == code
    assert child.wait() == code


def test_a_child_that_runs_has_no_code() -> None:
    read, write = os.pipe()
    child = spawn(["/bin/cat"], ENVIRON, stdin=read)
    os.close(read)
    assert child.poll() is None
    assert child.exit_code is None
    os.close(write)
    assert child.wait() == 0


def test_signals_reach_it_and_a_dead_one_is_nobodys_error() -> None:
    read, write = os.pipe()
    child = spawn(["/bin/cat"], ENVIRON, stdin=read)
    child.send(signal.SIGTERM)
    assert readable(child.pidfd)
    child.send(signal.SIGTERM)  # ended, not waited for
    assert child.wait() == 128 + signal.SIGTERM
    child.send(signal.SIGTERM)  # waited for
    os.close(read)
    os.close(write)


def test_waiting_gives_the_pidfd_back() -> None:
    child = spawn(["/bin/true"], ENVIRON)
    fd = child.pidfd
    child.wait()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_arguments_and_environment_arrive_as_they_are() -> None:
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['X']]))"
    words = ["-c", "--", "a b", "", "é", "$HOME"]
    read, write = os.pipe()
    child = spawn([PY, "-I", "-c", code, *words], {**ENVIRON, "X": "a\nb"}, stdout=write)
    os.close(write)
    with open(read) as stream:
        assert json.loads(stream.read()) == [words, "a\nb"]
    assert child.wait() == 0


def test_streams_are_the_given_ones(tmp_path: Path) -> None:
    given = tmp_path / "in"
    given.write_text("hello")
    out, err = tmp_path / "out", tmp_path / "err"
    with given.open() as i, out.open("w") as o, err.open("w") as e:
        child = spawn(
            ["/bin/sh", "-c", "cat; echo no >&2"], ENVIRON,
            stdin=i.fileno(), stdout=o.fileno(), stderr=e.fileno(),
        )  # fmt: skip
        assert child.wait() == 0
    assert (out.read_text(), err.read_text()) == ("hello", "no\n")


def test_no_file_descriptor_of_the_supervisor_is_inherited() -> None:
    code = (
        "import json, os\n"
        "fds = [f'/proc/self/fd/{n}' for n in os.listdir('/proc/self/fd')]\n"
        "print(json.dumps([os.readlink(f) for f in fds if os.path.islink(f)]))"
    )
    first = spawn(["/bin/true"], ENVIRON)
    pipe = os.pipe()
    try:
        links = told(code)
        assert isinstance(links, list)
        assert len(links) >= 3
        assert os.readlink(f"/proc/self/fd/{pipe[0]}") not in links
        assert not [link for link in links if "pidfd" in link]
    finally:
        first.wait()
        os.close(pipe[0])
        os.close(pipe[1])


def test_signals_of_the_child_are_as_srun_expects_them() -> None:
    """The supervisor blocks signals, and Python ignores two of them: the child must do neither."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})
    read, write = os.pipe()
    try:
        child = spawn(["/bin/cat", "/proc/self/status"], ENVIRON, stdout=write)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        os.close(write)
    with open(read) as stream:
        status = dict(line.split(":", 1) for line in stream)
    assert child.wait() == 0
    assert int(status["SigBlk"], 16) == 0
    ignored = int(status["SigIgn"], 16)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored & 1 << signum - 1


def test_what_the_user_ignores_stays_ignored() -> None:
    """``nohup srun …``: the SIGHUP that a shell has set to be ignored."""
    script = (
        "import os, sys; from hpresume.resume.process import spawn;"
        "sys.exit(spawn(['/bin/grep', 'SigIgn', '/proc/self/status'], {}).wait())"
    )
    done = subprocess.run(
        [PY, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert int(done.stdout.split()[1], 16) & 1 << signal.SIGHUP - 1


@pytest.mark.parametrize("own_group", [False, True])
def test_process_group(own_group: bool) -> None:
    code = "import json, os; print(json.dumps([os.getpid(), os.getpgrp()]))"
    pid, group = told(code, own_group=own_group)  # type: ignore[misc]
    assert group == (pid if own_group else os.getpgrp())


@pytest.mark.skipif(not os.access(process._SETPRIV, os.X_OK), reason="no setpriv")
def test_a_child_dies_with_its_killed_parent() -> None:
    """kill -9 of the supervisor: the real srun, here cat, must not run on."""
    parent_code = (
        "import os\n"
        "from hpresume.resume.process import spawn\n"
        "child = spawn(['/bin/sh', '-c', 'echo up; exec cat'], {'PATH': '/bin:/usr/bin'})\n"
        "os.write(1, b'%d\\n' % child.pid)\n"
        "child.wait()\n"
    )
    # The child keeps its input open by itself: its end can come from the kill alone.
    with subprocess.Popen(
        [PY, "-c", parent_code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline(), parent.stdout.readline()}
        assert b"up\n" in lines, lines
        (pid,) = (int(line) for line in lines if line != b"up\n")
        pidfd = os.pidfd_open(pid)
        assert not select.select([pidfd], [], [], 0)[0]
        parent.kill()
        parent.wait()
        assert readable(pidfd), "the child outlived its parent"
    os.close(pidfd)


def test_a_program_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_SETPRIV", "/nonexistent/setpriv")
    with pytest.raises(OSError, match="No such file"):
        spawn(["/nonexistent/srun"], ENVIRON)


@pytest.mark.skipif(not os.access(process._SETPRIV, os.X_OK), reason="no setpriv")
def test_a_program_that_setpriv_cannot_start(capfd: pytest.CaptureFixture[str]) -> None:
    child = spawn(["/nonexistent/srun"], ENVIRON)
    assert child.wait() in (126, 127)
    assert "/nonexistent/srun" in capfd.readouterr().err


def test_a_child_of_its_own_making() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    assert Child(pid).wait() == 0
