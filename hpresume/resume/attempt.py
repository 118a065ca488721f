"""One attempt: wait for the real srun, watch the nodes, say how it ended.

The loop waits on file descriptors only (the child's pidfd, the signal pipe,
the watch step's pipes, probes); Slurm is asked in a thread, so that a slow
slurmctld never delays a signal to srun.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpresume.config import ResumeSettings
from hpresume.errors import SlurmError
from hpresume.resume.background import Background
from hpresume.resume.detect import PROBE_TIMEOUT_S, Pulse
from hpresume.resume.hang_watch import HangWatch
from hpresume.resume.leaving import Leave, MarkWatch
from hpresume.resume.losses import Losses
from hpresume.resume.model import NodeFault, Sign
from hpresume.resume.observe import Baseline
from hpresume.resume.process import Child
from hpresume.resume.report import say
from hpresume.resume.signals import ENDING, Received, SignalPipe
from hpresume.resume.watch import Watch
from hpresume.slurm.gateway import SlurmGateway

if TYPE_CHECKING:
    from hpresume.resume.regrow import RegrowWatch

#: Beats of many nodes are taken in together, at most this often (s).
_COALESCE_S = 0.05

#: A loop that did not run for this long was stopped (SIGTSTP, a suspended
#: host): silence in that time says nothing about the nodes (s).
_STOPPED_S = 1.0

#: An exit this soon after Ctrl-C is its effect (s); srun itself takes the
#: second Ctrl-C within one second as the wish to end.
_INTERRUPT_S = 10.0

#: A start of the step this long after srun's (s) is no difference of clocks any more.
_WAITED_S = 10.0

#: The exit code that stands for an srun that is to be killed.
_KILLED = 128 + signal.SIGKILL

#: Time for the watch step to end in good order after the step's own end (s).
_WATCH_PATIENCE_S = 0.5


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended; ``exit_code`` in shell form, times are Unix time.

    ``fenced_at`` is when the ranks on lost nodes have surely ended (monotonic s; 0: nobody knows).
    ``short_of_memory`` are nodes of the step on which the kernel killed for lack of it.
    ``stacks`` is what the ranks of a hung step were doing.
    """

    exit_code: int
    started: float
    ended: float
    seen_at: float
    stopped_for: tuple[NodeFault, ...]
    found: tuple[NodeFault, ...]
    cancel_signal: str
    baseline: Baseline | None
    watch: Watch | None = None
    lost_since: float = 0.0
    hang: str = ""
    left: bool = False
    fenced_at: float = 0.0
    short_of_memory: tuple[str, ...] = ()
    stacks: str = ""


