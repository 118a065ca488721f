"""Whether the training of one attempt hangs, by its heartbeat files and its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpresume.config import ResumeSettings
from hpresume.errors import SlurmError
from hpresume.resume import hang
from hpresume.resume.background import Background
from hpresume.resume.output import OutputFile
from hpresume.resume.report import say
from hpresume.resume.stacks import ended_ranks
from hpresume.resume.watch import Watch

#: By so much the beats of a node, which come at even distances, are read earlier or later (s).
_JITTER_S = 0.1


@dataclass(frozen=True)
class Finding:
    """A hang in words, the nodes that are frozen, and what the ranks were doing."""

    text: str
    frozen: tuple[str, ...] = ()
    stacks: str = ""


class HangWatch:
    """Looks at an attempt again and again; off unless the user asks for it.

    ``examine`` gives what the ranks on some nodes are doing (slow; in a thread). That is
    the evidence, and shows which ranks have ended, so that nobody waits for their heartbeats.
    """

    def __init__(
        self,
        settings: ResumeSettings,
        output: OutputFile | None,
        examine: Callable[[Sequence[str]], str],
    ) -> None:
        self._settings = settings
        self._output = output
        self._examine = examine
        self._began: float | None = None
        self._ended: frozenset[int] = frozenset()
        self._task: Background[str] | None = None

    @property
    def looks_at_output(self) -> bool:
        """Whether ``step`` has to be called now and then, whatever the nodes say."""
        return self._output is not None

    @property
    def fd(self) -> int | None:
        """Readable when the examination is over; None while there is none."""
        return self._task.fd if self._task is not None else None

    def forgive(self, seconds: float) -> None:
        """This process was stopped for so long; the step may have been too."""
        if self._began is not None:
            self._began += seconds
        if self._output is not None:
            self._output.forgive(seconds)

    def step(
        self, watch: Watch, nodes: Sequence[str], num_tasks: int, now: float
    ) -> Finding | None:
        """The hang of the step on ``nodes`` at ``now``, once it is examined."""
        if self._task is None:
            found = self._look(watch, nodes, num_tasks, now)
            if found is not None:
                there = [n for n in nodes if n not in found.frozen]
                self._task = Background(lambda: self._examine(there))
            return None
        if not self._task.done():
            return None
        task, self._task = self._task, None
        try:
            text = task.result()
        except SlurmError as error:
            text = f"no stacks: {error}\n"
        over = ended_ranks(text, num_tasks, watch.touches, nodes) - self._ended
        self._ended |= over
        found = self._look(watch, nodes, num_tasks, now)
        if found is not None:
            return Finding(found.text, found.frozen, text)
        if over:
            say(f"{hang.who(sorted(over))} ended; no heartbeat is expected there any more")
        return None

    def _look(
        self, watch: Watch, nodes: Sequence[str], num_tasks: int, now: float
    ) -> Finding | None:
        found = self._silent_ranks(watch, nodes, num_tasks, now)
        return found or self._silent_output(watch, nodes, now)

    def _silent_ranks(
        self, watch: Watch, nodes: Sequence[str], num_tasks: int, now: float
    ) -> Finding | None:
        limit = self._settings.hang_timeout
        if not self._settings.heartbeat_file or not watch.is_running:
            return None
        mute = watch.mute(nodes, now, limit)
        told = [watch.told_at(n) for n in nodes if n not in mute]
        # What was touched since a node last told is not known yet.
        as_of = min(told, default=0.0)
        if not as_of:
            return None
        if self._began is None:
            self._began = as_of
        grace = self._settings.hang_grace
        hung = hang.judge(
            watch.touches, num_tasks, self._began, as_of + _JITTER_S, limit, grace,
            self._ended, mute,
        )  # fmt: skip
        if hung is None:
            return None
        path = "" if hung.ranks else f" ({self._settings.heartbeat_file})"
        return Finding(hung.text + path, tuple(n for n in nodes if n in mute))

    def _silent_output(self, watch: Watch, nodes: Sequence[str], now: float) -> Finding | None:
        if self._output is None:
            return None
        self._output.look(now)
        limit = self._settings.output_timeout
        text = hang.judge_output(
            self._output.grew_at, self._output.began, now, limit, self._settings.hang_grace
        )
        mute = watch.mute(nodes, now, limit) if text else ()
        return Finding(text, tuple(n for n in nodes if n in mute)) if text else None
