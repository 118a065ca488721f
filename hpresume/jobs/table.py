"""Guarded jobs, returns and reports in the store."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import JSON, delete, or_, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from hpresume.jobs.model import Guarded, Phase, Report, Return
from hpresume.store import Base


class GuardedRow(Base):
    """A job whose batch host is watched."""

    __tablename__ = "guarded_jobs"

    job_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    uid: Mapped[int]
    run: Mapped[int]
    host: Mapped[str]
    nodes: Mapped[list[str]] = mapped_column(JSON)
    num_nodes: Mapped[int]
    at: Mapped[float]


class ReturnRow(Base):
    """A job's way back from one of its runs; there is one for a run."""

    __tablename__ = "job_returns"

    job_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    uid: Mapped[int]
    num_nodes: Mapped[int]
    exclude: Mapped[list[str]] = mapped_column(JSON)
    requested: Mapped[list[str]] = mapped_column(JSON)
    keep: Mapped[list[str]] = mapped_column(JSON)
    lost: Mapped[str]
    phase: Mapped[str]
    began: Mapped[float] = mapped_column(index=True)
    kept: Mapped[bool]
    ready_at: Mapped[float]
    look_at: Mapped[float]


class ReportRow(Base):
    """A report that nothing has come of yet."""

    __tablename__ = "node_reports"

    uid: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[int]
    owner: Mapped[int]
    node: Mapped[str]
    sign: Mapped[str]
    evidence: Mapped[str]
    at: Mapped[float]


_GUARDED = ("job_id", "uid", "run", "host", "num_nodes", "at")
_RETURN = ("job_id", "uid", "run", "num_nodes", "lost", "began", "kept", "ready_at", "look_at")
_LISTS = ("exclude", "requested", "keep")
_REPORT = ("uid", "job_id", "owner", "node", "sign", "evidence", "at")


def guard(session: Session, job: Guarded) -> None:
    """Write a job down, or what is new about it."""
    fields = {name: getattr(job, name) for name in _GUARDED}
    session.merge(GuardedRow(nodes=list(job.nodes), **fields))


def guarded(session: Session, job_id: int | None = None) -> tuple[Guarded, ...]:
    """All guarded jobs, or the one with this id."""
    wanted = select(GuardedRow).order_by(GuardedRow.job_id)
    if job_id is not None:
        wanted = wanted.where(GuardedRow.job_id == job_id)
    return tuple(
        Guarded(nodes=tuple(row.nodes), **{name: getattr(row, name) for name in _GUARDED})
        for row in session.scalars(wanted)
    )


def forget(session: Session, jobs: Iterable[int]) -> None:
    """Guard these jobs no more."""
    session.execute(delete(GuardedRow).where(GuardedRow.job_id.in_(list(jobs))))


def save(session: Session, way: Return) -> None:
    """Write a return down as it is now."""
    fields = {name: getattr(way, name) for name in _RETURN}
    lists = {name: list(getattr(way, name)) for name in _LISTS}
    session.merge(ReturnRow(phase=way.phase.value, **fields, **lists))


def returns(session: Session, after: float) -> tuple[Return, ...]:
    """Those that are not over, and all that began after a time."""
    wanted = select(ReturnRow).where(
        or_(ReturnRow.phase != Phase.DONE.value, ReturnRow.began > after)
    )
    return tuple(_return(row) for row in session.scalars(wanted))


def one_return(session: Session, job_id: int, run: int) -> Return | None:
    """That of one run of a job."""
    row = session.get(ReturnRow, (job_id, run))
    return _return(row) if row is not None else None


def forget_returns(session: Session, before: float) -> None:
    """Delete those that are over and began before a time."""
    over = ReturnRow.phase == Phase.DONE.value
    session.execute(delete(ReturnRow).where(over, ReturnRow.began < before))


def report(session: Session, each: Report) -> None:
    """Write a report down."""
    session.add(ReportRow(**{name: getattr(each, name) for name in _REPORT}))


def reports(session: Session) -> tuple[Report, ...]:
    """Reports that nothing has come of yet, the oldest first."""
    rows = session.scalars(select(ReportRow).order_by(ReportRow.at, ReportRow.uid))
    return tuple(Report(**{name: getattr(row, name) for name in _REPORT}) for row in rows)


def close(session: Session, each: Report) -> None:
    """Delete a report."""
    session.execute(delete(ReportRow).where(ReportRow.uid == each.uid))


def _return(row: ReturnRow) -> Return:
    return Return(
        phase=Phase(row.phase),
        exclude=tuple(row.exclude),
        requested=tuple(row.requested),
        keep=tuple(row.keep),
        **{name: getattr(row, name) for name in _RETURN},
    )