class AttemptLoop:
    """Runs one attempt to its end.

    ``prepare`` asks Slurm for the baseline (in a thread; None: too early);
    ``on_baseline`` is called once when it is there, and gives what looks for the way back
    of a step with fewer nodes; ``not_yet`` whenever it is not:
    it may start another srun in place of ``child``. ``may_leave`` says why nodes
    with a mark cannot be left (empty: they can).
    """

    def __init__(
        self,
        child: Child,
        signals: SignalPipe,
        gateway: SlurmGateway,
        settings: ResumeSettings,
        prepare: Callable[[], Baseline | None],
        make_watch: Callable[[Baseline, float], Watch],
        on_baseline: Callable[[Baseline], RegrowWatch | None],
        started: float,
        hangs: HangWatch,
        may_leave: Callable[[tuple[NodeFault, ...]], str] = lambda _: "",
        not_yet: Callable[[Child], Child] = lambda child: child,
    ) -> None:
        self.child = child
        self._signals = signals
        self._settings = settings
        self._prepare = prepare
        self._make_watch = make_watch
        self._on_baseline = on_baseline
        self._not_yet = not_yet
        self._started = started
        self._baseline: Baseline | None = None
        self._watch: Watch | None = None
        self._job: Background[Baseline | None] | None = None
        self._prepare_at = time.monotonic() + settings.watch_delay
        self._prepare_pause = 0.5
        self._prepare_trouble = False
        self._cancel = ""
        self._interrupted_at = float("-inf")
        self._exit: tuple[int, float] | None = None
        self._told: set[str] = set()
        self._handed_over = False
        self._hang = ""
        self._hangs = hangs
        self._stacks = ""
        self._marks = MarkWatch(gateway.nodes) if settings.grace else None
        self._may_leave = may_leave
        self._leave: Leave | None = None
        self._regrow: RegrowWatch | None = None
        self._watch_failures = 0
        self._stepped_at = time.monotonic()
        self._clock_offset = time.time() - time.monotonic()
        self._losses = Losses(gateway, settings.frozen_timeout, self._told, self._clock_offset)

    def run(self) -> AttemptEnd:
        """Wait until the attempt is over.

        On return the child has ended, unless nodes were lost (``stopped_for``);
        then the watch step still runs too, asked to end (``AttemptEnd.watch``).
        """
        try:
            while True:
                self._wait()
                end = self._advance(time.monotonic())
                if end is not None:
                    return end
        finally:
            if self._watch is not None and self._handed_over:
                self._watch.let_go()
            elif self._watch is not None:
                self._watch.stop(patience_s=_WATCH_PATIENCE_S)

    # -- waiting ------------------------------------------------------------

    def _wait(self) -> None:
        now = time.monotonic()
        timeout = self._timeout(now)
        poller = select.poll()
        poller.register(self._signals.fd, select.POLLIN)
        if self.child.exit_code is None:
            poller.register(self.child.pidfd, select.POLLIN)
        for waited in (self._job.fd if self._job else None, self._losses.fd, self._hangs.fd):
            if waited is not None:
                poller.register(waited, select.POLLIN)
        quiet = self._stepped_at + _COALESCE_S - now
        if self._watch is not None and quiet <= 0:
            for fd, writing in self._watch.fds():
                poller.register(fd, select.POLLOUT if writing else select.POLLIN)
        elif self._watch is not None:
            timeout = min(timeout, quiet)
        poller.poll(max(0.0, timeout) * 1000)

    def _timeout(self, now: float) -> float:
        if self._exit is None and self.child.exit_code is not None:
            return 0.0  # it had ended before this loop began
        waits = [60.0]
        if self._watch is not None:
            waits.append(self._watch.timeout(now))
            if self._hangs.looks_at_output:
                waits.append(1.0)
            if self._leave is not None:
                waits.append(self._leave.deadline - now)
            else:
                waits += [w.timeout(now) for w in (self._marks, self._regrow) if w is not None]
        elif self._job is None:
            waits.append(self._prepare_at - now)
        if self._exit is not None:
            waits.append(0.1)
        return min(waits)

    # -- one round ------------------------------------------------------------

    def _advance(self, now: float) -> AttemptEnd | None:
        for received in self._signals.read():
            self._signal(received, now)
        if self._exit is None and self.child.poll() is not None:
            self._exit = (self.child.exit_code or 0, now)
            if self._leave is not None and not self._cancelled(now):
                return self._end((), self._leave.faults)
            if self._exit[0] == 0 and not self._suspicious(now):
                return self._end((), ())
            if self._cancelled(now):
                return self._end((), ())
            if self._watch is not None:
                self._watch.probe_now(self._watch.nodes, now)
        self._prepare_watch(now)
        if self._watch is None:
            # Too young to be watched; what Slurm says will have to do.
            return self._end((), ()) if self._exit is not None and self._job is None else None
        if now - self._stepped_at < _COALESCE_S and self._exit is None:
            return None
        if now - self._stepped_at > max(_STOPPED_S, self._settings.silence_s / 2):
            self._watch.forgive(now)
            self._hangs.forgive(now - self._stepped_at)
        self._stepped_at = now
        return self._judge(self._watch, now)

    def _signal(self, received: Received, now: float) -> None:
        if not received.from_terminal:
            self.child.send(received.signum)
        if received.signum in ENDING:
            self._cancel = signal.Signals(received.signum).name
        elif received.signum == signal.SIGINT:
            self._interrupted_at = now

    def _cancelled(self, now: float) -> bool:
        if not self._cancel and now - self._interrupted_at < _INTERRUPT_S:
            self._cancel = "SIGINT"
        return bool(self._cancel)

    def _suspicious(self, now: float) -> bool:
        """Whether a node of the step is silent right now (srun may end with 0 then)."""
        if self._watch is None or self._baseline is None:
            return False
        patience = 1.5 * self._watch.interval
        return any(
            self._watch.has_beaten(n) and now - self._watch.last_beat(n) > patience
            for n in self._baseline.step.nodes
        )

    # -- the watch --------------------------------------------------------------

    def _prepare_watch(self, now: float) -> None:
        if self._job is not None and self._job.done():
            self._prepared(now)
        if self._watch is not None or self._job is not None or self._exit is not None:
            return
        if now >= self._prepare_at:
            self._job = Background(self._prepare)

    def _prepared(self, now: float) -> None:
        task, self._job = self._job, None
        if task is None:
            return
        try:
            baseline = task.result()
        except SlurmError as error:
            baseline = None
            if not self._prepare_trouble:
                self._prepare_trouble = True
                say(f"the step is not watched yet: {error}; asking again")
        if baseline is None:
            self._prepare_at = now + self._prepare_pause
            self._prepare_pause = min(5.0, 1.5 * self._prepare_pause)
            if self._exit is None and self.child.poll() is None:
                self.child = self._not_yet(self.child)
            return
        self._baseline = baseline
        if self._exit is not None:
            return  # too late to watch; the caller looks at the nodes once
        self._stepped_at = now
        self._watch = self._make_watch(baseline, now)
        self._regrow = self._on_baseline(baseline)

    def _judge(self, watch: Watch, now: float) -> AttemptEnd | None:
        judged = watch.step(now)
        base = self._baseline
        step_nodes = [n for n in (base.step.nodes if base else watch.nodes) if n in judged]
        self._tell_trouble(watch)
        if self._exit is not None:
            # The tasks' end is a second sign: what does not answer now is lost.
            for node in watch.unanswered(step_nodes, self._exit[1]):
                judged[node] = Pulse.LOST
        suspects = [n for n in step_nodes if judged[n] in (Pulse.LOST, Pulse.MUTE)]
        faults: tuple[NodeFault, ...] = ()
        if suspects:
            ended = self._exit is not None
            faults = self._losses.confirm(watch, suspects, judged, now, ended=ended)
        blamed = {f.node for f in faults}
        faults += watch.fenced([n for n in step_nodes if n not in blamed])
        others = [n for n in watch.nodes if n not in {f.node for f in faults}]
        if faults and self._losses.settled(watch, others, now):
            return self._end_for((*faults, *watch.also_lost(others, now)), now)
        if self._exit is not None:
            return self._after_exit(watch, step_nodes, now)
        return self._end_if_hung(watch, step_nodes, now) or self._end_if_leaving(now)

    def _end_if_hung(self, watch: Watch, nodes: list[str], now: float) -> AttemptEnd | None:
        if self._baseline is None or self._leave is not None:
            return None  # a step that was asked to leave has other things to do
        found = self._hangs.step(watch, nodes, self._baseline.step.num_tasks, now)
        if found is None:
            return None
        self._stacks = found.stacks
        if found.frozen:
            words = {n: f"is frozen: {watch.explain(n, now)}; {found.text}" for n in found.frozen}
            return self._end_for(
                tuple(NodeFault(n, Sign.FROZEN, evidence) for n, evidence in words.items()), now
            )
        self._hang = found.text
        self._hand_over(now)
        return self._end((), ())

    def _end_if_leaving(self, now: float) -> AttemptEnd | None:
        if self._leave is None:
            self._leave = self._leave_marked(now) or self._leave_to_grow(now)
        if self._leave is None or now < self._leave.deadline:
            return None
        self._hand_over(now)
        return self._end((), self._leave.faults)

    def _leave_marked(self, now: float) -> Leave | None:
        """Leave nodes that somebody marked, with the grace the user asked for."""
        base = self._baseline
        if self._marks is None or base is None:
            return None
        faults = self._marks.step(base.step.nodes, base.nodes, now)
        if not faults:
            return None
        words = "; ".join(f"{f.node} {f.evidence}" for f in faults)
        obstacle = self._may_leave(faults)
        if obstacle:
            if words not in self._told:
                self._told.add(words)
                say(f"{words}; the step stays: {obstacle}")
            return None
        return self._ask_to_leave(words, faults, now)

    def _leave_to_grow(self, now: float) -> Leave | None:
        nodes = self._regrow.step(now) if self._regrow is not None else ()
        if not nodes:
            return None
        words = f"a checkpoint is written, and {len(nodes)} nodes are there again"
        if self._settings.grace:
            return self._ask_to_leave(words, (), now)
        say(f"{words}: growing back")
        return Leave((), now)

    def _ask_to_leave(self, words: str, faults: tuple[NodeFault, ...], now: float) -> Leave:
        name = self._settings.grace.partition("@")[0]
        say(f"{words}; SIG{name} is sent, the step leaves within {self._settings.grace_s:.0f} s")
        self.child.send(signal.Signals[f"SIG{name}"])
        return Leave(faults, now + self._settings.grace_s)

    def _after_exit(self, watch: Watch, nodes: list[str], now: float) -> AttemptEnd | None:
        """The step failed: were its nodes well after that moment?"""
        code, at = self._exit or (0, now)
        heard = [n for n in nodes if watch.has_beaten(n) and watch.last_beat(n) > at + 0.01]
        if not watch.is_running:
            # It ended with the allocation that srun had made: nobody will beat any more.
            heard = [n for n in nodes if n in heard or watch.answered(n, at)]
        waited = now - at
        limit = watch.silence + watch.interval + 2 * PROBE_TIMEOUT_S
        if len(heard) == len(nodes) or waited > limit:
            return self._end((), ())
        if code == 0 and not self._suspicious(now):
            return self._end((), ())
        return None

    def _tell_trouble(self, watch: Watch) -> None:
        if self._exit is not None:
            return  # the end of the job ends the watch step too
        if watch.probe_only and "probe-only" not in self._told:
            self._told.add("probe-only")
            say(
                f"the watch step does not run ({watch.trouble}); a loss is seen by connections to"
                f" slurmd instead, in about {watch.silence:.0f} s"
                + ("; heartbeat files are not looked at" if self._settings.heartbeat_file else "")
            )
        elif watch.failures > self._watch_failures and watch.is_running:
            # Only now: it may have ended together with its job.
            self._watch_failures = watch.failures
            say(f"the watch step ended ({watch.trouble}); it is started again")

    # -- the end ------------------------------------------------------------------

    def _hand_over(self, now: float) -> None:
        """The attempt is over although srun and the watch step still run: the caller ends them."""
        self._exit = (_KILLED, now)
        self._handed_over = True

    def _end_for(self, faults: tuple[NodeFault, ...], now: float) -> AttemptEnd:
        """srun is left alive: slurmstepd takes two seconds to get over its loss."""
        if self._exit is not None:
            return self._end((), faults)
        self._hand_over(now)
        return self._end(faults, ())

    def _end(self, stopped_for: tuple[NodeFault, ...], found: tuple[NodeFault, ...]) -> AttemptEnd:
        code, at = self._exit or (0, time.monotonic())
        return AttemptEnd(
            code,
            self._begun(),
            at + self._clock_offset,
            time.time(),
            stopped_for,
            found,
            self._cancel,
            self._baseline,
            self._watch if self._handed_over else None,
            self._lost_since((*stopped_for, *found)),
            self._hang,
            self._leave is not None and found == self._leave.faults and not stopped_for,
            self._fenced_at((*stopped_for, *found)),
            self._short_of_memory(),
            self._stacks,
        )

    def _begun(self) -> float:
        """When the step began: srun may have waited for its allocation, for hours."""
        if self._baseline is None:
            return self._started
        began = self._baseline.step.start_time
        return began if began > self._started + _WAITED_S else self._started

    def _short_of_memory(self) -> tuple[str, ...]:
        if self._watch is None or self._baseline is None:
            return ()
        return tuple(n for n in self._baseline.step.nodes if n in self._watch.short_of_memory)

    def _fenced_at(self, faults: tuple[NodeFault, ...]) -> float:
        """When the ranks on lost nodes have ended by themselves at the latest."""
        watch, base = self._watch, self._baseline
        if watch is None or base is None:
            return 0.0
        lost = [f.node for f in faults if f.sign is Sign.LOST and f.node in base.step.nodes]
        return max([watch.fenced_at(n) for n in lost if n in watch.nodes], default=0.0)

    def _lost_since(self, faults: tuple[NodeFault, ...]) -> float:
        """When the first of the faulty nodes was last known to be well (Unix time)."""
        watch = self._watch
        if watch is None:
            return 0.0
        heard = [watch.last_beat(f.node) for f in faults if f.node in watch.nodes]
        return min(heard) + self._clock_offset if heard else 0.0
