"""The watch agent: one a node, a line a beat, on srun's own stdout.

Run as a file by ``python -I -S`` through ``srun --overlap``; standard library
only, nothing of hpresume is imported, so that it stays small on every node.
Slurm carries the lines and vouches for them; no port, no secret. The agent
ends when its standard input does, so that the watch step ends in good order.

With a pattern such as ``/tmp/beat.{rank}`` it also tells which ranks have
touched their file since the last beat. Only changes are told, so clocks of
nodes and file servers need not agree, and files of an earlier attempt are no
sign of life. And it tells when the kernel has killed a process for lack of memory.

On its input it may be given a lease, ``lease JOB.STEP SECONDS``, again and again.
When none has come for so long and the host of the supervisor cannot be reached
either, this node is cut off: the step has been or will be started elsewhere,
and the agent kills the tasks of the step here, so that they write over nothing.
A supervisor that is merely stopped or slow has a kernel that still answers.
"""

import _socket  # the module socket takes memory on every node
import os
import select
import sys
import time

PREFIX = "hpresume-beat"
TOUCH_PREFIX = "hpresume-touch"
MEMORY_PREFIX = "hpresume-memory"
FENCE_PREFIX = "hpresume-fenced"
LEASE = "lease"

_KERNEL_COUNTS = "/proc/vmstat"

#: The module signal takes memory on every node.
_SIGKILL = 9

#: Longest wait for the supervisor's host to answer (s).
_ANSWER_S = 1.0

#: How often the tasks of a fenced step are looked for again, and the pause between (s).
_ROUNDS = 50
_ROUND_S = 0.02


def run(interval: float, pattern: str = "", beats: int = 0) -> int:
    """Print ``hpresume-beat NODE N`` every ``interval`` seconds.

    Ends after ``beats`` lines (0: never), at the end of standard input, or when
    the reader is gone.
    """
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
    seen = look(pattern, node) if pattern else {}
    kills = memory_kills()
    lease = Lease()
    number = 0
    due = time.monotonic()
    while True:
        number += 1
        lines = []
        if pattern:
            now_seen = look(pattern, node)
            lines += [f"{TOUCH_PREFIX} {node} {r}" for r, t in now_seen.items() if seen.get(r) != t]
            seen = now_seen
        lines.append(f"{PREFIX} {node} {number}")  # behind the touches: they are all told by then
        before, kills = kills, memory_kills()
        if kills > before:
            lines.append(f"{MEMORY_PREFIX} {node} {kills - before}")
        try:
            os.write(1, ("\n".join(lines) + "\n").encode())
        except OSError:
            return 0
        if number == beats:
            return 0
        due += interval
        now = time.monotonic()
        if due < now:
            due = now
        while select.select([0], [], [], max(0.0, due - now))[0]:
            said = os.read(0, 4096)
            if not said:
                return 0
            lease.take(said)
            now = time.monotonic()
            if due <= now:
                break
        if lease.is_over() and not answers(dict(os.environ)):
            os.write(1, f"{FENCE_PREFIX} {node} {lease.seconds:g}\n".encode())
            fence(lease.step)
            lease = Lease()


class Lease:
    """The supervisor's word, kept up to date, that a step may go on here.

    Counted on a clock that goes on while the machine is suspended.
    """

    def __init__(self) -> None:
        self.step = ""
        self.seconds = 0.0
        self._renewed = 0.0
        self._rest = b""

    def take(self, said: bytes) -> None:
        """Take in what came on standard input; anything but a lease is ignored."""
        lines = (self._rest + said).split(b"\n")
        self._rest = lines.pop()[-256:]
        for line in lines:
            words = line.decode(errors="replace").split()
            if len(words) == 3 and words[0] == LEASE:
                try:
                    self.seconds = float(words[2])
                except ValueError:
                    continue
                self.step = words[1]
                self._renewed = _now()

    def is_over(self) -> bool:
        """Whether it has run out; asked again only after as long again."""
        if not self.step or _now() - self._renewed < self.seconds:
            return False
        self._renewed = _now()
        return True


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def answers(environ: dict[str, str]) -> bool:
    """Whether the kernel of the host where srun runs answers; True where it is not known.

    srun's port is open to compute nodes wherever steps work; that nobody listens
    there any more is an answer too.
    """
    host, port = (
        environ.get("SLURM_LAUNCH_NODE_IPADDR", ""),
        environ.get("SLURM_SRUN_COMM_PORT", ""),
    )
    if not host or not port.isdigit():
        return True
    family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
    sock = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        sock.settimeout(_ANSWER_S)
        sock.connect((host, int(port)))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    finally:
        sock.close()
    return True


def fence(step: str) -> int:
    """Kill the tasks of a step on this node; how many processes that were.

    Only processes of this user, and only of that step: what else runs here goes on.
    """
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = members(step)
        if not found:
            break
        for pid in found:
            try:
                os.kill(pid, _SIGKILL)
            except OSError:
                continue
            killed.add(pid)
        time.sleep(_ROUND_S)
    return len(killed)


def members(step: str) -> list[int]:
    """Processes of this user that belong to a step (``7.0``): its tasks and all they started.

    slurmstepd puts the ids into the environment of every task. Under
    proctrack/cgroup they are in the name of the cgroup too, whatever a task does
    with its environment.
    """
    job, _, number = step.partition(".")
    marks = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_STEP_ID={number}".encode()}
    group = f"/job_{job}/step_{number}/".encode()
    parents: dict[int, int] = {}
    found: list[int] = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            state, parents[int(name)] = _state(_read(f"/proc/{name}/stat"))
            if state in (b"Z", b"X"):
                continue
            variables = set(_read(f"/proc/{name}/environ").split(b"\0"))
            if marks <= variables or group in _read(f"/proc/{name}/cgroup").replace(b"\n", b"/"):
                found.append(int(name))
        except OSError:
            continue  # it has ended, or is not to be looked into
    for pid in found:  # grows meanwhile
        found += [
            child for child, parent in parents.items() if parent == pid and child not in found
        ]
    return found


def _state(stat: bytes) -> tuple[bytes, int]:
    """State and parent in a line of /proc/PID/stat; the name in brackets may hold anything."""
    words = stat.rpartition(b")")[2].split()
    return words[0], int(words[1])


def _read(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def look(pattern: str, node: str) -> dict[int, int]:
    """Modification times (ns) of the ranks' files, by rank."""
    folder, name = os.path.split(pattern.replace("{node}", node))
    before, _, after = name.partition("{rank}")
    times = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                text = entry.name
                if not (text.startswith(before) and text.endswith(after)):
                    continue
                rank = text[len(before) : len(text) - len(after)]
                if rank.isascii() and rank.isdigit() and len(rank) < 10:
                    try:
                        times[int(rank)] = entry.stat().st_mtime_ns
                    except OSError:
                        continue  # it has just been removed, or is a link to nowhere
    except OSError:
        pass  # the directory is not there yet
    return times


def memory_kills(path: str = _KERNEL_COUNTS) -> int:
    """Processes that the kernel has killed for lack of memory since it was booted."""
    try:
        with open(path, "rb") as counts:
            _, _, rest = counts.read().partition(b"\noom_kill ")
    except OSError:
        return 0
    number = rest.partition(b"\n")[0]
    return int(number) if number.isdigit() else 0


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
