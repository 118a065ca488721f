"""Messages of supervisors: who may say what, and what is written down of it.

The sender is whom MUNGE vouches for; everything else is asked from slurmctld. Only
the owner of a running job is heard, about that job and the nodes it holds (or held in
this run, as slurmctld said when the job was registered: its supervisor drops a
dead node within milliseconds).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from hpresume.errors import LeadershipLostError, SlurmError, SlurmNotFoundError
from hpresume.jobs import table
from hpresume.jobs.decide import is_elsewhere
from hpresume.jobs.model import Guarded, Phase, Report, Return
from hpresume.jobs.rate import Rate
from hpresume.jobs.shrunk import miscounted, warning
from hpresume.resume.message import Blames, Message, Protects, Requeues
from hpresume.resume.model import Sign
from hpresume.slurm.admin import AdminGateway
from hpresume.slurm.models import Job, JobState
from hpresume.store import Event, Fence, Level, Store, events

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reply:
    """An HTTP status, and a line for people."""

    status: int
    words: str


class Inbox:
    """Takes messages in; ``wake`` ends the pause of whoever works on them.

    ``fence`` gives this instance's fence, None while another one leads; places are kept
    for ``keep_s``.
    """

    def __init__(
        self,
        gateway: AdminGateway,
        store: Store,
        fence: Callable[[], Fence | None],
        wake: Callable[[], None],
        keep_s: float,
        rate: Rate | None = None,
    ) -> None:
        self._gateway = gateway
        self._store = store
        self._fence = fence
        self._wake = wake
        self._keep_s = keep_s
        self._rate = rate or Rate()
        self._lock = threading.Lock()

    def take(self, uid: int, message: Message) -> Reply:
        """Deal with a message of user ``uid``. Raises SlurmError, StoreError."""
        with self._lock:
            if not self._rate.take(uid, time.monotonic()):
                return Reply(429, "too many messages: try again in a minute")
        fence = self._fence()
        if fence is None:
            return Reply(503, "another instance of the controller leads")
        try:
            job = self._gateway.job(message.job_id)
        except SlurmNotFoundError:
            job = None
        if job is None or job.user_id != uid:
            # The same for both: nobody learns which jobs there are.
            return self._refused(uid, message, f"you have no job {message.job_id}")
        if job.state is not JobState.RUNNING or not job.nodes:
            return self._refused(uid, message, f"job {message.job_id} is not running")
        try:
            if isinstance(message, Protects):
                return self._protects(job, fence)
            if isinstance(message, Blames):
                return self._blames(job, message, fence)
            return self._requeues(job, message, fence)
        except LeadershipLostError:
            return Reply(503, "another instance of the controller leads")

    def _refused(self, uid: int, message: Message, words: str) -> Reply:
        log.warning("message of user %d refused: %s: %s", uid, type(message).__name__, words)
        return Reply(403, words)

    def _protects(self, job: Job, fence: Fence) -> Reply:
        if not job.batch_host:
            return Reply(409, f"job {job.job_id} has no batch script that could be run again")
        with self._store.write(fence) as session:
            before = [g for g in table.guarded(session, job.job_id) if g.run == job.restarts]
            # A step that is resumed comes after a shrink of its job.
            size = max([job.num_nodes, *(g.num_nodes for g in before)])
            _warn(session, job, {n for g in before for n in g.nodes} - set(job.nodes))
            table.guard(
                session,
                Guarded(
                    job.job_id, job.user_id, job.restarts, job.batch_host, job.nodes, size,
                    time.time(),
                ),
            )  # fmt: skip
        self._wake()
        return Reply(200, f"{job.batch_host} is watched")

    def _blames(self, job: Job, message: Blames, fence: Fence) -> Reply:
        if message.sign not in {sign.value for sign in Sign}:
            return Reply(400, "sign is none that is known")
        with self._store.read() as session:
            known = table.guarded(session, job.job_id)
        held = {n for g in known if g.run == job.restarts and g.uid == job.user_id for n in g.nodes}
        if message.node not in held | set(job.nodes):
            words = f"job {job.job_id} does not hold {message.node}"
            return self._refused(job.user_id, message, words)
        with self._store.write(fence) as session:
            if any(r.node == message.node for r in table.reports(session)):
                return Reply(200, f"{message.node} is being looked at")
            report = Report(
                secrets.token_hex(8), job.job_id, job.user_id, message.node, message.sign,
                message.evidence, time.time(),
            )  # fmt: skip
            table.report(session, report)
            words = f"{report.node}: job {report.job_id} leaves it: {report.evidence}"
            details: dict[str, object] = {"job": report.job_id, "sign": report.sign}
            event = Event(report.at, "node-reported", words, node=report.node, details=details)
            events.add(session, event)
        log.info(words)
        self._wake()
        return Reply(200, f"{message.node} is looked at")

    def _requeues(self, job: Job, message: Requeues, fence: Fence) -> Reply:
        if message.run != job.restarts or not job.requeue or not job.batch_host:
            return self._refused(job.user_id, message, f"job {job.job_id} cannot be requeued so")
        with self._store.read() as session:
            before = table.one_return(session, job.job_id, job.restarts)
            known = table.guarded(session, job.job_id)
        if before is not None and before.phase is not Phase.DONE:
            return Reply(200, f"job {job.job_id} is on its way back already")
        if before is not None and not before.lost:
            return Reply(409, f"job {job.job_id} was on its way back in this run")
        # No user gets a job that is larger than the one Slurm has let in.
        size = max([job.num_nodes, *(g.num_nodes for g in known if g.run == job.restarts)])
        if message.num_nodes > size:
            words = f"job {job.job_id} has had {size} nodes at most"
            return self._refused(job.user_id, message, words)
        off = set(message.exclude)
        way = Return(
            job_id=job.job_id,
            uid=job.user_id,
            run=job.restarts,
            num_nodes=message.num_nodes,
            exclude=message.exclude,
            requested=tuple(n for n in job.requested_nodes if n in message.requested),
            keep=() if is_elsewhere(job) else tuple(n for n in job.nodes if n not in off),
            lost="",
            phase=Phase.QUEUED,
            began=time.time(),
        )
        way = replace(way, kept=self._keep(way))
        with self._store.write(fence) as session:
            table.save(session, way)
            without = f" without {', '.join(sorted(off))}" if off else ""
            places = f", its places on {len(way.keep)} nodes are kept" if way.kept else ""
            words = f"job {job.job_id} is about to be requeued{without}{places}"
            details: dict[str, object] = {"job": way.job_id, "run": way.run}
            events.add(session, Event(way.began, "requeue-announced", words, details=details))
            _warn(session, job, off & set(job.nodes))
        log.info(words)
        self._wake()
        return Reply(200, f"job {job.job_id} is brought back")

    def _keep(self, way: Return) -> bool:
        """Reserve a job's places at once: its requeue comes right behind the answer.

        Before it is written down: a reservation that nothing in the store belongs to is
        deleted by whoever leads.
        """
        if not way.keep or not self._keep_s:
            return False
        try:
            self._gateway.keep(way.reservation, way.keep, way.uid, int(self._keep_s // 60) + 2)
        except SlurmError as error:
            log.warning("job %d: its places cannot be kept: %s", way.job_id, error)
            return False
        return True


def _warn(session: Session, job: Job, left: Iterable[str]) -> None:
    """Write down which nodes slurmctld miscounts from now on."""
    for node in miscounted(job, left):
        words = warning(job.job_id, node)
        details: dict[str, object] = {"job": job.job_id}
        event = Event(time.time(), "node-miscounted", words, Level.WARNING, node, details=details)
        events.add(session, event)
        log.warning(words)
