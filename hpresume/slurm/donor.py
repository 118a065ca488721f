"""Start a command that dies with the process that wanted it.

``python donor.py PARENT_PID COMMAND…``: asks the kernel for a SIGTERM at the
death of the parent, then becomes the command. Used for the salloc of a donor
job: if the supervisor is killed, salloc gives the job back.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Replace this process by ``argv[1:]``, the child of ``argv[0]``."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(argv[0]):  # the parent died before the kernel was asked
        sys.exit(1)
    try:
        os.execvp(argv[1], argv[1:])
    except OSError as error:
        sys.exit(f"{argv[1]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
