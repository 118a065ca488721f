"""Records to rows and back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Float, bindparam, case, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from hpresume.provision.model import (
    Bill,
    Change,
    CheckedGroup,
    Cluster,
    ClusterStatus,
    Counts,
    Event,
    Group,
    GroupStatus,
    Leave,
    Node,
    NodeType,
    Operation,
    OperationDetail,
    OperationKind,
    OperationStatus,
    Phase,
    State,
)
from hpresume.provision.software import Software, Stage, Update
from hpresume.provision.tables import (
    BillRow,
    ClusterRow,
    EventRow,
    GroupRow,
    NodeRow,
    OperationRow,
    TokenRow,
)
from hpresume.store import Base

#: Columns whose names differ from the record's, since they are words of SQL.
_RENAMED = {"group": "instance_group", "index": "number", "update": "software_update"}

_BILLS = BillRow.__table__.c

#: Ends intervals that are open.
_END_BILL = (
    update(BillRow.__table__)  # type: ignore[arg-type]
    .where(
        _BILLS.machine_id == bindparam("b_machine"),
        _BILLS.token == bindparam("b_token"),
        _BILLS.ended_at.is_(None),
    )
    .values(
        ended_at=case(
            (_BILLS.began_at > bindparam("b_at", type_=Float), _BILLS.began_at),
            else_=bindparam("b_at", type_=Float),
        )
    )
)


def save(session: Session, cluster: Cluster, change: Change) -> None:
    """Write a change of ``cluster`` (as it is after the change)."""
    if change.cluster is not None:
        _upsert(session, ClusterRow, [_row(cluster)])
    _write(
        session,
        GroupRow,
        GroupRow.name,
        cluster.cluster_id,
        {
            name: None if group is None else _row(group) | {"cluster_id": cluster.cluster_id}
            for name, group in change.groups.items()
        },
    )
    _write(
        session,
        NodeRow,
        NodeRow.logical_id,
        cluster.cluster_id,
        {
            key: None if node is None else _row(node) | {"cluster_id": cluster.cluster_id}
            for key, node in change.nodes.items()
        },
    )
    _upsert(session, OperationRow, [_operation_row(cluster, op) for op in change.operations])
    if change.events:
        session.execute(insert(EventRow), [_event_row(cluster, event) for event in change.events])
    _save_bills(session, cluster, change.bills)
    if change.is_gone:
        for table in (ClusterRow, GroupRow, NodeRow, OperationRow, TokenRow):
            session.execute(delete(table).where(table.cluster_id == cluster.cluster_id))


def load(session: Session) -> dict[str, State]:
    """All live clusters by their ids."""
    groups: dict[str, dict[str, Group]] = {}
    for group_row in session.scalars(select(GroupRow).order_by(GroupRow.created_at)):
        groups.setdefault(group_row.cluster_id, {})[group_row.name] = _group(group_row)
    nodes: dict[str, dict[str, Node]] = {}
    ordered = select(NodeRow.__table__).order_by(NodeRow.created_at, NodeRow.number)
    for row in session.execute(ordered).mappings():
        nodes.setdefault(row["cluster_id"], {})[row["logical_id"]] = _node(dict(row))
    operations: dict[str, dict[str, Operation]] = {}
    in_progress = OperationRow.status == OperationStatus.IN_PROGRESS.value
    for op_row in session.scalars(select(OperationRow).where(in_progress)):
        operations.setdefault(op_row.cluster_id, {})[op_row.operation_id] = operation(op_row)
    return {
        row.cluster_id: State(
            _cluster(row),
            groups.get(row.cluster_id, {}),
            nodes.get(row.cluster_id, {}),
            operations.get(row.cluster_id, {}),
        )
        for row in session.scalars(select(ClusterRow))
    }


def operation(row: OperationRow) -> Operation:
    """An operation from its row."""
    details: Any = row.details.get("groups", ())
    checks: Any = row.details.get("checks", ())
    more: Any = row.details
    return Operation(
        row.operation_id,
        row.created_at,
        tuple(
            OperationDetail(
                group=entry["group"],
                current=entry["current"],
                original=Counts(**entry["original"]),
                desired=Counts(**entry["desired"]),
                status=OperationStatus(entry["status"]),
            )
            for entry in details
        ),
        OperationStatus(row.status),
        OperationKind(row.kind),
        tuple(
            CheckedGroup(entry["group"], tuple(entry["checks"]), tuple(entry["instance_ids"]))
            for entry in checks
        ),
        not_before=more.get("not_before", 0.0),
        failures=more.get("failures", 0),
    )


def _save_bills(session: Session, cluster: Cluster, bills: Iterable[Bill]) -> None:
    """One interval a machine: a second beginning changes nothing, nor does a second end.

    An end before the beginning (the clock was set back across a restart) counts as no time.
    """
    begins: list[dict[str, Any]] = []
    ends: list[Bill] = []
    for bill in bills:
        if bill.ends:
            ends.append(bill)
            continue
        begins.append(
            {
                "machine_id": bill.machine_id,
                "token": bill.token,
                "cluster_id": cluster.cluster_id,
                "cluster_arn": cluster.arn,
                "cluster_name": cluster.name,
                "instance_group": bill.group,
                "logical_id": bill.logical_id,
                "instance_type": bill.instance_type,
                "began_at": bill.at,
                "ended_at": None,
            }
        )
    if begins:
        statement = _insert(session, BillRow).on_conflict_do_nothing()
        session.execute(statement, begins)
    if ends:
        session.connection().execute(
            _END_BILL,
            [{"b_machine": b.machine_id, "b_token": b.token, "b_at": b.at} for b in ends],
        )


def _write(
    session: Session,
    table: type[Base],
    key: Any,
    cluster_id: str,
    rows: Mapping[str, dict[str, Any] | None],
) -> None:
    gone = [name for name, row in rows.items() if row is None]
    for start in range(0, len(gone), 500):
        scope: Any = table
        session.execute(
            delete(table)
            .where(scope.cluster_id == cluster_id)
            .where(key.in_(gone[start : start + 500]))
        )
    _upsert(session, table, [row for row in rows.values() if row is not None])


def _upsert(session: Session, table: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    statement = _insert(session, table)
    keys = [column.name for column in table.__table__.primary_key]
    values = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    statement = statement.on_conflict_do_update(index_elements=keys, set_=values)
    session.connection().execute(statement, list(rows))


def _insert(session: Session, table: type[Base]) -> Any:
    dialect = session.get_bind().dialect.name
    make = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return make(table.__table__)  # type: ignore[arg-type]


def _row(record: Cluster | Group | Node) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for member in fields(record):
        value = getattr(record, member.name)
        if isinstance(value, Counts | Software | Update):
            value = asdict(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, str):
            value = str(value.value) if hasattr(value, "value") else value
        row[_RENAMED.get(member.name, member.name)] = value
    return row


def _operation_row(cluster: Cluster, record: Operation) -> dict[str, Any]:
    return {
        "operation_id": record.operation_id,
        "cluster_id": cluster.cluster_id,
        "created_at": record.created_at,
        "status": record.status.value,
        "kind": record.kind.value,
        "details": _operation_details(record),
    }


def _operation_details(record: Operation) -> dict[str, Any]:
    if record.kind is OperationKind.SCALING:
        return {"groups": [asdict(detail) for detail in record.details]}
    return {
        "checks": [asdict(part) for part in record.checks],
        "not_before": record.not_before,
        "failures": record.failures,
    }


def _event_row(cluster: Cluster, event: Event) -> dict[str, Any]:
    return {
        "event_id": str(uuid.uuid4()),
        "cluster_id": cluster.cluster_id,
        "time": event.time,
        "resource": event.resource,
        "level": event.level,
        "description": event.description,
        "instance_group": event.group,
        "instance_id": event.instance_id,
        "operation": event.operation,
        "details": dict(event.metadata),
    }


def _cluster(row: ClusterRow) -> Cluster:
    return Cluster(
        cluster_id=row.cluster_id,
        arn=row.arn,
        name=row.name,
        status=ClusterStatus(row.status),
        created_at=row.created_at,
        spec=row.spec,
        tags={key: str(value) for key, value in row.tags.items()},
        failure=row.failure,
        next_serial=row.next_serial,
        controller_up_at=row.controller_up_at,
    )


def _group(row: GroupRow) -> Group:
    good: Any = row.good
    software: Any = row.software
    return Group(
        name=row.name,
        node_type=NodeType(row.node_type),
        target=row.target,
        minimum=row.minimum,
        status=GroupStatus(row.status),
        created_at=row.created_at,
        minimum_since=row.minimum_since,
        spec=row.spec,
        good=Counts(**good) if good else None,
        operation=row.operation,
        software=Software(**software),
        update=_update(row.update) if row.update else None,
    )


def _update(row: Mapping[str, Any]) -> Update:
    return Update(**{**row, "goal": Software(**row["goal"]), "stage": Stage(row["stage"])})


def _node(row: Mapping[str, Any]) -> Node:
    values = {member.name: row[_RENAMED.get(member.name, member.name)] for member in fields(Node)}
    values["phase"] = Phase(values["phase"])
    values["leave"] = Leave(values["leave"])
    return Node(**values)
