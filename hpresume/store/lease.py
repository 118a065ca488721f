"""Who leads: at most one instance of the controller acts at any time.

One row a lease. It is taken by compare-and-set, and each change of hands gives it
a new epoch. No two hosts' clocks are compared: a follower takes the lease once
it has watched it for its whole length on its own clock without a renewal, or
at once where it can see that the holder's process is dead (same boot of the same
host). The leader stops by its own clock before that. Every write of the leader
carries the epoch (``Fence``), so one that slept through its end writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import CursorResult, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from hpresume.errors import LeadershipLostError
from hpresume.store.base import Base

if TYPE_CHECKING:
    from hpresume.store.database import Store

NAME = "controller"


class LeaseRow(Base):
    """``expires`` (Unix s, by the holder's clock) is for people; nobody decides by it."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    epoch: Mapped[int]
    renewals: Mapped[int]
    expires: Mapped[float]


@dataclass(frozen=True)
class Fence:
    """What the leader's writes are checked against."""

    holder: str
    epoch: int
    name: str = NAME


def hold(session: Session, fence: Fence) -> None:
    """Check that the fence still stands, and keep it so until the transaction ends.

    Raises LeadershipLostError.
    """
    row = session.scalar(
        select(LeaseRow).where(LeaseRow.name == fence.name).with_for_update(read=True)
    )
    if row is None or (row.holder, row.epoch) != (fence.holder, fence.epoch):
        holder = row.holder if row else "nobody"
        raise LeadershipLostError(f"{holder} leads now, not {fence.holder}")


def leader(session: Session, now: float) -> str:
    """Who leads, as far as its own clock and ``now`` (Unix s) agree; empty for nobody."""
    row = session.get(LeaseRow, NAME)
    return row.holder if row is not None and row.expires > now else ""


class Lease:
    """One instance's hold, or wish for a hold, on the lease.

    ``length_s`` is the time after the last renewal in which nobody else acts;
    renew it at least every third of that. ``clock`` is monotonic, ``wall`` Unix time.
    """

    #: Part of the length after which the leader itself stops acting.
    OWN_SHARE = 0.7

    def __init__(
        self,
        store: Store,
        holder: str,
        length_s: float,
        clock: Callable[[], float],
        wall: Callable[[], float],
        is_dead: Callable[[str], bool] | None = None,
    ) -> None:
        self._store = store
        self._holder = holder
        self._length_s = length_s
        self._clock = clock
        self._wall = wall
        self._is_dead = is_dead or holder_is_dead
        self._epoch: int | None = None
        self._until = 0.0
        self._seen: tuple[str, int, int] | None = None
        self._seen_at = 0.0

    @property
    def fence(self) -> Fence | None:
        """The fence to write with; None when this instance must not act."""
        if self._epoch is None or self._clock() >= self._until:
            return None
        return Fence(self._holder, self._epoch)

    def try_hold(self) -> Fence | None:
        """Take or renew the lease; the fence, or None where another instance leads.

        Raises StoreError where the database does not answer; the hold then ends by
        itself.
        """
        asked = self._clock()
        wanted = select(LeaseRow).where(LeaseRow.name == NAME).with_for_update()
        try:
            with self._store.write() as session:
                epoch = self._next(session, session.scalar(wanted), asked)
        except IntegrityError:  # the very first row: another instance has made it
            epoch = None
        self._epoch = epoch
        if epoch is not None:
            self._until = asked + self._length_s * self.OWN_SHARE
        return self.fence

    def release(self) -> None:
        """Give the lease up, so that a follower need not wait."""
        if self._epoch is None:
            return
        with self._store.write() as session:
            session.execute(
                update(LeaseRow)
                .where(LeaseRow.name == NAME, LeaseRow.holder == self._holder)
                .where(LeaseRow.epoch == self._epoch)
                .values(holder="", expires=0.0)
            )
        self._epoch = None

    def _next(self, session: Session, row: LeaseRow | None, asked: float) -> int | None:
        """The epoch under which this instance leads after the transaction."""
        expires = self._wall() + self._length_s
        if row is None:
            session.add(
                LeaseRow(name=NAME, holder=self._holder, epoch=1, renewals=0, expires=expires)
            )
            session.flush()
            return 1
        mine = row.holder == self._holder and row.epoch == self._epoch
        state = (row.holder, row.epoch, row.renewals)
        if not mine and not self._is_free(state, asked):
            return None
        epoch = row.epoch if mine else row.epoch + 1
        done = session.execute(
            update(LeaseRow)
            .where(LeaseRow.name == NAME, LeaseRow.holder == row.holder)
            .where(LeaseRow.epoch == row.epoch, LeaseRow.renewals == row.renewals)
            .values(holder=self._holder, epoch=epoch, renewals=row.renewals + 1, expires=expires)
        )
        assert isinstance(done, CursorResult)  # noqa: S101 (for mypy)
        return epoch if done.rowcount == 1 else None

    def _is_free(self, state: tuple[str, int, int], now: float) -> bool:
        holder = state[0]
        if not holder or self._is_dead(holder):
            return True
        if state != self._seen:
            self._seen, self._seen_at = state, now
            return False
        return now - self._seen_at >= self._length_s


def own_identity() -> str:
    """This process: host, boot, PID namespace, pid and its start, as one word."""
    pid = os.getpid()
    return ":".join((*_machine(), str(pid), _started(pid) or "0"))


def holder_is_dead(holder: str) -> bool:
    """Whether ``holder`` was a process of this boot of this host that is gone."""
    words = holder.rsplit(":", 2)
    if len(words) != 3 or not words[1].isdigit() or words[0] != ":".join(_machine()):
        return False
    return _started(int(words[1])) != words[2]


def _machine() -> tuple[str, str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return os.uname().nodename, boot, str(os.stat("/proc/self/ns/pid").st_ino)


def _started(pid: int) -> str | None:
    """When a process began, in clock ticks since the boot; None where it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]
