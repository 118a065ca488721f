"""Signals of the supervisor, as lines in a pipe that its loop can wait for.

A thread takes them with ``sigwaitinfo``, which tells where a signal came
from: Ctrl-C on a terminal already reached srun, which is in the same process
group, and must not be forwarded (srun counts them).

Loaded at every srun before it starts: neither dataclasses nor typing, and of the
module signal only its C part. The enumerations around it take 5 ms.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _thread
import os

#: si_code of signals that the kernel sends, such as those of a terminal.
_SI_KERNEL = 0x80

#: Taken and forwarded. SIGTSTP and SIGCONT stay with their defaults, so that
#: job control stops and continues supervisor and srun together.
FORWARDED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGWINCH,
)

#: Those that ask a step to end. One Ctrl-C does not: srun wants two.
ENDING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


class Received:
    """One signal and whether a terminal sent it to the whole process group."""

    __slots__ = ("from_terminal", "signum")

    def __init__(self, signum: int, from_terminal: bool) -> None:
        self.signum = signum
        self.from_terminal = from_terminal


class SignalPipe:
    """Blocks the signals for the process and hands them out through ``fd``.

    Also those that are ignored, as by nohup or in the background of a script:
    srun acts on them all the same.
    """

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        self.fd, self._writer = os.pipe()
        os.set_blocking(self.fd, False)
        _thread.start_new_thread(self._take, ())

    def _take(self) -> None:
        while True:
            info = signal.sigwaitinfo(FORWARDED)
            terminal = info.si_code == _SI_KERNEL
            os.write(self._writer, bytes([info.si_signo, terminal]))

    def read(self) -> list[Received]:
        """The signals that came since the last call."""
        try:
            data = os.read(self.fd, 512)
        except BlockingIOError:
            return []
        return [Received(data[i], bool(data[i + 1])) for i in range(0, len(data), 2)]
