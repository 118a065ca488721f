"""All clusters in memory, and every change of them in the database first.

One process owns the book (the leader of the controller's lease). Readers take a
state, which is frozen, without waiting for a writer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from hpresume.errors import (
    LeadershipLostError,
    ResourceInUseError,
    ResourceNotFoundError,
    StoreError,
)
from hpresume.provision import repository
from hpresume.provision.arn import is_arn
from hpresume.provision.draft import Draft, applied
from hpresume.provision.model import Change, State
from hpresume.provision.tables import BillRow, EventRow, NodeRow
from hpresume.store import Fence, Store

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Book:
    """The states of all clusters; ``fence`` gives what the leader's writes carry."""

    def __init__(self, store: Store, fence: Callable[[], Fence | None] | None = None) -> None:
        self.store = store
        self._fence = fence or (lambda: None)
        self._lock = threading.RLock()
        #: Whether the database is known to have what is in memory.
        self._is_sure = True
        with store.read() as session:
            self._states: Mapping[str, State] = repository.load(session)

    @property
    def states(self) -> Mapping[str, State]:
        """Every live cluster by its id."""
        return self._states

    def find(self, ref: str) -> State:
        """The cluster of a name or an ARN. Raises ResourceNotFoundError."""
        for state in self._states.values():
            if ref == (state.cluster.arn if is_arn(ref) else state.cluster.name):
                return state
        raise ResourceNotFoundError(f"Cluster {ref} does not exist")

    def latest(self) -> float:
        """The latest time that was written down; 0.0 in an empty database."""
        with self.store.read() as session:
            newest = (
                session.scalar(select(func.max(column)))
                for column in (
                    EventRow.time,
                    NodeRow.phase_since,
                    BillRow.began_at,
                    BillRow.ended_at,
                )
            )
            return max((float(value) for value in newest if value), default=0.0)

    def forget_events(self, before: float) -> None:
        """Delete the events from before a time; metering is kept."""
        with self._lock, self.store.write(self._fence()) as session:
            session.execute(delete(EventRow).where(EventRow.time < before))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes anything meanwhile. Raises StoreError."""
        with self._lock:
            self._make_sure()
            yield

    def add(self, draft: Draft) -> None:
        """Write a new cluster. Raises ResourceInUseError if the name is taken."""
        cluster = draft.cluster
        with self.locked():
            if any(state.cluster.name == cluster.name for state in self._states.values()):
                raise ResourceInUseError(f"Cluster {cluster.name} exists already")
            change = replace(draft.change(), cluster=cluster)
            with self._writing() as session:
                repository.save(session, cluster, change)
            _log_events(change)
            empty = State(cluster)
            self._states = {**self._states, cluster.cluster_id: applied(empty, change)}

    def change(
        self,
        cluster_id: str,
        now: float,
        work: Callable[[Draft], T],
        also: Callable[[Session, T], None] | None = None,
    ) -> T:
        """Change one cluster in one transaction; what ``work`` raises leaves it as it was.

        ``also`` writes more in the same transaction. Raises ResourceNotFoundError where the
        cluster is gone.
        """
        with self.locked():
            state = self._states.get(cluster_id)
            if state is None:
                raise ResourceNotFoundError(f"Cluster {cluster_id} does not exist any more")
            draft = Draft(state, now)
            result = work(draft)
            self._commit(state, draft.change(), lambda s: also(s, result) if also else None)
            return result

    def commit(self, state: State, change: Change) -> bool:
        """Write a change that was made from ``state``; False where that is not the present one."""
        with self.locked():
            if self._states.get(state.cluster.cluster_id) is not state:
                return False
            self._commit(state, change, lambda _: None)
            return True

    def _commit(self, state: State, change: Change, also: Callable[[Session], None]) -> None:
        after = applied(state, change)
        with self._writing() as session:
            repository.save(session, after.cluster, change)
            also(session)
        _log_events(change)
        states = dict(self._states)
        if change.is_gone:
            del states[state.cluster.cluster_id]
        else:
            states[state.cluster.cluster_id] = after
        self._states = states

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """A transaction; where it fails, whether it was committed is for the database to tell."""
        try:
            with self.store.write(self._fence()) as session:
                yield session
        except LeadershipLostError:
            raise
        except StoreError:
            self._is_sure = False
            raise

    def _make_sure(self) -> None:
        """Read everything again after a write of which it is not known whether it was done."""
        if not self._is_sure:
            with self.store.read() as session:
                self._states = repository.load(session)
            self._is_sure = True


def _log_events(change: Change) -> None:
    """What happens to clusters and groups, for the log; nodes have too many events for it."""
    for event in change.events:
        if event.resource == "Instance":
            continue
        told = event.metadata.get("Cluster") or event.metadata.get("InstanceGroupScaling") or {}
        failure = told.get("FailureMessage", "")
        level = logging.INFO if event.level == "Info" else logging.WARNING
        _log.log(level, "%s%s", event.description, f": {failure}" if failure else "")
