"""What Slurm needs of the node: the memory it was promised, slurmd, munge."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpresume.errors import HpresumeError, MissingDependencyError, SlurmNotFoundError
from hpresume.health.env import Answer, Env
from hpresume.health.model import Absent, Broken, Check, Fault, Result, unknown, verdict
from hpresume.health.policy import CheckPolicy, Limit
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.gres import gres_count
from hpresume.slurm.models import Node
from hpresume.slurm.runner import Runner

#: Where a node has its slurm.conf; the latter two are those of a configless node.
_CONFIGURATION = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
)

NO_SLURM = Absent("Slurm is not set up on this node (no slurm.conf)")


def is_set_up(env: Env) -> bool:
    """Whether this node has a Slurm configuration."""
    if env.environ.get("SLURM_CONF") or env.environ.get("SLURM_CONF_SERVER"):
        return True
    return any(env.path(path).exists() for path in _CONFIGURATION)


def own_node(gateway: CliGateway, name: str) -> Node | None:
    """The node of that name, or the one on the host of that name; None for neither."""
    try:
        return gateway.nodes([name])[name]
    except SlurmNotFoundError:
        return next((n for n in gateway.nodes().values() if n.hostname == name), None)


def gateway_of(env: Env, timeout_s: float) -> CliGateway:
    """A gateway with the environment of the check, bounded by the check's time."""
    return CliGateway(Runner(env.environ), read_timeout_s=timeout_s, attempt_timeout_s=timeout_s)


#: What Slurm may take to say how many GPUs the node has.
_GPUS_S = 5.0

#: How Slurm calls slices of a GPU, such as a100_1g.5gb: there are more of them than GPUs.
_MIG = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)


def gpus_by_slurm(env: Env) -> Limit | None:
    """The GPUs the node has in Slurm; None where Slurm does not say, or not in time."""
    if not env.policy.limits["by_slurm"].value or not is_set_up(env):
        return None
    try:
        node = own_node(gateway_of(env, min(env.time_left / 2, _GPUS_S)), env.node)
    except HpresumeError:
        return None
    if node is None or _MIG.search(node.gres):
        return None
    count = gres_count(node.gres, "gpu")
    return Limit(count, f"Slurm: Gres={node.gres} of {node.name}") if count else None


@dataclass(frozen=True)
class Memory:
    """Memory of the node, and what Slurm was told of it."""

    total_mb: int
    real_mb: int


def gather_memory(env: Env) -> Memory | Absent | Broken:
    """Both, in Slurm's MB (of 1024 KB)."""
    if not is_set_up(env):
        return NO_SLURM
    match = re.search(r"^MemTotal: +(\d{1,15}) kB", env.text("/proc/meminfo") or "", re.M | re.A)
    if match is None:
        return Broken("/proc/meminfo tells no MemTotal")
    try:
        node = own_node(gateway_of(env, max(env.time_left - 0.5, 0.5)), env.node)
    except MissingDependencyError as error:
        return Absent(str(error))
    except HpresumeError as error:
        return Broken(str(error))
    if node is None:
        return Absent(f"Slurm knows no node {env.node}")
    return Memory(int(match[1]) // 1024, node.memory_mb)


def judge_memory(memory: Memory, policy: CheckPolicy, _now: float) -> Result:
    """At least the policy's share of RealMemory."""
    share = policy.limits["min_percent"]
    if memory.real_mb <= 0:
        return unknown(policy, "Slurm does not tell RealMemory")
    wanted = memory.real_mb * share.value // 100
    limit = Limit(int(wanted), share.source, "MB")
    text = f"{memory.total_mb} MB of memory, slurm.conf says {memory.real_mb} MB"
    faults = [Fault(text, f"{memory.total_mb} MB", limit)] if memory.total_mb < wanted else []
    return verdict(policy, faults, text, f"{memory.total_mb} MB")


@dataclass(frozen=True)
class Daemon:
    """States of a daemon's processes, as the letters of /proc/PID/stat."""

    states: tuple[str, ...]


def parse_state(stat: str) -> str:
    """The state in /proc/PID/stat, behind the name, which may hold anything; else empty."""
    name_end = stat.rfind(")")
    match = re.match(r" ([A-Za-z]) ", stat[name_end + 1 :])
    if match is None or not re.match(r"\d{1,10} \(", stat[:name_end], re.ASCII):
        return ""
    return match[1]


def slurmd_pids(env: Env) -> list[str]:
    """The processes that are slurmd.

    24.11 starts itself anew to reconfigure, by the name its file has in Debian's packages.
    """
    names = ("slurmd", "slurmd-wlm")
    pids = (name for name in env.names("/proc") if name.isdigit())
    return [pid for pid in pids if (env.text(f"/proc/{pid}/comm") or "").strip() in names]


def gather_slurmd(env: Env) -> Daemon | Absent | Broken:
    """The processes called slurmd."""
    if not is_set_up(env):
        return NO_SLURM
    if not any(name.isdigit() for name in env.names("/proc")):
        return Broken("/proc shows no processes")
    if not env.is_root and env.text("/proc/1/comm") is None:
        hidden = "other users' processes need root (/proc is mounted with hidepid)"
        return Absent(hidden, needs_root=True)
    states = [parse_state(env.text(f"/proc/{pid}/stat") or "") for pid in slurmd_pids(env)]
    return Daemon(tuple(state for state in states if state))


def judge_slurmd(daemon: Daemon, policy: CheckPolicy, _now: float) -> Result:
    """One that is neither dead nor stopped."""
    alive = [state for state in daemon.states if state not in "ZXTtx"]
    states = ", ".join(daemon.states)
    text = f"slurmd does not run (state {states})" if daemon.states else "no process slurmd"
    return verdict(policy, () if alive else [Fault(text, states or "none")], "slurmd runs", states)


def gather_munge(env: Env) -> Answer | Absent | Broken:
    """A credential with nothing in it: made by munged, if that lives."""
    if not is_set_up(env):
        return NO_SLURM
    socket = str(env.policy.limits["socket"].value)
    return env.run("munge", "--no-input", *((f"--socket={socket}",) if socket else ()))


def judge_munge(answer: Answer, policy: CheckPolicy, _now: float) -> Result:
    """munge's only reason to fail without an input is that munged does not answer."""
    if re.match(r"MUNGE:[A-Za-z0-9+/=]+:", answer.stdout) and not answer.doubt:
        return verdict(policy, (), "munged makes credentials")
    if answer.returncode > 0 and "munge" in answer.stderr.lower():
        return verdict(policy, [Fault(answer.doubt[0], f"code {answer.returncode}")], "")
    return unknown(policy, (*answer.doubt, "munge printed no credential")[0])


CHECKS = (
    Check("memory-size", "node", gather_memory, judge_memory),
    Check("slurmd", "node", gather_slurmd, judge_slurmd),
    Check("munge", "node", gather_munge, judge_munge),
)
