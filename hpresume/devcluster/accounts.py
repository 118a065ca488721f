"""Accounts that exist inside a cluster: the machine's own, plus two ordinary users."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpresume.errors import UsageError


@dataclass(frozen=True)
class Account:
    """A user of the cluster's hosts."""

    name: str
    uid: int
    gid: int
    home: Path


ORDINARY_UIDS = {"trainer": 20001, "other": 20002}
"""Users added to every host; none of them may do anything special."""


def accounts(homes: Path) -> dict[str, Account]:
    """All accounts ``exec`` can act as; ordinary users live below ``homes``."""
    users = {name: Account(name, uid, uid, homes / name) for name, uid in ORDINARY_UIDS.items()}
    return {"root": Account("root", 0, 0, Path("/root")), **users}


def find_account(name: str, homes: Path) -> Account:
    """The account called ``name``; raises UsageError listing the allowed ones."""
    known = accounts(homes)
    if name not in known:
        raise UsageError(f"unknown user {name!r}: use one of {', '.join(known)}")
    return known[name]


def passwd_text(host_text: str, users: Iterable[Account]) -> str:
    """/etc/passwd of the cluster: ``host_text`` without clashing lines, plus ``users``."""
    users = [user for user in users if user.uid != 0]
    lines = _without(host_text, {user.name for user in users}, {str(user.uid) for user in users})
    lines += [f"{u.name}:x:{u.uid}:{u.gid}::{u.home}:/bin/bash" for u in users]
    return "".join(f"{line}\n" for line in lines)


def group_text(host_text: str, users: Iterable[Account]) -> str:
    """/etc/group of the cluster: ``host_text`` without clashing lines, plus one group a user."""
    users = [user for user in users if user.uid != 0]
    lines = _without(host_text, {user.name for user in users}, {str(user.gid) for user in users})
    lines += [f"{u.name}:x:{u.gid}:" for u in users]
    return "".join(f"{line}\n" for line in lines)


def _without(text: str, names: set[str], ids: set[str]) -> list[str]:
    kept = []
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number = rest.split(":")[1] if rest.count(":") >= 1 else ""
        if name not in names and number not in ids:
            kept.append(line)
    return kept
