"""The kernel's log since the last boot: XID errors, machine checks, hung tasks, Neuron errors.

Read from /dev/kmsg, whose ring holds nothing older than the boot, or from
journald where that may not be read. A process can
write there too, but never with the kernel's own facility (0): a user space
record is no evidence. Some of the kernel's own messages quote names that users
choose, and some begin with such a name, of at most 15 characters (``NAME
invoked oom-killer``, ``NAME[7]: segfault``). So messages are matched from their
beginning, by more than fits into a name and what follows it.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hpresume.health.checks import journal
from hpresume.health.checks.journal import MAX_TEXT, Record
from hpresume.health.env import Answer, Env
from hpresume.health.model import (
    Absent,
    Action,
    Broken,
    Check,
    Fault,
    Result,
    one_line,
    unknown,
    verdict,
)
from hpresume.health.policy import CheckPolicy, Limit

LOG = "/dev/kmsg"

#: The kernel of a running node has always said something.
_EMPTY = "the kernel log holds no message of the kernel"

_RECORD_SIZE = 8192
_MAX_RECORDS = 200_000

#: The newest of journald, about as many as the kernel's own ring holds; a journal of months
#: would neither be read in time nor fit.
_JOURNAL_LINES = 5_000

_PREFIX = re.compile(r"(\d{1,10}),\d{1,20},(\d{1,20}),[^;]*;(.*)", re.ASCII)

#: Xid (PCI:0000:3b:00): 79, pid=1234, name=…, text
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)\s]{1,40})\): (\d{1,5}),?\s*(.*)", re.ASCII)

#: What the text of XID 154 asks for, behind "changed from … to …".
_XID_154 = {
    "node reboot required": "reboot",
    "gpu reset required": "reboot",
    "drain and reset": "reboot",
    "drain p2p": "evidence",
    "none": "ignore",
}

_MACHINE_CHECK = re.compile(
    r"mce: \[Hardware Error\]: .*(?:Machine Check Exception|Machine Check: 0*[1-9a-f])"
    r"|(?:\{\d+\})?\[Hardware Error\]: +(?:event severity|section type severity): (?:fatal|recover)"
    r"|Memory failure: 0x[0-9a-f]+: "
    r"|EDAC MC\d{1,4}: \d{1,9} UE [^\[].{0,300}\bpage:0x",
    re.IGNORECASE,
)
_HUNG = re.compile(
    r"INFO: task .{1,64} blocked for more than \d+ seconds"
    r"|watchdog: BUG: soft lockup - CPU#\d+"
    r"|(?:NMI )?watchdog: .*hard LOCKUP on cpu \d+"
)
_NEURON = re.compile(r"(?:neuron:\s?\w{0,60}:\s*)?NEURON_HW_ERR=\s*\w{2,80}_ERROR(?:\s|$)")


@dataclass(frozen=True)
class KernelLog:
    """The messages since the last boot."""

    boot_time: float
    records: tuple[Record, ...]


def parse(text: str, boot_time: float) -> tuple[Record, ...]:
    """The kernel's own records in the format of /dev/kmsg; the rest is left out."""
    found = []
    for line in text.split("\n"):
        match = _PREFIX.match(line)
        if match and int(match[1]) >> 3 == 0:
            found.append(Record(boot_time + int(match[2]) / 1e6, match[3][:MAX_TEXT]))
    return tuple(found)


def gather(env: Env) -> KernelLog | Absent | Broken:
    """The log; needs the right to read it."""
    boot_time = _boot_time(env.text("/proc/stat") or "")
    if boot_time is None:
        return Broken("/proc/stat does not tell when the node was booted")
    try:
        text = _read(env)
    except PermissionError:
        why = "the kernel log needs root, or group adm or systemd-journal"
        return _journal(env, boot_time, Absent(why, needs_root=True))
    except FileNotFoundError:
        return _journal(env, boot_time, Absent(f"there is no {LOG} here"))
    except OSError as error:
        return Broken(f"{LOG}: {error.strerror}")
    return KernelLog(boot_time, parse(text, boot_time))


