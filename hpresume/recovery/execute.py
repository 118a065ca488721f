"""Carrying out what was decided.

What the store has to know comes first, in a transaction that only the leader can
commit; then Slurm and the provider. An action that fails is told and decided
anew in the next pass.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from hpresume.errors import HpresumeError, LeadershipLostError, SlurmError
from hpresume.providers.model import Provider
from hpresume.recovery import table
from hpresume.recovery.calls import Calls
from hpresume.recovery.model import (
    Action,
    Begin,
    Change,
    Hold,
    Make,
    Phase,
    Recovery,
    Resume,
    Say,
    SetAddress,
    SetQuarantine,
    Snapshot,
    Sweep,
    Unsay,
)
from hpresume.recovery.observe import OWNER
from hpresume.recovery.orphans import orphans, uids
from hpresume.slurm.admin import AdminGateway
from hpresume.store import Event, Fence, Level, Store, events
from hpresume.store.holds import Holds

log = logging.getLogger(__name__)

_LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}

#: How a comment begins that this controller set on a node.
_OWN_COMMENT = "hpresume: "


class Executor:
    """The hands of one controller. ``fence`` gives its fence, or raises LeadershipLostError."""

    def __init__(
        self,
        gateway: AdminGateway,
        store: Store,
        provider: Provider,
        calls: Calls,
        fence: Callable[[], Fence],
        clock: Callable[[], float] = time.time,
        crossed: Callable[[str], None] = lambda _: None,
        holds: Holds | None = None,
    ) -> None:
        self._holds = holds or Holds()
        self._gateway = gateway
        self._store = store
        self._provider = provider
        self._calls = calls
        self._fence = fence
        self._clock = clock
        self._crossed = crossed

    def execute(self, actions: Iterable[Action], snapshot: Snapshot) -> int:
        """Do it; how many actions did something. Raises StoreError, LeadershipLostError."""
        done = 0
        for action in actions:
            fence = self._fence()
            try:
                done += self._one(action, snapshot, fence)
            except SlurmError as error:
                # Slurm cannot, or will not, now: what it is like then decides.
                log.warning("%s: %s", type(action).__name__, error)
        return done

    def _one(self, action: Action, snapshot: Snapshot, fence: Fence) -> bool:
        match action:
            case Begin():
                self._begin(action, fence)
            case Change():
                return self._change(action, snapshot, fence)
            case Hold(recovery=recovery, reason=reason):
                if not self._take(recovery):
                    return False
                self._gateway.update_node(recovery.node, State="FAIL", Reason=reason)
            case Make(recovery=recovery, call=call):
                node = snapshot.nodes[recovery.node]
                jobs = tuple(job.job_id for job in snapshot.jobs.get(recovery.node, ()))
                address = "" if node.address == node.name else node.address
                self._calls.start(recovery, call, address, jobs)
            case SetAddress(recovery=recovery, address=address):
                self._gateway.update_node(recovery.node, NodeAddr=address)
                self._address_set(recovery, address, fence)
            case Resume(recovery=recovery):
                self._gateway.update_node(recovery.node, State="RESUME")
            case SetQuarantine(recovery=recovery, reason=reason):
                self._gateway.update_node(recovery.node, State="DRAIN", Reason=reason)
            case Say():
                self._say(action, snapshot, fence)
            case Unsay():
                self._unsay(action, snapshot, fence)
            case Sweep():
                self._calls.background(self.sweep)
        self._crossed(type(action).__name__)
        return True

    # -- the store --------------------------------------------------------------------

    def _begin(self, action: Begin, fence: Fence) -> None:
        now = self._clock()
        recovery = Recovery(
            uid=secrets.token_hex(8),
            node=action.node,
            kind=action.kind,
            origin=action.origin,
            reason=action.reason,
            phase=Phase.WAITING,
            since=now,
            began=now,
            times={Phase.WAITING.value: now},
        )
        message = f"{action.node}: {action.kind} wanted ({action.origin}): {action.reason}"
        with self._store.write(fence) as session:
            table.save(session, recovery)
            events.add(session, self._event(f"{action.kind}-wanted", message, action.node))
        log.info(message)

    def _change(self, action: Change, snapshot: Snapshot, fence: Fence) -> bool:
        before, after = action.before, action.after
        if before.phase is Phase.WAITING and after.phase.is_acting:
            if not self._take(before):
                return False
            why = self._is_needed(before.node, snapshot)
            if why:
                log.info("%s: not yet: %s", before.node, why)
                return False
        with self._store.write(fence) as session:
            table.save(session, after)
            if action.event:
                details: dict[str, object] = {"uid": after.uid}
                if after.phase.is_end:
                    details = _story(after)
                event = self._event(action.event, action.message, after.node, action.level)
                events.add(session, replace(event, details=details))
        if action.message:
            log.log(_LEVELS[action.level], action.message)
        self._crossed(f"Change:{after.phase}")
        return True

    def _take(self, recovery: Recovery) -> bool:
        """Take the node in hand; False where provisioning has taken it since the snapshot."""
        return self._holds.take(OWNER, recovery.node)

    def _is_needed(self, name: str, snapshot: Snapshot) -> str:
        """Why a node must not lose its machine after all: one last look."""
        node = self._gateway.nodes([name])[name]
        if node.is_usable:
            return "it was given back"
        if node.is_down:
            return ""
        known = {job.job_id for job in snapshot.jobs.get(name, ()) if job.waits}
        others = [h.job_id for h in self._gateway.holders(name) if h.job_id not in known]
        return f"job {others[0]} holds it" if others else ""

    def _address_set(self, recovery: Recovery, address: str, fence: Fence) -> None:
        times = {**recovery.times, "addressed": self._clock()}
        message = f"{recovery.node}: NodeAddr is {address}"
        with self._store.write(fence) as session:
            table.save(session, replace(recovery, times=times))
            events.add(session, self._event("address-set", message, recovery.node))
        log.info(message)

    def _say(self, action: Say, snapshot: Snapshot, fence: Fence) -> None:
        with self._store.write(fence) as session:
            table.note(session, action.key, self._clock())
            event = self._event(action.event, action.message, action.node, action.level)
            events.add(session, replace(event, details=dict(action.details)))
        log.log(_LEVELS[action.level], action.message)
        node = snapshot.nodes.get(action.node)
        if action.comment and node and (not node.comment or node.comment.startswith(_OWN_COMMENT)):
            self._gateway.update_node(node.name, Comment=action.comment.replace('"', "'"))

    def _unsay(self, action: Unsay, snapshot: Snapshot, fence: Fence) -> None:
        with self._store.write(fence) as session:
            table.forget_notice(session, action.key)
        node = snapshot.nodes.get(action.node)
        if node and node.comment.startswith(_OWN_COMMENT):
            self._gateway.update_node(node.name, Comment="")

    def _event(self, kind: str, message: str, node: str = "", level: Level = Level.INFO) -> Event:
        return Event(self._clock(), kind, message, level, node)

    # -- in the background -----------------------------------------------------------------

    def sweep(self) -> None:
        """Terminate machines that launches of ours have left behind."""
        try:
            machines = self._provider.list()
            with self._store.read() as session:
                known = table.by_uid(session, uids(machines))
            for machine in orphans(machines, known):
                fence = self._fence()
                self._provider.terminate(machine.machine_id)
                message = f"{machine.node}: machine {machine.machine_id} was left behind: given up"
                with self._store.write(fence) as session:
                    event = self._event("orphan", message, machine.node, Level.WARNING)
                    events.add(session, event)
                log.warning(message)
        except LeadershipLostError:
            return
        except HpresumeError as error:
            log.warning("no look for machines left behind: %s", error)
        except Exception:
            log.exception("no look for machines left behind")


def _story(recovery: Recovery) -> dict[str, object]:
    """The story of a recovery that has ended, for programs."""
    return {
        "uid": recovery.uid,
        "kind": recovery.kind.value,
        "origin": recovery.origin.value,
        "outcome": recovery.phase.value,
        "reason": recovery.reason,
        "attempts": recovery.attempt,
        "machine_id": recovery.machine_id,
        "address": recovery.address,
        "took_s": round(recovery.ended_at - recovery.began, 3),
        "times": dict(recovery.times),
    }
