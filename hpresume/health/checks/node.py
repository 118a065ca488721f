"""The node itself: disks, mounts, clock."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass

from hpresume.health.env import Answer, Env
from hpresume.health.model import (
    Absent,
    Broken,
    Check,
    Fault,
    Result,
    one_line,
    skipped,
    verdict,
)
from hpresume.health.policy import CheckPolicy

# --- disk space -------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """Free percent of space and of inodes (None: the file system has no fixed number)."""

    path: str
    space: float | None
    inodes: float | None


def gather_space(env: Env) -> tuple[Space, ...] | Absent | Broken:
    """Of every path of the policy that the node has, each file system once."""
    found: dict[tuple[int, int, int], Space] = {}
    for path in env.policy.items("paths"):
        try:
            stat = os.statvfs(env.path(path))
            device = os.stat(env.path(path)).st_dev
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            return Broken(f"{path}: {error}")
        found.setdefault(
            (device, stat.f_blocks, stat.f_files),
            Space(path, _free(stat.f_bavail, stat.f_blocks), _free(stat.f_favail, stat.f_files)),
        )
    return tuple(found.values()) or Absent("none of the paths of the policy is there")


def _free(free: int, total: int) -> float | None:
    return 100 * free / total if total else None


def judge_space(spaces: tuple[Space, ...], policy: CheckPolicy, _now: float) -> Result:
    """Enough of both."""
    limit = policy.limits["min_percent"]
    faults = [
        Fault(f"{space.path}: {free:.1f} % of {what} free", f"{free:.1f} %", limit)
        for space in spaces
        for free, what in ((space.space, "space"), (space.inodes, "inodes"))
        if free is not None and free < limit.value
    ]
    known = [free for s in spaces for free in (s.space, s.inodes) if free is not None]
    least = f"{min(known):.0f} % free" if known else ""
    names = ", ".join(space.path for space in spaces)
    return verdict(policy, faults, f"room on {names}", least, () if known else ("no sizes known",))


# --- mounts -----------------------------------------------------------------------

#: File systems on local disks that are mounted for writing.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mounts or of /etc/fstab."""

    point: str
    kind: str
    options: frozenset[str]


@dataclass(frozen=True)
class Mounts:
    """What is mounted, and what should be."""

    now: tuple[Mount, ...]
    fstab: tuple[Mount, ...] = ()


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The lines of a mount table; blanks in names are written as ``\\040``."""
    found = []
    for line in text.split("\n"):
        words = line.split()
        if len(words) < 4 or words[0].startswith("#"):
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), words[1])
        found.append(Mount(point, words[2], frozenset(words[3].split(","))))
    return tuple(found)


def gather_mounts(env: Env) -> Mounts | Absent | Broken:
    """Both tables."""
    now = parse_mounts(env.text("/proc/self/mounts") or "")
    if not now:
        return Broken("/proc/self/mounts tells no mounts")
    return Mounts(now, parse_mounts(env.text("/etc/fstab") or ""))


def gather_required(env: Env) -> Mounts | Absent | Broken:
    """As ``gather_mounts``, where the policy requires any."""
    if not env.policy.items("required"):
        return Absent("the policy requires no mounts ([mounts] required)")
    return gather_mounts(env)


def judge_readonly(mounts: Mounts, policy: CheckPolicy, _now: float) -> Result:
    """A local disk is read-only though fstab says otherwise, or after an emergency."""
    intended = {mount.point: mount.options for mount in mounts.fstab}
    top = {mount.point: mount for mount in mounts.now}  # the last one hides the others
    local = [mount for mount in top.values() if mount.kind in _LOCAL]
    if not local:
        return skipped(policy, "no local file system is mounted")
    faults = []
    for mount in local:
        emergency = not mount.options.isdisjoint({"emergency_ro", "shutdown"})
        if emergency or ("ro" in mount.options and "ro" not in intended.get(mount.point, {"ro"})):
            text = f"{mount.point} ({mount.kind}) became read-only"
            faults.append(Fault(text, ",".join(sorted(mount.options))[:60]))
    return verdict(policy, faults, f"{len(local)} local file systems as they should be")


def judge_required(mounts: Mounts, policy: CheckPolicy, _now: float) -> Result:
    """Everything required is mounted."""
    points = {mount.point for mount in mounts.now}
    limit = policy.limits["required"]
    missing = [path for path in limit.value if (path.rstrip("/") or "/") not in points]
    faults = [Fault(f"{path} is not mounted", "not mounted", limit) for path in missing]
    return verdict(policy, faults, ", ".join(limit.value) + " mounted")


# --- clock ------------------------------------------------------------------------

_UNSYNCHRONISED = 0x0040  # STA_UNSYNC


@dataclass(frozen=True)
class Clock:
    """How far the clock may be off, and who says so; None: nobody knows."""

    offset_s: float | None
    teller: str


def parse_tracking(text: str) -> float | None:
    """The offset in ``chronyc -c tracking``; None without, or while not synchronised."""
    fields = text.strip().split("\n")[0].split(",")
    if len(fields) != 14 or fields[13].strip() not in ("Normal", "Insert second", "Delete second"):
        return None
    match = re.fullmatch(r"-?\d{1,12}\.\d{1,12}", fields[4], re.ASCII)
    return abs(float(match[0])) if match else None


def gather_clock(env: Env) -> Clock | Absent | Broken:
    """From chronyd; without it, the kernel's own bound."""
    answer = env.run("chronyc", "-c", "tracking")
    if isinstance(answer, Answer) and not answer.doubt:
        offset = parse_tracking(answer.stdout)
        if offset is not None:
            return Clock(offset, "chronyd")
    bound = kernel_bound()
    if bound is None:
        return Clock(None, "the kernel")
    return Clock(bound, "the kernel (at most)")


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>; only the first fields are read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def kernel_bound() -> float | None:
    """The kernel's bound of the clock's error in seconds; None while nothing disciplines it."""
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    if state < 0 or timex.status & _UNSYNCHRONISED:
        return None
    return float(timex.maxerror) / 1e6


def judge_clock(clock: Clock, policy: CheckPolicy, _now: float) -> Result:
    """Near enough for munge."""
    limit = policy.limits["max_offset_s"]
    if clock.offset_s is None:
        doubt = f"nothing synchronises the clock, says {clock.teller}"
        return verdict(policy, (), "", doubts=(doubt,))
    shown = f"{clock.offset_s:.6f} s"
    faults = []
    if clock.offset_s > limit.value:
        faults.append(Fault(f"the clock is off by {shown}, says {clock.teller}", shown, limit))
    return verdict(policy, faults, f"offset {shown}, says {one_line(clock.teller)}", shown)


CHECKS = (
    Check("disk-space", "node", gather_space, judge_space),
    Check("disk-readonly", "node", gather_mounts, judge_readonly),
    Check("mounts", "node", gather_required, judge_required),
    Check("clock", "node", gather_clock, judge_clock),
)
