"""What the demo saw, what it measured from it, and whether it is as it must be.

Nothing here talks to a cluster: the training's output and the supervisor's
journal come in as values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RANK = re.compile(
    r"rank (?P<rank>\d+) of (?P<size>\d+) up on (?P<node>\S+) attempt (?P<attempt>\d+)"
)
EPOCH = re.compile(r"epoch=(?P<epoch>\d+) loss=(?P<loss>\S+) .*attempt=(?P<attempt>\d+)")
RESUMED = re.compile(r"resumed after epoch=(?P<epoch>\d+)")
DONE = re.compile(r"done epochs=(?P<epochs>\d+) accuracy=(?P<accuracy>\S+)")


@dataclass
class Training:
    """What the output of the batch job says; times are Unix times of a line's arrival."""

    ranks: dict[int, dict[int, tuple[str, float]]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    epochs: list[tuple[int, int, float]] = field(default_factory=list)  # attempt, epoch, time
    resumed_after: int | None = None
    done: int | None = None
    done_at: float = 0.0
    accuracy: str = ""

    def read(self, line: str, now: float) -> None:
        """Take in one line."""
        if match := RANK.fullmatch(line):
            attempt = int(match["attempt"])
            self.ranks.setdefault(attempt, {})[int(match["rank"])] = (match["node"], now)
            self.sizes[attempt] = int(match["size"])
        elif match := EPOCH.fullmatch(line):
            self.epochs.append((int(match["attempt"]), int(match["epoch"]), now))
        elif match := RESUMED.match(line):
            self.resumed_after = int(match["epoch"])
        elif match := DONE.match(line):
            self.done, self.done_at = int(match["epochs"]), now
            self.accuracy = match["accuracy"]

    @property
    def last_epoch(self) -> int:
        """The epoch that was completed last."""
        return self.epochs[-1][1] if self.epochs else 0

    def epochs_of(self, attempt: int) -> list[int]:
        """Epochs that an attempt completed, in its order."""
        return [epoch for of, epoch, _ in self.epochs if of == attempt]

    def nodes_of(self, attempt: int) -> list[str]:
        """Where an attempt's ranks came up."""
        return sorted({node for node, _ in self.ranks.get(attempt, {}).values()})

    def all_up_at(self, attempt: int) -> float | None:
        """When the last rank of an attempt was there, if all were."""
        ranks = self.ranks.get(attempt, {})
        if not ranks or len(ranks) < self.sizes[attempt]:
            return None
        return max(at for _, at in ranks.values())


@dataclass(frozen=True)
class Run:
    """One run of the demo, complete."""

    crashed: str
    crashed_at: float
    epochs: int
    nodes: int
    job_state: str
    exit_code: int
    training: Training
    journal: Sequence[Mapping[str, Any]]

    @property
    def attempts(self) -> int:
        """How often the step was started."""
        return max(self.training.ranks, default=0)

    @property
    def detected_s(self) -> float | None:
        """From the crash to the supervisor's knowledge of it."""
        for record in self._records("fault"):
            if self.crashed in record.get("nodes", ()):
                return round(float(record.get("seen_at", record["t"])) - self.crashed_at, 2)
        return None

    @property
    def resumed_s(self) -> float | None:
        """From the crash to the last rank of the second attempt."""
        at = self.training.all_up_at(2)
        return None if at is None else round(at - self.crashed_at, 2)

    def result(self) -> dict[str, object]:
        """The line for programs."""
        return {
            "crashed": self.crashed,
            "detected_s": self.detected_s,
            "resumed_s": self.resumed_s,
            "attempts": self.attempts,
            "exit_code": self.exit_code,
            "epochs": self.training.done or self.training.last_epoch,
        }

    def problems(self) -> list[str]:
        """All that is not as it must be."""
        seen = self.training
        wrong = []
        if self.job_state != "COMPLETED" or self.exit_code != 0:
            wrong.append(f"the job ended {self.job_state} with exit code {self.exit_code}")
        if self.attempts != 2:
            wrong.append(f"{self.attempts} attempts were made, not 2")
        if seen.done != self.epochs:
            wrong.append(f"the training ended after epoch {seen.done}, not {self.epochs}")
        if self.detected_s is None:
            wrong.append(f"the journal does not say that {self.crashed} was lost")
        if self.resumed_s is None:
            wrong.append("not all ranks of attempt 2 came up")
        if self.crashed in seen.nodes_of(2) or len(seen.nodes_of(2)) != self.nodes:
            wrong.append(f"attempt 2 ran on {', '.join(seen.nodes_of(2)) or 'no node'}")
        return wrong + self._lost_epochs()

    def _lost_epochs(self) -> list[str]:
        """What contradicts that attempt 2 began right after the last complete epoch."""
        before, after = self.training.epochs_of(1), self.training.epochs_of(2)
        saved = self.training.resumed_after
        if not before or saved is None:
            return ["no checkpoint was resumed from"]
        wrong = []
        if before != list(range(1, len(before) + 1)):
            wrong.append(f"attempt 1 completed the epochs {before}")
        # An epoch is written to the checkpoint right before it is printed.
        if saved not in (before[-1], before[-1] + 1):
            wrong.append(f"epoch {before[-1]} was complete, and the checkpoint had {saved}")
        if after != list(range(saved + 1, self.epochs + 1)):
            wrong.append(f"attempt 2 went on after epoch {saved} and completed {after}")
        return wrong

    def timeline(self) -> list[tuple[float, str]]:
        """Seconds since the crash and what happened then."""
        seen = self.training
        rows = [(self.crashed_at, f"{self.crashed} loses power in epoch {self._crash_epoch()}")]
        for record in self._records("fault"):
            evidence = ", ".join(map(str, record.get("evidence", ())))
            rows.append((float(record.get("seen_at", record["t"])), f"seen: {evidence}"))
        rows += [(float(r["t"]), str(r.get("what", ""))) for r in self._records("action")]
        up = seen.all_up_at(2)
        if up is not None:
            rows.append((up, f"all ranks are up on {', '.join(seen.nodes_of(2))}"))
        for attempt, epoch, at in seen.epochs:
            if attempt == 2:
                rows.append((at, f"epoch {epoch} is complete"))
                break
        if seen.done is not None:
            rows.append((seen.done_at, f"epoch {seen.done}: done, accuracy {seen.accuracy}"))
        return sorted((round(at - self.crashed_at, 2), text) for at, text in rows)

    def _crash_epoch(self) -> int:
        return max((e for _, e, at in self.training.epochs if at <= self.crashed_at), default=0) + 1

    def _records(self, event: str) -> Iterable[Mapping[str, Any]]:
        return (record for record in self.journal if record["event"] == event)
