"""Events of instance groups in the form of all others of the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from hpresume.provision.tables import ClusterRow, EventRow, NodeRow
from hpresume.store import Event, Level

_LEVELS = {"Info": Level.INFO, "Warn": Level.WARNING, "Error": Level.ERROR}


def latest(session: Session, count: int, *, node: str | None = None) -> tuple[Event, ...]:
    """The newest ``count`` events, in order."""
    found = _read(session, select(EventRow).order_by(EventRow.time.desc()), node, count)
    return tuple(reversed(found))


def since(session: Session, after: float, *, node: str | None = None) -> tuple[Event, ...]:
    """Events after a time (Unix s), in order."""
    wanted = select(EventRow).where(EventRow.time > after).order_by(EventRow.time)
    return tuple(_read(session, wanted, node, None))


def _read(
    session: Session, wanted: Select[EventRow], node: str | None, most: int | None
) -> list[Event]:
    nodes = select(NodeRow.logical_id, NodeRow.name, NodeRow.instance_group)
    live = session.execute(select(ClusterRow.cluster_id, ClusterRow.name))
    clusters = {row[0]: row[1] for row in live}
    names: dict[str, str] = {}
    groups: set[str] = set()
    for logical_id, name, group in session.execute(nodes):
        names[logical_id] = name
        if name == node:
            groups.add(group)
    if node is not None:
        wanted = wanted.where(EventRow.instance_group.in_(groups))
    elif most is not None:
        wanted = wanted.limit(most)
    found: list[Event] = []
    for row in session.scalars(wanted.execution_options(yield_per=200)):
        event = _event(row, names, clusters)
        if node is not None and event.node != node:
            continue
        if most is not None and len(found) >= most:
            break
        found.append(event)
    return found


def _event(row: EventRow, names: Mapping[str, str], clusters: Mapping[str, str]) -> Event:
    details: dict[str, Any] = dict(row.details)
    told = details.get("Instance") or details.get("InstanceGroup") or details.get("Cluster") or {}
    logical_id = str(told.get("NodeLogicalId", ""))
    failure = str(told.get("FailureMessage", ""))
    return Event(
        time=row.time,
        kind=row.resource.lower(),
        message=f"{row.description}: {failure}" if failure else row.description,
        level=_LEVELS.get(row.level, Level.INFO),
        node=names.get(logical_id, logical_id),
        cluster=clusters.get(row.cluster_id, row.cluster_id),
        group=row.instance_group,
        details={**details, "EventId": row.event_id},
    )
