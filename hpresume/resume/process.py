"""Child processes of the supervisor, without ``subprocess`` (start-up time).

A child dies with the supervisor (``setpriv --pdeathsig``): a step whose
supervisor was killed must not run on unprotected.
"""

from __future__ import annotations

import os

_SETPRIV = "/usr/bin/setpriv"

#: SIGPIPE and SIGXFSZ, which Python ignores and a child must not. As numbers:
#: the module signal builds enumerations, 5 ms at every srun.
_RESET = (13, 25)


class Child:
    """One child process, waited for through a pidfd."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.exit_code: int | None = None

    def poll(self) -> int | None:
        """The exit code in shell form (128 + signal) once it ended, else None."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended(status)
        return self.exit_code

    def wait(self) -> int:
        """Wait for the end; the exit code in shell form."""
        if self.exit_code is not None:
            return self.exit_code
        _, status = os.waitpid(self.pid, 0)
        return self._ended(status)

    def _ended(self, status: int) -> int:
        code = os.waitstatus_to_exitcode(status)
        self.exit_code = code if code >= 0 else 128 - code
        os.close(self.pidfd)
        return self.exit_code

    def send(self, signum: int) -> None:
        """Send a signal; nothing happens when the child has ended."""
        if self.exit_code is None:
            import signal

            try:
                signal.pidfd_send_signal(self.pidfd, signum)
            except ProcessLookupError:
                pass


def ends_with_us(argv: list[str]) -> list[str]:
    """``argv`` for a process that is killed when the thread that starts it ends."""
    if os.access(_SETPRIV, os.X_OK):
        return [_SETPRIV, "--pdeathsig", "KILL", "--", *argv]
    return argv


def spawn(
    argv: list[str],
    environ: dict[str, str],
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    own_group: bool = False,
) -> Child:
    """Start ``argv`` (``argv[0]`` is a path) so that it dies with this thread.

    Raises:
        OSError: the program cannot be started.
    """
    argv = ends_with_us(argv)
    actions = []
    for target, fd in ((0, stdin), (1, stdout), (2, stderr)):
        if fd is not None:
            actions.append((os.POSIX_SPAWN_DUP2, fd, target))
    if own_group:
        pid = os.posix_spawn(
            argv[0], argv, environ,
            file_actions=actions, setsigmask=(), setsigdef=_RESET, setpgroup=0,
        )  # fmt: skip
    else:
        pid = os.posix_spawn(
            argv[0], argv, environ, file_actions=actions, setsigmask=(), setsigdef=_RESET
        )
    return Child(pid)
