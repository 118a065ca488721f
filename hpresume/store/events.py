"""What happened, for people and programs: one row an event, never changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from hpresume.store.base import Base


class Level(StrEnum):
    """How much it matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventRow(Base):
    """The table of events; ``id`` grows in the order of writing."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    time: Mapped[float] = mapped_column(index=True)
    level: Mapped[str]
    kind: Mapped[str]
    node: Mapped[str] = mapped_column(index=True)
    cluster: Mapped[str]
    instance_group: Mapped[str]
    message: Mapped[str]
    details: Mapped[dict[str, object]]


@dataclass(frozen=True)
class Event:
    """One event.

    ``kind`` is a word for programs (``node-replaced``), ``message`` a line for
    people; ``details`` holds JSON values. ``id`` is 0 until it is written.
    """

    time: float
    kind: str
    message: str
    level: Level = Level.INFO
    node: str = ""
    cluster: str = ""
    group: str = ""
    details: dict[str, object] = field(default_factory=dict)
    id: int = 0


def add(session: Session, event: Event) -> None:
    """Write an event in the transaction of what it tells about."""
    session.add(
        EventRow(
            time=event.time,
            level=event.level.value,
            kind=event.kind,
            node=event.node,
            cluster=event.cluster,
            instance_group=event.group,
            message=event.message,
            details=event.details,
        )
    )


def since(
    session: Session,
    after: int = 0,
    *,
    node: str | None = None,
    cluster: str | None = None,
    kind: str | None = None,
    limit: int = 1000,
) -> tuple[Event, ...]:
    """Events with an id above ``after``, in order, at most ``limit``."""
    wanted = select(EventRow).where(EventRow.id > after).order_by(EventRow.id).limit(limit)
    if node is not None:
        wanted = wanted.where(EventRow.node == node)
    if cluster is not None:
        wanted = wanted.where(EventRow.cluster == cluster)
    if kind is not None:
        wanted = wanted.where(EventRow.kind == kind)
    return tuple(_event(row) for row in session.scalars(wanted))


def latest(session: Session, count: int, *, node: str | None = None) -> tuple[Event, ...]:
    """The newest ``count`` events, in order."""
    wanted = select(EventRow).order_by(EventRow.id.desc()).limit(count)
    if node is not None:
        wanted = wanted.where(EventRow.node == node)
    return tuple(_event(row) for row in reversed(session.scalars(wanted).all()))


def last_id(session: Session) -> int:
    """The id of the newest event, 0 without one."""
    return session.scalar(select(func.max(EventRow.id))) or 0


def forget(session: Session, before: float) -> None:
    """Delete the events from before ``before`` (Unix s)."""
    session.execute(delete(EventRow).where(EventRow.time < before))


def _event(row: EventRow) -> Event:
    return Event(
        time=row.time,
        kind=row.kind,
        message=row.message,
        level=Level(row.level),
        node=row.node,
        cluster=row.cluster,
        group=row.instance_group,
        details=row.details,
        id=row.id,
    )