def _journal(env: Env, boot_time: float, absent: Absent) -> KernelLog | Absent | Broken:
    """The same messages from journald, which lets groups adm and systemd-journal read them."""
    root = () if env.root == "/" else (f"--root={env.root}",)
    newest = f"--lines={_JOURNAL_LINES}"
    answer = env.run("journalctl", "-k", "-b", newest, "-o", "json", "--no-pager", "--quiet", *root)
    if isinstance(answer, Broken):
        return answer
    records = journal.parse(answer.stdout, boot_time) if isinstance(answer, Answer) else ()
    if not isinstance(answer, Answer) or not records:
        # Somebody who may not read it is shown an empty journal.
        return absent
    return Broken(answer.doubt[0]) if answer.doubt else KernelLog(boot_time, records)


def _boot_time(stat: str) -> float | None:
    match = re.search(r"^btime (\d{1,15})$", stat, re.MULTILINE | re.ASCII)
    return float(match[1]) if match else None


def _read(env: Env) -> str:
    descriptor = os.open(env.path(LOG), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    parts: list[bytes] = []
    try:
        while len(parts) < _MAX_RECORDS and env.time_left > 0:
            try:
                part = os.read(descriptor, _RECORD_SIZE)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read: go on with the next
                    continue
                raise
            if not part:
                break
            parts.append(part)
        else:
            raise OSError(errno.ETIMEDOUT, "the log is too long to read in time")
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", errors="replace")


def _recent(log: KernelLog, policy: CheckPolicy, now: float) -> Iterator[Record]:
    """Records that are no older than the boot and than the policy allows."""
    oldest = log.boot_time
    if policy.number("max_age_s"):
        oldest = max(oldest, now - policy.number("max_age_s"))
    return (record for record in log.records if record.time >= oldest)


def judge_xid(log: KernelLog, policy: CheckPolicy, now: float) -> Result:
    """XID errors, by the policy's table; an unknown code is a warning, never more."""
    if not log.records:
        return unknown(policy, _EMPTY)
    faults: list[Fault] = []
    harmless: dict[str, None] = {}
    source = policy.limits["codes"].source
    for record in _recent(log, policy, now):
        match = _XID.match(record.text)
        if match is None:
            continue
        device, code, text = match[1], str(int(match[2])), match[3]
        kind = xid_class(code, text, policy)
        if kind in ("application", "ignore"):
            harmless[f"{code} on {device}"] = None
            continue
        action = {"replace": Action.REPLACE, "reboot": Action.REBOOT}.get(kind, Action.NONE)
        said = f"XID {code} on GPU {device} at {_clock(record.time)}: {one_line(text, 100)}"
        if kind == "unknown":
            said = f"unknown {said}"
        wanted = Limit(f"XID {code}: {kind}", source)
        faults.append(Fault(said, f"XID {code}", wanted, action, record.time))
    evidence = "no XID error"
    if harmless:
        evidence = "only XID errors that are an application's or harmless: " + ", ".join(harmless)
    return verdict(policy, faults, evidence)


def xid_class(code: str, text: str, policy: CheckPolicy) -> str:
    """What a code stands for: one of the policy's classes, or ``unknown``."""
    codes = policy.table("codes")
    if code == "154" and code not in codes:
        wanted = text.lower().rpartition(" to ")[2]
        return next((kind for words, kind in _XID_154.items() if words in wanted), "evidence")
    return str(codes.get(code, "unknown"))


def _matching(
    pattern: re.Pattern[str], nothing: str
) -> Callable[[KernelLog, CheckPolicy, float], Result]:
    def judge(log: KernelLog, policy: CheckPolicy, now: float) -> Result:
        if not log.records:
            return unknown(policy, _EMPTY)
        found = [r for r in _recent(log, policy, now) if pattern.match(r.text)]
        count = f"{len(found)} messages"
        faults = [
            Fault(f"{_clock(r.time)}: {one_line(r.text, 140)}", count, since=r.time)
            for r in found[:3]
        ]
        return verdict(policy, faults, nothing)

    return judge


def _clock(moment: float) -> str:
    # Fits any number, which time.gmtime does not.
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(moment, 0), 4e9)))


CHECKS = (
    Check("kernel-xid", "kernel log", gather, judge_xid, own_action=True),
    Check("kernel-neuron", "kernel log", gather, _matching(_NEURON, "no Neuron hardware error")),
    Check(
        "kernel-machine-check",
        "kernel log",
        gather,
        _matching(_MACHINE_CHECK, "no uncorrected hardware error"),
    ),
    Check("kernel-hung-task", "kernel log", gather, _matching(_HUNG, "no hung task")),
)
