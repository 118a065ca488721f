"""Recoveries and notices in the store."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from hpresume.recovery.model import Origin, Phase, Recovery
from hpresume.recovery.reasons import Kind
from hpresume.store import Base


class RecoveryRow(Base):
    """One recovery. ``active_node`` is unique: a node has at most one that has not ended."""

    __tablename__ = "recoveries"

    uid: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(index=True)
    active_node: Mapped[str | None] = mapped_column(unique=True)
    kind: Mapped[str]
    origin: Mapped[str]
    reason: Mapped[str]
    phase: Mapped[str]
    since: Mapped[float]
    began: Mapped[float]
    attempt: Mapped[int]
    slurmd_start: Mapped[float]
    machine_id: Mapped[str]
    address: Mapped[str]
    retry_at: Mapped[float]
    tries: Mapped[int]
    note: Mapped[str]
    acted_at: Mapped[float]
    ended_at: Mapped[float] = mapped_column(index=True)
    times: Mapped[dict[str, object]]


class NoticeRow(Base):
    """Something that has been told and is not told again until it is over."""

    __tablename__ = "recovery_notices"

    key: Mapped[str] = mapped_column(primary_key=True)
    time: Mapped[float]


def save(session: Session, recovery: Recovery) -> None:
    """Write a recovery, new or known."""
    row = session.get(RecoveryRow, recovery.uid) or RecoveryRow(uid=recovery.uid)
    row.active_node = None if recovery.phase.is_end else recovery.node
    for name in _PLAIN:
        setattr(row, name, getattr(recovery, name))
    row.kind, row.origin = recovery.kind.value, recovery.origin.value
    row.phase, row.times = recovery.phase.value, dict(recovery.times)
    session.add(row)


def active(session: Session) -> tuple[Recovery, ...]:
    """All that have not ended."""
    rows = session.scalars(select(RecoveryRow).where(RecoveryRow.active_node.is_not(None)))
    return tuple(_recovery(row) for row in rows)


def past(session: Session, after: float) -> tuple[Recovery, ...]:
    """Those that ended after a time, the oldest first."""
    wanted = select(RecoveryRow).where(RecoveryRow.ended_at > after)
    rows = session.scalars(wanted.order_by(RecoveryRow.ended_at))
    return tuple(_recovery(row) for row in rows)


def by_uid(session: Session, uids: Iterable[str]) -> dict[str, Recovery]:
    """Those with these ids."""
    rows = session.scalars(select(RecoveryRow).where(RecoveryRow.uid.in_(list(uids))))
    return {row.uid: _recovery(row) for row in rows}


def notices(session: Session) -> frozenset[str]:
    """Keys of all notices."""
    return frozenset(session.scalars(select(NoticeRow.key)))


def note(session: Session, key: str, now: float) -> None:
    """Remember a notice."""
    session.merge(NoticeRow(key=key, time=now))


def forget_notice(session: Session, key: str) -> None:
    """Forget a notice."""
    session.execute(delete(NoticeRow).where(NoticeRow.key == key))


_PLAIN = (
    "node", "reason", "since", "began", "attempt", "slurmd_start", "machine_id", "address",
    "retry_at", "tries", "note", "acted_at", "ended_at",
)  # fmt: skip


def _recovery(row: RecoveryRow) -> Recovery:
    times = {k: float(v) for k, v in row.times.items() if isinstance(v, int | float)}
    return Recovery(
        uid=row.uid,
        kind=Kind(row.kind),
        origin=Origin(row.origin),
        phase=Phase(row.phase),
        times=times,
        **{name: getattr(row, name) for name in _PLAIN},
    )
