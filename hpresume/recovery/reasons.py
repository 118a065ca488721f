"""The orders in a node's reason. Pure.

An order is ``Action:Reboot`` or ``Action:Replace``, to the letter, as the first
word: ``scontrol update node=X state=fail reason="Action:Replace"``. What slurmctld
adds behind it (`` : Not responding``, `` [root@…]``) and evidence after a space
do not matter. What was probably meant as an order is reported and never obeyed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from hpresume.health.model import one_line


class Kind(StrEnum):
    """What is done for a node."""

    REBOOT = "reboot"
    REPLACE = "replace"
    #: Its machine may be well again: look, and give it back if so.
    CHECK = "check"

    @property
    def order(self) -> str:
        """How it is written in a reason."""
        return f"Action:{self.value.capitalize()}"


@dataclass(frozen=True)
class Order:
    """An order in a reason. ``by_health``: hpresume's health checks wrote it."""

    kind: Kind
    by_health: bool = False


@dataclass(frozen=True)
class NearMiss:
    """A reason that was probably meant as the order ``meant``."""

    meant: str


#: How the reasons begin that Slurm itself gives to nodes that fail.
SLURMS_OWN = ("Not responding", "Node unexpectedly rebooted")

#: How those of provisioning begin. They mean something only while it has the node in hand; Slurm
#: 24.11 keeps them when a node is resumed, and adds none of its own when the node then fails.
_PROVISIONINGS = "hpresume: "

#: Who leads in a reason that this controller set; then the names of checks, or ``recovery``.
_HELD = re.compile(r"Action:(?:Reboot|Replace) \[hpresume recovery\] ")
_QUARANTINED = "Quarantined by hpresume: "

_ORDER = re.compile(r"Action:(Reboot|Replace)(?:$|\s|: ?Not responding)")
_HEALTH = re.compile(r"Action:(?:Reboot|Replace) \[hpresume [a-z0-9,-]+\]")
_NEAR = re.compile(r"\W{0,3}action\W{0,3}(re-?boot|restart|re-?plac\w*|reset)", re.IGNORECASE)
_TYPED = re.compile(r"\W{0,3}action\W{1,3}([a-z-]{4,12})\b", re.IGNORECASE)
_INSIDE = re.compile(r"\bAction:(Reboot|Replace)\b")

#: How much a word has to be like the right one to be a typing error for it (``difflib``'s ratio).
_ALIKE = 0.8

#: Longest reason that is set; Slurm keeps longer ones, but its tools show them in lines.
_MAX_REASON = 240


def read(reason: str) -> Order | NearMiss | None:
    """The order in a reason, what looks like one, or None."""
    match = _ORDER.match(reason)
    if match is not None:
        by_health = bool(_HEALTH.match(reason)) and not is_hold(reason)
        return Order(Kind(match[1].lower()), by_health)
    if is_quarantine(reason):  # its story may tell of an order
        return None
    near = _NEAR.match(reason) or _INSIDE.search(reason)
    if near is not None:
        reboots = near[1].lower().replace("-", "") in ("reboot", "restart", "reset")
        return NearMiss((Kind.REBOOT if reboots else Kind.REPLACE).order)
    typed = _TYPED.match(reason)
    alike = typed and get_close_matches(typed[1].lower(), ("reboot", "replace"), 1, _ALIKE)
    return NearMiss(Kind(alike[0]).order) if alike else None


def is_slurms(reason: str) -> bool:
    """Whether Slurm itself, or nobody who still wants it so, gave the reason of a DOWN node."""
    return not reason or reason.startswith((*SLURMS_OWN, _PROVISIONINGS))


def hold(kind: Kind, story: str) -> str:
    """The reason of a node while the controller works on it.

    It is an order by itself: should everything else be lost, the work begins anew.
    """
    order = Kind.REPLACE if kind is Kind.REPLACE else Kind.REBOOT
    return _short(f"{order.order} [hpresume recovery] {story}")


def is_hold(reason: str) -> bool:
    """Whether ``hold`` made the reason."""
    return _HELD.match(reason) is not None


def quarantine(story: str) -> str:
    """The reason of a node that is given up; not one that health checks take for theirs."""
    return _short(_QUARANTINED + story)


def is_quarantine(reason: str) -> bool:
    """Whether ``quarantine`` made the reason."""
    return reason.startswith(_QUARANTINED)


def _short(text: str) -> str:
    # A quotation mark would end the reason where scontrol reads it.
    return one_line(text.replace('"', "'"), _MAX_REASON)
