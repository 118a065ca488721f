"""The service behind the HyperPod API: requests become targets, and reads are answered.

Nothing here talks to a provider or to Slurm; the engine carries out what was recorded.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from hpresume.errors import RequestRefusedError, ResourceLimitError, ResourceNotFoundError
from hpresume.provision import checking, repository, requests, updating
from hpresume.provision.arn import cluster_arn, new_cluster_id
from hpresume.provision.book import Book
from hpresume.provision.draft import Draft
from hpresume.provision.model import Node, State
from hpresume.provision.page import Page, page_of
from hpresume.provision.service import (
    AddedNodes,
    Addition,
    AdditionGuard,
    ClientToken,
    ClusterQuery,
    ClusterRecord,
    ClusterSpec,
    ClusterUpdate,
    Document,
    EventQuery,
    EventRecord,
    Guard,
    NodeAction,
    NodeJudge,
    NodeQuery,
    NodeRecord,
    OperationQuery,
    OperationRecord,
)
from hpresume.provision.tables import EventRow, OperationRow, TokenRow
from hpresume.provision.views import cluster_record, event_record, node_record, operation_record


class Provisioner:
    """``ClusterService`` for one account and region.

    ``has_alarms``, ``has_checks``: the engine looks at alarms, and can run deep health checks.
    ``has_slurm``: there is a slurm.conf that is managed, which has the nodes of one cluster.
    """

    def __init__(
        self,
        book: Book,
        clock: Callable[[], float],
        *,
        region: str = "us-east-1",
        account: str = "000000000000",
        has_slurm: bool = False,
        changed: Callable[[], None] | None = None,
        has_alarms: bool = False,
        has_checks: bool = False,
    ) -> None:
        self._book = book
        self._clock = clock
        self._region = region
        self._account = account
        self._has_slurm = has_slurm
        self._changed = changed or (lambda: None)
        self._has_alarms = has_alarms
        self._has_checks = has_checks

    def cluster(self, ref: str) -> ClusterRecord:
        """One cluster with its groups."""
        return cluster_record(self._book.find(ref))

    def clusters(self, query: ClusterQuery) -> Page[ClusterRecord]:
        """A page of clusters; the id of a position is the ARN."""
        found = []
        for state in self._book.states.values():
            cluster = state.cluster
            plans = {group.spec.get("TrainingPlanArn") for group in state.groups.values()}
            if (
                query.name_contains in cluster.name
                and _within(cluster.created_at, query.created_after, query.created_before)
                and (not query.training_plan or query.training_plan in plans)
            ):
                found.append(cluster_record(state))
        by_name = query.sort_by == "NAME"
        return page_of(
            found,
            lambda record: (record.name if by_name else record.created_at, record.arn),
            limit=query.limit,
            after=query.after,
            descending=query.descending,
        )

    def nodes(self, ref: str, query: NodeQuery) -> Page[NodeRecord]:
        """A page of a cluster's nodes; the id of a position is the logical id."""
        state = self._book.find(ref)
        chosen = [
            node
            for node in state.nodes.values()
            if (node.machine_id or query.include_logical)
            and query.group_contains in node.group
            and _within(node.created_at, query.created_after, query.created_before)
        ]
        by_name = query.sort_by == "NAME"
        page = page_of(
            chosen,
            lambda node: (node.name if by_name else node.created_at, node.logical_id),
            limit=query.limit,
            after=query.after,
            descending=query.descending,
        )
        return Page(tuple(node_record(state, node) for node in page.items), page.next)

    def node(self, ref: str, *, instance_id: str = "", logical_id: str = "") -> NodeRecord:
        """One node, by one of its ids."""
        state = self._book.find(ref)
        found = _find(state, (instance_id,) if instance_id else (), (logical_id,))
        if not found:
            raise ResourceNotFoundError(
                f"Cluster {state.cluster.name} has no node {instance_id or logical_id}"
            )
        return node_record(state, found[0])

    def events(self, ref: str, query: EventQuery) -> Page[EventRecord]:
        """A page of a cluster's events; the id of a position is the event id."""
        cluster = self._book.find(ref).cluster
        statement = select(EventRow).where(EventRow.cluster_id == cluster.cluster_id)
        for column, value in (
            (EventRow.instance_group, query.group),
            (EventRow.instance_id, query.instance_id),
            (EventRow.resource, query.resource_type),
            (EventRow.operation, query.operation_id),
        ):
            if value:
                statement = statement.where(column == value)
        statement = _between(statement, EventRow.time, query.time_after, query.time_before)
        statement = _placed(statement, EventRow.time, EventRow.event_id, query)
        with self._book.store.read() as session:
            rows = list(session.scalars(statement))
        records = tuple(event_record(row) for row in rows[: query.limit])
        more = len(rows) > query.limit
        return Page(records, (records[-1].time, records[-1].event_id) if more else None)

    def event(self, ref: str, event_id: str) -> EventRecord:
        """One event."""
        cluster = self._book.find(ref).cluster
        with self._book.store.read() as session:
            row = session.get(EventRow, event_id)
        if row is None or row.cluster_id != cluster.cluster_id:
            raise ResourceNotFoundError(f"Cluster {cluster.name} has no event {event_id}")
        return event_record(row)

    def operations(self, ref: str, query: OperationQuery) -> Page[OperationRecord]:
        """A page of a cluster's operations; the id of a position is the operation id."""
        cluster = self._book.find(ref).cluster
        statement = select(OperationRow).where(OperationRow.cluster_id == cluster.cluster_id)
        if query.status:
            statement = statement.where(OperationRow.status == query.status)
        if query.type:
            statement = statement.where(OperationRow.kind == query.type)
        column = OperationRow.created_at
        statement = _between(statement, column, query.created_after, query.created_before)
        statement = _placed(statement, column, OperationRow.operation_id, query)
        with self._book.store.read() as session:
            rows = list(session.scalars(statement))
        records = tuple(operation_record(repository.operation(row)) for row in rows[: query.limit])
        more = len(rows) > query.limit
        return Page(records, (records[-1].created_at, records[-1].operation_id) if more else None)

    def operation(self, ref: str, operation_id: str) -> OperationRecord:
        """One operation."""
        cluster = self._book.find(ref).cluster
        with self._book.store.read() as session:
            row = session.get(OperationRow, operation_id)
        if row is None or row.cluster_id != cluster.cluster_id:
            raise ResourceNotFoundError(f"Cluster {cluster.name} has no operation {operation_id}")
        return operation_record(repository.operation(row))

    def tags(self, arn: str) -> Mapping[str, str]:
        """Tags of a cluster."""
        return self._book.find(arn).cluster.tags

    def create_cluster(self, spec: ClusterSpec) -> str:
        """Record a new cluster and answer its ARN; ``ResourceInUseError`` if the name is taken."""
        cluster_id = new_cluster_id()
        arn = cluster_arn(self._region, self._account, cluster_id)
        draft = requests.create(spec, cluster_id, arn, str(uuid.uuid4()), self._clock())
        with self._book.locked():
            others = [state.cluster.name for state in self._book.states.values()]
            if self._has_slurm and others and spec.name not in others:
                raise ResourceLimitError(
                    f"Cluster {spec.name}: this server manages one Slurm, which has the nodes of "
                    f"cluster {others[0]}: delete that one first, or add instance groups to it"
                )
            self._book.add(draft)
        self._changed()
        return arn

    def update_cluster(self, ref: str, update: ClusterUpdate, guard: Guard) -> str:
        """Record new targets; answers the ARN."""

        def work(draft: Draft) -> None:
            requests.update(draft, update, str(uuid.uuid4()))

        return self._change(ref, guard, work)

    def delete_cluster(self, ref: str, guard: Guard) -> str:
        """Start the deletion of a cluster in whatever state it is; answers the ARN."""
        return self._change(ref, guard, requests.delete)

    def add_nodes(
        self, ref: str, additions: tuple[Addition, ...], token: ClientToken, guard: AdditionGuard
    ) -> AddedNodes:
        """Raise target counts, one new node for each; once only for each client token."""
        with self._book.locked():
            state = self._book.find(ref)
            cluster_id = state.cluster.cluster_id
            now = self._clock()
            answer = self._answered(cluster_id, token, now)
            if answer is None:
                del additions  # the guard has them, and says which are carried out
                answer = self._add(state, token, guard, now)
            state = self._book.states[cluster_id]
        nodes = tuple(
            node_record(state, state.nodes[key]) for key in answer["nodes"] if key in state.nodes
        )
        return AddedNodes(nodes, tuple(answer["failed"]))

    def act_on_nodes(
        self,
        ref: str,
        action: NodeAction,
        *,
        instance_ids: tuple[str, ...],
        logical_ids: tuple[str, ...],
        judge: NodeJudge,
    ) -> str:
        """Act on those of the named nodes that ``judge`` accepts; answers the ARN."""
        with self._book.locked():
            state = self._book.find(ref)
            named = _find(state, instance_ids, logical_ids)
            records = {node.logical_id: node_record(state, node) for node in named}
            accepted = judge(cluster_record(state), records)

            def work(draft: Draft) -> None:
                nodes = [draft.nodes[key] for key in accepted]
                requests.act(draft, action, nodes, str(uuid.uuid4()))

            self._book.change(state.cluster.cluster_id, self._clock(), work)
        self._changed()
        return state.cluster.arn

    def start_health_check(
        self, ref: str, configurations: tuple[Document, ...], guard: Guard
    ) -> str:
        """Start deep checks (InstanceGroupHealthCheckConfiguration); answers the ARN."""
        if not self._has_checks:
            raise RequestRefusedError(
                "StartClusterHealthCheck: deep checks need Slurm: set slurm_conf in [provision]"
            )
        operation_id = str(uuid.uuid4())
        return self._change(
            ref, guard, lambda draft: checking.start(draft, configurations, operation_id)
        )

    def update_software(self, ref: str, document: Document, guard: Guard) -> str:
        """Start an UpdateClusterSoftwareRequest; answers the ARN."""
        config = document.get("DeploymentConfig") or {}
        if config.get("AutoRollbackConfiguration") and not self._has_alarms:
            raise RequestRefusedError(
                "AutoRollbackConfiguration: nobody here can tell whether an alarm rings: set "
                "alarm_command in [provision], or leave it out"
            )
        return self._change(ref, guard, lambda draft: updating.start(draft, document))

    def change_tags(
        self, arn: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Put ``change(tags)`` in the place of a cluster's tags; answers the new ones."""
        state = self._book.find(arn)

        def work(draft: Draft) -> Mapping[str, str]:
            tags = dict(change(draft.cluster.tags))
            draft.set_cluster(tags=tags)
            return tags

        return self._book.change(state.cluster.cluster_id, self._clock(), work)

    def _change(self, ref: str, guard: Guard, work: Callable[[Draft], None]) -> str:
        with self._book.locked():
            state = self._book.find(ref)
            guard(cluster_record(state))
            self._book.change(state.cluster.cluster_id, self._clock(), work)
        self._changed()
        return state.cluster.arn

    def _add(
        self,
        state: State,
        token: ClientToken,
        guard: AdditionGuard,
        now: float,
    ) -> dict[str, Any]:
        verdict = guard(cluster_record(state))

        def work(draft: Draft) -> dict[str, Any]:
            nodes = requests.add(draft, verdict.accepted, str(uuid.uuid4()))
            return {
                "nodes": [node.logical_id for node in nodes],
                "failed": [dict(error) for error in verdict.failed],
            }

        def keep(session: Session, answer: dict[str, Any]) -> None:
            session.execute(delete(TokenRow).where(TokenRow.expires_at <= now))
            session.add(
                TokenRow(
                    cluster_id=state.cluster.cluster_id,
                    token=token.value,
                    digest=token.digest,
                    expires_at=now + token.lifetime_s,
                    answer=answer,
                )
            )

        answer = self._book.change(state.cluster.cluster_id, now, work, keep)
        self._changed()
        return answer

    def _answered(self, cluster_id: str, token: ClientToken, now: float) -> dict[str, Any] | None:
        with self._book.store.read() as session:
            row = session.get(TokenRow, (cluster_id, token.value))
        if row is None or row.expires_at <= now:
            return None
        if row.digest != token.digest:
            raise RequestRefusedError(
                "ClientToken: it was used for a request with other parameters; use a new one"
            )
        return dict(row.answer)


def _find(state: State, instance_ids: Iterable[str], logical_ids: Iterable[str]) -> list[Node]:
    """Each named node once."""
    wanted = set(instance_ids)
    found = {key: state.nodes[key] for key in logical_ids if key in state.nodes}
    if wanted:
        for node in state.nodes.values():
            if node.machine_id and node.instance_id in wanted:
                found[node.logical_id] = node
    return list(found.values())


def _within(value: float, after: float | None, before: float | None) -> bool:
    return (after is None or value > after) and (before is None or value < before)


def _between(
    statement: Select[Any], column: Any, after: float | None, before: float | None
) -> Select[Any]:
    if after is not None:
        statement = statement.where(column > after)
    if before is not None:
        statement = statement.where(column < before)
    return statement


def _placed(
    statement: Select[Any], value: Any, key: Any, query: EventQuery | OperationQuery
) -> Select[Any]:
    """In order, from where the page before ended, with one more to see whether others follow."""
    if query.after is not None:
        at, last = query.after
        beyond = value < at if query.descending else value > at
        tie = key < last if query.descending else key > last
        statement = statement.where(beyond | ((value == at) & tie))
    order = (value.desc(), key.desc()) if query.descending else (value, key)
    return statement.order_by(*order).limit(query.limit + 1)
