"""The budgets of a protected step, and the journal they are counted from."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpresume.config import ResumeSettings, state_dir
from hpresume.errors import JournalError
from hpresume.resume.attempt import AttemptEnd
from hpresume.resume.journal import Journal, ended_steps, read, streak_after
from hpresume.resume.launch import Launch
from hpresume.resume.model import Action, History, NodeFault, Verdict
from hpresume.resume.observe import Baseline
from hpresume.resume.progress import made_progress
from hpresume.resume.report import describe, say


class Logbook:
    """Counts attempts and writes them down; a journal that cannot be written is said once.

    The file is opened at the first record, since steps that end at once leave none.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._journal: Journal | None = None
        self._recorded = 0
        self._warned = False
        self.attempt = launch.past.attempts + 1
        self._streak = launch.past.without_progress
        self._moves = launch.past.moves
        self._bad = set(launch.past.bad_nodes)
        self.job_id = launch.job_id

    @property
    def history(self) -> History:
        """The budgets spent so far, for the ladder."""
        return History(self.attempt - 1 - self._moves, self._streak, frozenset(self._bad))

    @property
    def path(self) -> Path:
        """The journal's file."""
        if self._journal is not None:
            return self._journal.path
        return journal_path(self._launch.environ, self._launch.settings, self.job_id)

    def begun(self, nodes: Sequence[str]) -> None:
        """The attempt has started; of a first one it is said when it has lived a while."""
        if self._recorded == self.attempt:
            return
        self._recorded = self.attempt
        self.record(
            "attempt",
            attempt=self.attempt,
            job=self.job_id,
            nodes=list(nodes),
            host=os.uname().nodename,
            pid=os.getpid(),
        )

    def watched(self, base: Baseline) -> None:
        """The step of the attempt was found and is watched."""
        nodes = list(base.step.nodes)
        self.begun(nodes)
        self.record("watched", attempt=self.attempt, step_id=base.step.step_id, nodes=nodes)

    def ended(self, end: AttemptEnd, verdict: Verdict) -> None:
        """The attempt has failed: what it did to the budgets."""
        progress = made_progress(self._launch.settings, end.started, end.ended)
        no_failure = verdict.is_hard or end.left
        self._streak = streak_after(self._streak, verdict.cause, hard=no_failure, progress=progress)
        self._moves += end.left
        self.begun(())
        self.blamed(verdict.faults, end.seen_at)
        self.record(
            "ended",
            attempt=self.attempt,
            cause=verdict.cause.value,
            exit_code=end.exit_code,
            seconds=round(end.ended - end.started, 3),
            progress=progress,
            without_progress=self._streak,
            left=end.left,
            why=verdict.text,
        )

    def blamed(self, faults: Sequence[NodeFault], seen_at: float) -> None:
        """Nodes are to blame."""
        if not faults:
            return
        nodes = [f.node for f in faults]
        self._bad.update(nodes)
        evidence = [f"{f.node} {f.evidence}" for f in faults]
        self.record("fault", nodes=nodes, evidence=evidence, seen_at=round(seen_at, 3))

    def acts(self, action: Action) -> None:
        """An action is about to be carried out."""
        self.record("action", action=type(action).__name__.lower(), what=describe(action))

    def finished(self, code: int, reason: str, *, for_good: bool = True) -> None:
        """Nothing more is done here. Not ``for_good``: a later run of the job may go on."""
        if self._journal is not None:
            event = "finished" if for_good else "interrupted"
            self.record(event, exit_code=code, reason=reason)

    def protected_steps(self, since: float) -> list[str]:
        """Ids of the steps that supervisors of this job watch, or watched after ``since``.

        ``since`` is the start of the job's run (Unix s): step ids begin again with it.
        """
        try:
            records = read(self.path)
        except JournalError:
            return []
        return [
            str(r.get("step_id")) for r in records if r["event"] == "watched" and _time(r) >= since
        ]

    def ended_steps(self, since: float) -> frozenset[str]:
        """Ids of protected steps of this run of the job, begun at ``since``, that are over."""
        try:
            return ended_steps(read(self.path), since)
        except JournalError:
            return frozenset()

    def record(self, event: str, **fields: object) -> None:
        """Append one record."""
        try:
            if self._journal is None:
                self._journal = Journal(self.path, self._launch.key, self._launch.run)
            self._journal.write(event, time.time(), **fields)
        except JournalError as error:
            if not self._warned:
                self._warned = True
                say(f"warning: {error}; budgets and history will not survive a requeue")


def journal_path(environ: dict[str, str], settings: ResumeSettings, job_id: int | None) -> Path:
    """The file of a job's journal; srun on its own has one by process."""
    cluster = environ.get("SLURM_CLUSTER_NAME", "") or "cluster"
    name = f"{job_id}" if job_id is not None else f"{os.uname().nodename}-{os.getpid()}"
    return Path(state_dir(environ, settings)) / cluster.replace("/", "_") / f"{name}.jsonl"


def _time(record: Mapping[str, Any]) -> float:
    value = record.get("t")
    return float(value) if isinstance(value, int | float) else 0.0
