"""Starts slurmd on a host once slurm.conf knows its node.

A machine can be there before its node is configured: slurmd would end with
"Unable to determine this slurmd's NodeName". So it is started again whenever
slurm.conf has changed, and every few seconds, until one stays.

Started by path with ``python -I -S``. Usage: slurmd_start.py LOG CONF OPTION COMMAND...
OPTION (``-``: none) is for the first start only: -b is true then, and no longer later.
"""

import os
import sys
import time

_POLL_S = 0.1
_AGAIN_S = 5.0


def main(log: str, conf: str, option: str, command: list[str]) -> None:
    """Go into the background, and end when slurmd has."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(source, target)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    argv = command if option == "-" else [*command, option]
    while True:
        seen = _stamp(conf)
        # In the foreground: 24.11 in the background says 0 before it has read its configuration.
        pid = os.posix_spawnp(argv[0], [*argv, "-D"], os.environ)
        if os.waitpid(pid, 0)[1] == 0:
            return
        again = time.monotonic() + _AGAIN_S
        while _stamp(conf) == seen and time.monotonic() < again:
            time.sleep(_POLL_S)
        argv = command


def _stamp(path: str) -> tuple[int, int]:
    """Changes with the file."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return (0, 0)
    return (info.st_ino, info.st_mtime_ns)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
