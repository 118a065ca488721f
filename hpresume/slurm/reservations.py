"""Reservations: making, reading and removing them (``scontrol … reservation``)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from hpresume.errors import SlurmError, SlurmNotFoundError, SlurmTransientError
from hpresume.slurm import nodeset
from hpresume.slurm.runner import Runner

#: Time limit of one call to scontrol.
_CALL_S = 12.0
_POLL_S = 0.2

#: While a job uses it: ESLURM_RESERVATION_BUSY.
_IN_USE = re.compile(r"reservation is in use", re.IGNORECASE)
_NONE = "No reservations in the system"
_FIELD = re.compile(r"(?:^|\s)(ReservationName|StartTime|Nodes|Users|Flags|State)=(\S*)")


@dataclass(frozen=True)
class Reservation:
    """One reservation; ``active``: its time has come; ``start`` in Unix seconds, 0 if not told."""

    name: str
    nodes: tuple[str, ...]
    users: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    active: bool = True
    start: float = 0.0

    @property
    def is_maintenance(self) -> bool:
        """Whether it is there for somebody to work on its nodes."""
        return "MAINT" in self.flags


def parse(text: str) -> dict[str, Reservation]:
    """``scontrol -o show reservation``, by name."""
    found = {}
    for line in text.split("\n"):
        values: dict[str, str] = {}
        for match in _FIELD.finditer(line):
            values.setdefault(match[1], match[2])
        name = values.get("ReservationName", "")
        if name:
            found[name] = Reservation(
                name,
                nodeset.expand(values.get("Nodes", "")),
                _words(values.get("Users", "")),
                frozenset(_words(values.get("Flags", "").upper())),
                values.get("State", "ACTIVE") == "ACTIVE",
                _moment(values.get("StartTime", "")),
            )
    return found


def _moment(text: str) -> float:
    """Unix seconds, as the runner makes Slurm's tools print a time."""
    return float(text) if re.fullmatch(r"\d{1,12}", text, re.ASCII) else 0.0


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word and word != "(null)")


def reservations(runner: Runner) -> dict[str, Reservation]:
    """All reservations, by name."""
    answer = runner.check(("scontrol", "-a", "-o", "show", "reservation"), _CALL_S)
    return {} if _NONE in answer else parse(answer)


def reserve(
    runner: Runner, name: str, nodes: Iterable[str], user: str, minutes: int, *flags: str
) -> None:
    """Reserve whole nodes for a user from now on.

    Raises SlurmDeniedError without the right to, SlurmError where another
    reservation has one of the nodes in that time.
    """
    argv = [
        "scontrol",
        "create",
        "reservation",
        f"reservationname={name}",
        f"users={user}",
        f"nodes={','.join(nodes)}",
        "starttime=now",
        f"duration={minutes}",
    ]
    if flags:
        argv.append(f"flags={','.join(flags)}")
    runner.check(argv, _CALL_S)


def narrow(runner: Runner, name: str, nodes: Iterable[str]) -> None:
    """Give the other nodes of a reservation back."""
    argv = ("scontrol", "update", f"reservationname={name}", f"nodes={','.join(nodes)}")
    runner.check(argv, _CALL_S)


def release(runner: Runner, name: str, within_s: float) -> None:
    """Remove a reservation; none of that name is fine.

    Waits for jobs in it to end, which the caller has cancelled, and for a
    slurmctld that restarts. Raises SlurmError where it takes more than ``within_s``.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            runner.check(("scontrol", "delete", f"reservationname={name}"), _CALL_S)
        except SlurmNotFoundError:
            return
        except SlurmError as error:
            passes = isinstance(error, SlurmTransientError) or _IN_USE.search(str(error))
            if not passes or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return


def own_name() -> str:
    """The user's name for ``reserve``; the number where it has none."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
