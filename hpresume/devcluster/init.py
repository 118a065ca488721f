"""PID 1 of a cluster and of each of its hosts.

Started by path with ``python -I -S`` and nothing but the standard library's
built-in modules, because dozens of them start at once. It tells its pid to the
command that started it, prepares its namespaces, and then becomes sleep(1) with
SIGCHLD ignored: the kernel reaps orphans for such a parent, and the process
costs next to no memory.

Usage: init.py LABEL HOSTNAME FSTAB, where HOSTNAME and FSTAB may be ``-``.
Protocol: writes its pid as the machine counts it; reads ``go``; writes ``ready``.
"""

import os
import signal
import sys

_SLEEP = "/usr/bin/sleep" if os.path.exists("/usr/bin/sleep") else "/bin/sleep"
_MOUNT = "/usr/bin/mount" if os.path.exists("/usr/bin/mount") else "/bin/mount"


def main(label: str, hostname: str, fstab: str) -> None:
    """Set the host up and turn into its idle PID 1; never returns."""
    # /proc is still the machine's here, so this is the pid seen from outside.
    os.write(1, os.readlink("/proc/self").encode() + b"\n")
    if os.read(0, 3) != b"go\n":
        sys.exit(1)  # nobody has written down that this process exists
    if hostname != "-":
        with open("/proc/sys/kernel/hostname", "w") as file:
            file.write(hostname)
    if fstab != "-":
        pid = os.posix_spawn(_MOUNT, ["mount", "--all", "--no-mtab", "--fstab", fstab], os.environ)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != 0:
            sys.exit(f"mount of {fstab} ended with {status}")
    os.write(1, b"ready\n")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.execv(_SLEEP, [label, "infinity"])


if __name__ == "__main__":
    main(*sys.argv[1:])
