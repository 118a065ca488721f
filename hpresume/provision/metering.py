"""Usage per cluster, group and instance, from the billing intervals.

An interval begins when the lifecycle script of a machine begins and ends when the machine goes
into its terminating state (seed 004, "Nutzungsmessung"). There is one for each machine, so
overlaps and second beginnings cannot count twice; where intervals of one instance id do
overlap all the same, the time counts once.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from hpresume.provision.arn import instance_id
from hpresume.provision.tables import BillRow


@dataclass(frozen=True)
class Interval:
    """One machine's metered time (Unix s); ``ended`` is None while it runs."""

    cluster_arn: str
    cluster: str
    group: str
    instance_type: str
    instance_id: str
    logical_id: str
    began: float
    ended: float | None


@dataclass(frozen=True)
class Usage:
    """Metered seconds of one instance, or of a group or cluster (``instance_id`` empty, and so on).

    ``is_running`` is whether it is metered at the end of the time that was asked about.
    """

    cluster_arn: str
    cluster: str
    group: str
    instance_type: str
    instance_id: str
    logical_id: str
    instances: int
    seconds: float
    is_running: bool


def intervals(session: Session, cluster: str = "") -> list[Interval]:
    """All intervals, or those of the cluster of a name or an ARN, the oldest first."""
    statement = select(BillRow).order_by(BillRow.began_at, BillRow.machine_id)
    if cluster:
        column = BillRow.cluster_arn if cluster.startswith("arn:") else BillRow.cluster_name
        statement = statement.where(column == cluster)
    return [
        Interval(
            row.cluster_arn,
            row.cluster_name,
            row.instance_group,
            row.instance_type,
            instance_id(row.machine_id),
            row.logical_id,
            row.began_at,
            row.ended_at,
        )
        for row in session.scalars(statement)
    ]


def usage(found: Iterable[Interval], since: float, until: float) -> list[Usage]:
    """What each instance used between two times (Unix s); those without any are left out."""
    by_instance: dict[tuple[str, str], list[Interval]] = {}
    for interval in found:
        by_instance.setdefault((interval.cluster_arn, interval.instance_id), []).append(interval)
    rows = []
    for parts in by_instance.values():
        seconds = _merged(parts, since, until)
        first = parts[0]
        if seconds > 0:
            rows.append(
                Usage(
                    first.cluster_arn,
                    first.cluster,
                    first.group,
                    first.instance_type,
                    first.instance_id,
                    first.logical_id,
                    1,
                    seconds,
                    any(p.ended is None or p.ended > until for p in parts),
                )
            )
    return sorted(rows, key=lambda row: (row.cluster_arn, row.group, row.instance_id))


def totals(rows: Iterable[Usage], *, by_group: bool) -> list[Usage]:
    """Sums for each group and instance type, or for each cluster."""
    sums: dict[tuple[str, ...], Usage] = {}
    for row in rows:
        key = (row.cluster_arn, *((row.group, row.instance_type) if by_group else ()))
        before = sums.get(key)
        sums[key] = Usage(
            row.cluster_arn,
            row.cluster,
            row.group if by_group else "",
            row.instance_type if by_group else "",
            "",
            "",
            row.instances + (before.instances if before else 0),
            row.seconds + (before.seconds if before else 0.0),
            row.is_running or bool(before and before.is_running),
        )
    return [sums[key] for key in sorted(sums)]


def as_csv(rows: Iterable[Usage]) -> str:
    """Rows as CSV (RFC 4180) with a header."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*Usage.__dataclass_fields__])
    for row in rows:
        writer.writerow([_plain(value) for value in asdict(row).values()])
    return text.getvalue()


def as_json(rows: Iterable[Usage]) -> str:
    """Rows as a JSON array."""
    return json.dumps([asdict(row) for row in rows], indent=1)


def _merged(parts: list[Interval], since: float, until: float) -> float:
    """Length of the union of the intervals, within the bounds."""
    seconds, reached = 0.0, since
    for part in sorted(parts, key=lambda part: part.began):
        end = min(until if part.ended is None else part.ended, until)
        begin = max(part.began, reached)
        if end > begin:
            seconds += end - begin
            reached = end
    return seconds


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3f}" if isinstance(value, float) else value
