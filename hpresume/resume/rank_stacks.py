"""What the ranks of a step on this node are doing; printed, a few lines a process.

Run as a file by ``python -I -S`` through ``srun --overlap``, as the user whose
ranks they are; standard library only. py-spy is used where it is on PATH, and
what the kernel tells where it is not.
"""

import os
import shutil
import signal
import subprocess
import sys
import time

COUNT_PREFIX = "hpresume-ranks"

#: Before the name of a node on which no rank of the step runs any more.
NO_RANK = "no rank is left on"

#: What scontrol says, with code 1, of a step that has no slurmstepd here (any more): its ranks
#: have ended. 22.05 prints the first line of the list all the same, 24.11 does not.
_GONE = "does not exist on node"

_LIMIT_S = 6.0
_MOST_PROCESSES = 64


def ranks_here(step: str) -> dict[int, str] | None:
    """Process ids of the step's tasks on this node, with their ranks; None: not known."""
    code, listed, said = outcome(["scontrol", "listpids", step], 3.0)
    if code != 0:
        return {} if _GONE in said and _own_step_is_seen(step) else None
    if not listed.startswith("PID"):
        return None
    ranks = {}
    for line in listed.splitlines():
        words = line.split()
        if len(words) >= 5 and words[0].isdigit() and words[4].isdigit():
            ranks[int(words[0])] = words[4]
    return ranks


def _own_step_is_seen(step: str) -> bool:
    """Whether the step that this process is in is found here, and so would be the other one."""
    own = f"{step.partition('.')[0]}.{os.environ.get('SLURM_STEP_ID', '')}"
    return outcome(["scontrol", "listpids", own], 3.0)[0] == 0


def family(pid: int) -> list[int]:
    """A process and its descendants, parents first."""
    found = [pid]
    for member in found:
        try:
            with open(f"/proc/{member}/task/{member}/children") as stream:
                found += [int(word) for word in stream.read().split()]
        except OSError:
            continue
    return found[:_MOST_PROCESSES]


def describe(pid: int, deadline: float) -> list[str]:
    """State, kernel wait channel and, with py-spy, the Python stack of a process."""
    lines = [f"  pid {pid} {_read(f'/proc/{pid}/cmdline').replace(chr(0), ' ').strip()[:200]}"]
    status = _read(f"/proc/{pid}/status").splitlines()
    state = next((line[6:].strip() for line in status if line.startswith("State:")), "gone")
    lines.append(f"    state {state}, waits in {_read(f'/proc/{pid}/wchan').strip() or '-'}")
    spy = shutil.which("py-spy")
    if spy and time.monotonic() < deadline:
        dump = run([spy, "dump", "--nonblocking", "--pid", str(pid)], 2.0)
        lines += [f"    {line}" for line in dump.splitlines()[:60]]
    return lines


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(65536)
    except OSError:
        return ""


def run(argv: list[str], limit_s: float) -> str:
    """Standard output of a tool; empty where it cannot be started or takes longer than that (s)."""
    return outcome(argv, limit_s)[1]


def outcome(argv: list[str], limit_s: float) -> tuple[int | None, str, str]:
    """Code, standard output and standard error of a tool; None and nothing as ``run`` says."""
    pipe = subprocess.PIPE
    try:
        tool = subprocess.Popen(argv, stdout=pipe, stderr=pipe, process_group=0)
    except OSError:
        return None, "", ""
    try:
        out, err = tool.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, "", ""
    finally:
        if tool.returncode is None:  # with all it has started
            os.killpg(tool.pid, signal.SIGKILL)
    return tool.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def count(step: str) -> int:
    """Print how many of the step's ranks still run on this node."""
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    ranks = ranks_here(step)
    if ranks is None:
        return 1
    alive = [pid for pid in ranks if os.path.exists(f"/proc/{pid}")]
    os.write(1, f"{COUNT_PREFIX} {node} {len(alive)}\n".encode())
    return 0


def main(step: str) -> int:
    """Print everything about the step's ranks on this node."""
    deadline = time.monotonic() + _LIMIT_S
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    ranks = ranks_here(step)
    if ranks is None:
        print_lines([f"the ranks on {node} are not known: slurmd does not answer"])
        return 1
    if not ranks:
        print_lines([f"{NO_RANK} {node}"])
    for pid, rank in sorted(ranks.items(), key=lambda item: int(item[1])):
        lines = [f"rank {rank} on {node}"]
        for member in family(pid):
            lines += describe(member, deadline)
        print_lines(lines)  # at once: what is read of the next one may never come
    return 0


def print_lines(lines: list[str]) -> None:
    """Write them in one piece, which srun does not mix with those of other nodes."""
    os.write(1, ("\n".join(lines) + "\n").encode(errors="replace"))


if __name__ == "__main__":
    sys.exit(count(sys.argv[2]) if sys.argv[1] == "--count" else main(sys.argv[1]))
