"""The watch step: heartbeats of all nodes of the allocation, and probes."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
from collections.abc import Iterable, Mapping, Sequence

from hpresume.resume import agent, detect, probe
from hpresume.resume.command import neutral_environment, watch_command
from hpresume.resume.detect import NodePulse, Probe, Pulse
from hpresume.resume.hang import Touch
from hpresume.resume.model import NodeFault, Sign
from hpresume.resume.process import Child, spawn

#: Time for the watch step to come up on a node before silence counts (s).
START_GRACE_S = 3.0

#: Longest wait for the first line of a watch step (s): in a large job agents take a while.
COME_UP_S = 60.0

#: Interval of probes where no watch step can be had (s).
PROBE_ONLY_INTERVAL_S = 5.0

#: From the end of a lease to the end of the tasks (s): the supervisor's host is asked first.
_FENCE_TAKES_S = 2.0

#: Longest wait for an srun to end that was asked to before it had launched its tasks (s).
_TAKES_BACK_S = 2.0

_MOST_STARTS = 3
_RESTART_AFTER_S = 5.0

#: A watch step that ran for this long may end as often again (s).
_STEADY_S = 600.0

#: When one agent has ended and the watch step has not within this time, it is broken (s).
_ENDS_WITHIN_S = 2.0

#: What srun says of a task that ended in any way but well, in all releases.
_AGENT_ENDED = re.compile(rb"error: \S+: tasks? [\d,-]+: ")

_MAX_LINE = 4096
_MOST_CHUNKS = 64


def agent_command(interval: float, pattern: str = "") -> list[str]:
    """How the agent is run on a node: this interpreter, isolated, one file."""
    command = [sys.executable, "-I", "-S", agent.__file__, f"{interval:g}"]
    return [*command, pattern] if pattern else command


class Watch:
    """Heartbeats and probes of ``nodes``; times are on the caller's clock.

    Raises nothing while it runs: a watch step that cannot be started, that does not
    come up or that dies is started again a few times; then probes alone stand in for it.
    Every node's slurmd can be asked from here: srun itself starts tasks that way.
    ``is_up`` says whether any node was heard of since the watch step was last started.
    ``lease`` is a step and the time (s) for which the agents let its tasks go on
    when they are cut off; without a time they do for ever.
    """

    def __init__(
        self,
        srun: str,
        job_id: int,
        targets: Mapping[str, tuple[str, int]],
        environ: Mapping[str, str],
        interval: float,
        silence: float,
        now: float,
        heartbeat_file: str = "",
        lease: tuple[str, float] = ("", 0.0),
    ) -> None:
        self._heartbeat_file = heartbeat_file
        self._lease = lease
        self._renew_at = now
        self._fenced: dict[str, str] = {}
        self.touches: dict[int, Touch] = {}
        self.short_of_memory: set[str] = set()
        self._srun = srun
        self._job_id = job_id
        self._targets = dict(targets)
        self._environ = neutral_environment(environ)
        self.interval = interval
        self.silence = silence
        self._began = now
        self._child: Child | None = None
        self._out = self._err = self._input = -1
        self._buffer = b""
        self._errors = b""
        self._starts = 0
        self.is_up = False
        self._start_at = self._started_at = now
        self.failures = 0
        self.probe_only = False
        self.trouble = ""
        self._pulses = {n: NodePulse(n, now + START_GRACE_S) for n in targets}
        self._beaten: set[str] = set()
        self._told: dict[str, float] = {}
        self._broken_at: float | None = None
        self._probes: dict[str, probe.ProbeAttempt] = {}
        self._to_ask: dict[str, None] = {}
        self._most_probes = probe.most_at_once()

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes that are watched."""
        return tuple(self._targets)

    @property
    def is_running(self) -> bool:
        """Whether the watch step runs; without it the silence of the nodes is its own."""
        return self._child is not None

    def last_beat(self, node: str) -> float:
        """When ``node`` was last heard of."""
        return self._pulses[node].last_beat

    def has_beaten(self, node: str) -> bool:
        """Whether ``node`` was ever heard of."""
        return node in self._beaten

    def fds(self) -> list[tuple[int, bool]]:
        """File descriptors to wait for, and whether to wait for writability."""
        wanted = [(fd, False) for fd in (self._out, self._err) if fd >= 0]
        wanted += [(a.sock.fileno(), True) for a in self._probes.values() if a.sock is not None]
        return wanted

    def timeout(self, now: float) -> float:
        """Longest time to wait for a file descriptor before ``step`` again (s)."""
        waits = [
            detect.next_look(p, now, self.interval, self.silence) for p in self._pulses.values()
        ]
        if self._lease[1] and self._input >= 0:
            waits.append(self._renew_at - now)
        waits += [a.began + detect.PROBE_TIMEOUT_S - now for a in self._probes.values()]
        if self._child is None and not self.probe_only:
            waits.append(self._start_at - now)
        if self._broken_at is not None:
            waits.append(self._broken_at + _ENDS_WITHIN_S - now)
        return max(0.01, min(waits, default=1.0))

    def step(self, now: float) -> dict[str, Pulse]:
        """Take in what came, start probes that are due, judge every node."""
        self._keep_running(now)
        self._renew(now)
        self._read(now)
        self._settle(now)
        judged = {}
        for node, pulse in self._pulses.items():
            state = detect.judge(pulse, now, self.interval, self.silence)
            if state is Pulse.PROBE:
                self._begin_probe(node, now)
                state = Pulse.ALIVE if pulse.probe is not Probe.ANSWERED else Pulse.MUTE
            judged[node] = state
        return judged

    def explain(self, node: str, now: float) -> str:
        """The evidence for a lost or mute node."""
        pulse = self._pulses[node]
        heard = (
            f"silent for {now - pulse.last_beat:.1f} s" if self.has_beaten(node) else "never heard"
        )
        return f"{heard}, slurmd's port: {pulse.probe_text}"

    def forgive(self, now: float) -> None:
        """Forget all silence: this process itself was stopped for a while."""
        for node, pulse in self._pulses.items():
            self._pulses[node] = NodePulse(node, max(now, pulse.last_beat))
        self._forgive_ranks(now)

    @property
    def is_asking(self) -> bool:
        """Whether a probe is under way."""
        return bool(self._probes or self._to_ask)

    def also_lost(self, nodes: Iterable[str], now: float) -> tuple[NodeFault, ...]:
        """Nodes that missed a beat and did not answer when others were found lost."""
        return tuple(
            NodeFault(node, Sign.LOST, f"is lost: {self.explain(node, now)}")
            for node in nodes
            if self._pulses[node].probe is Probe.FAILED
            and (
                not self.has_beaten(node)
                or now - self._pulses[node].last_beat > 0.9 * self.interval
            )
        )

    def unanswered(self, nodes: Iterable[str], since: float) -> list[str]:
        """Nodes that were asked after ``since``, did not answer, and did not beat."""
        return [
            node
            for node in nodes
            if self._pulses[node].probe is Probe.FAILED
            and self._pulses[node].probe_began >= since
            and not (self.has_beaten(node) and self._pulses[node].last_beat > since)
        ]

    def answered(self, node: str, since: float) -> bool:
        """Whether the node's kernel answered when it was asked after ``since``."""
        pulse = self._pulses[node]
        return pulse.probe is Probe.ANSWERED and pulse.probe_began >= since

    def probe_began(self, node: str) -> float:
        """When the node's kernel was last asked."""
        return self._pulses[node].probe_began

    def probe_now(self, nodes: Iterable[str], now: float) -> None:
        """Ask the kernels of ``nodes`` at once."""
        for node in nodes:
            if node in self._targets and node not in self._probes:
                self._begin_probe(node, now)

    def let_go(self) -> None:
        """Ask the agents to end; ``stop`` has to follow.

        With a dead node in it the watch step ends only once that node was taken
        out of the job.
        """
        self._close_input()

    def stop(self, *, patience_s: float = 0.0) -> None:
        """End the watch step and wait for its srun; agents end with it.

        The end of their input ends the agents in good order; what has not
        ended within ``patience_s`` is killed, and slurmstepd then lingers for
        two seconds.
        """
        if self._child is not None:
            self._close_input()
            self._end(self._child, patience_s)
        self._close()
        for attempt in self._probes.values():
            if attempt.sock is not None:
                attempt.sock.close()
        self._probes.clear()
        self._to_ask.clear()

    def _end(self, child: Child, patience_s: float) -> None:
        poller = select.poll()
        poller.register(child.pidfd, select.POLLIN)
        if not poller.poll(patience_s * 1000):
            if not self.is_up:
                # Killed between the making of its step and the launch, srun would leave a
                # step without tasks in the job until that ends; this has it take it back.
                child.send(15)
                poller.poll(_TAKES_BACK_S * 1000)
            child.send(9)
        child.wait()

    def fenced(self, nodes: Iterable[str]) -> tuple[NodeFault, ...]:
        """Nodes that were cut off for so long that they ended their tasks, and are back."""
        return tuple(NodeFault(n, Sign.FENCED, self._fenced[n]) for n in nodes if n in self._fenced)

    def fenced_at(self, node: str) -> float:
        """When a node that is silent has surely ended its tasks; 0.0: nobody knows.

        Its agent had the lease renewed before it was cut off, which was before the
        first beat that did not come.
        """
        if not self._lease[1] or not self.has_beaten(node):
            return 0.0
        return self.last_beat(node) + self.interval + self._lease[1] + _FENCE_TAKES_S

    # -- the watch step ---------------------------------------------------

    def _renew(self, now: float) -> None:
        """Tell all agents that the step may go on."""
        step, seconds = self._lease
        if not seconds or self._input < 0 or now < self._renew_at:
            return
        self._renew_at = now + self.interval
        try:
            os.write(self._input, f"{agent.LEASE} {step} {seconds:g}\n".encode())
        except OSError:
            pass  # srun is gone, which is noticed elsewhere, or does not read any more

    def _forgive_ranks(self, now: float) -> None:
        """Nobody could tell of touches for a while."""
        self._told.clear()
        self.touches = {rank: Touch(now, touch.node) for rank, touch in self.touches.items()}

    def told_at(self, node: str) -> float:
        """When ``node`` last told of touches; 0.0 if it has not since this watch step came up."""
        return self._told.get(node, 0.0)

    def works(self, now: float) -> bool:
        """Whether the watch step is heard at all, so that the silence of a node is its own."""
        if self._child is None:
            return False
        if len(self._targets) == 1:
            return bool(self._told)
        recent = now - self.silence - self.interval
        return any(at >= recent for at in self._told.values())

    def mute(self, nodes: Iterable[str], now: float, limit: float) -> frozenset[str]:
        """Those of ``nodes`` that are silent for longer than ``limit`` (s) while others beat.

        One whose address does not answer is no matter of this.
        """
        if not self.works(now):
            return frozenset()
        return frozenset(
            n
            for n in nodes
            if now - self._pulses[n].last_beat > max(limit, self.silence)
            and self._pulses[n].probe in (Probe.ANSWERED, Probe.PENDING)
        )

    def _keep_running(self, now: float) -> None:
        late = self._end_if_late(now)
        if self._child is not None and self._child.poll() is not None:
            self._read(now)
            words = [w for w in self._errors.decode(errors="replace").split("\n") if w.strip()]
            said = [w for w in words if "error:" in w] or words or [""]
            self.trouble = said[-1].strip() or late or f"exit code {self._child.exit_code}"
            self._close()
            self.failures += 1
            self._start_at = now + _RESTART_AFTER_S
            if now - self._started_at > _STEADY_S:
                self._starts = 0
        elif self._child is not None and self._is_broken(now):
            self._close_input()
            self._child.send(9)
        if self._child is None and not self.probe_only:
            if self._starts >= _MOST_STARTS:
                self._fall_back(now)
            elif now >= self._start_at:
                self._start(now)

    def _end_if_late(self, now: float) -> str:
        """End a watch step that waits in vain for its place in the job; why, if so."""
        if self._child is None or self.is_up or now - self._started_at <= COME_UP_S:
            return ""
        self._read(now)
        if self.is_up:
            return ""
        self._end(self._child, 0.0)
        return f"nothing was heard of any node for {now - self._started_at:.0f} s"

    def _is_broken(self, now: float) -> bool:
        """Whether it goes on without one of its agents, whose node seems silent from then on."""
        return self._broken_at is not None and now - self._broken_at > _ENDS_WITHIN_S

    def _fall_back(self, now: float) -> None:
        self.probe_only = True
        self.interval = max(self.interval, PROBE_ONLY_INTERVAL_S)
        self.silence = max(self.silence, 3 * self.interval)
        self.forgive(now)

    def _start(self, now: float) -> None:
        self._starts += 1
        self._started_at = now
        out_r, out_w = os.pipe2(os.O_CLOEXEC)
        err_r, err_w = os.pipe2(os.O_CLOEXEC)
        in_r, self._input = os.pipe2(os.O_CLOEXEC)
        command = watch_command(
            self._srun, self._job_id, self.nodes, agent_command(self.interval, self._heartbeat_file)
        )
        try:
            self._child = spawn(
                command, self._environ, stdin=in_r, stdout=out_w, stderr=err_w, own_group=True
            )
        except OSError as error:
            self.trouble = f"{self._srun}: {error.strerror}"
            os.close(out_r)
            os.close(err_r)
            self._close_input()
            self._start_at = now + _RESTART_AFTER_S
        else:
            os.set_blocking(out_r, False)
            os.set_blocking(err_r, False)
            os.set_blocking(self._input, False)
            self._out, self._err = out_r, err_r
            self._buffer = self._errors = b""
            self.is_up = False
            self._forgive_ranks(now)
            for node, pulse in self._pulses.items():
                if pulse.last_beat < now + START_GRACE_S and self._starts > 1:
                    self._pulses[node] = NodePulse(node, now + START_GRACE_S)
        finally:
            for fd in (out_w, err_w, in_r):
                os.close(fd)

    def _close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    def _close(self) -> None:
        self._close_input()
        for fd in (self._out, self._err):
            if fd >= 0:
                os.close(fd)
        self._out = self._err = -1
        self._child = None
        self._broken_at = None

    def _read(self, now: float) -> None:
        if self._err >= 0:
            self._errors = (self._errors + _drain(self._err))[-_MAX_LINE:]
            if self._broken_at is None and _AGENT_ENDED.search(self._errors):
                self._broken_at = now
        if self._out < 0:
            return
        lines = (self._buffer + _drain(self._out)).split(b"\n")
        self._buffer = lines.pop()[-_MAX_LINE:]
        for line in lines:
            words = line.decode(errors="replace").split()
            if len(words) != 3 or words[1] not in self._pulses:
                continue
            if words[0] == agent.PREFIX:
                self._beat(words[1], now)
            elif words[0] == agent.TOUCH_PREFIX and words[2].isdigit():
                self._touch(int(words[2]), words[1], now)
            elif words[0] == agent.MEMORY_PREFIX:
                self.short_of_memory.add(words[1])
            elif words[0] == agent.FENCE_PREFIX:
                self._fenced[words[1]] = f"was cut off for {words[2]} s and ended its tasks"

    def _touch(self, rank: int, node: str, now: float) -> None:
        """A rank lives; files on shared storage are seen by all nodes and name none."""
        before = self.touches.get(rank)
        alone = before is None or before.node == node
        self.touches[rank] = Touch(now, node if alone else "")

    def _beat(self, node: str, now: float) -> None:
        self.is_up = True
        self._beaten.add(node)
        self._told[node] = now
        self._pulses[node] = NodePulse(node, now)

    # -- probes -----------------------------------------------------------

    def _begin_probe(self, node: str, now: float) -> None:
        if len(self._probes) >= self._most_probes:
            self._to_ask[node] = None
            return
        self._to_ask.pop(node, None)
        address, port = self._targets[node]
        attempt = probe.begin(node, address, port, now)
        self._probes[node] = attempt
        self._note(attempt)

    def _settle(self, now: float) -> None:
        for node, attempt in list(self._probes.items()):
            done = attempt.settle(now)
            self._note(attempt)
            if done:
                del self._probes[node]
                if self.probe_only and attempt.outcome is Probe.ANSWERED:
                    self._beat(node, now)
        for node in list(self._to_ask)[: self._most_probes - len(self._probes)]:
            self._begin_probe(node, now)

    def _note(self, attempt: probe.ProbeAttempt) -> None:
        pulse, outcome = self._pulses[attempt.node], attempt.outcome
        refused_since = pulse.refused_since
        if outcome is Probe.REFUSED:
            refused_since = refused_since or attempt.began
        elif outcome is not Probe.PENDING:
            refused_since = 0.0
        self._pulses[attempt.node] = NodePulse(
            pulse.node, pulse.last_beat, outcome, attempt.began, attempt.text, refused_since
        )


def _drain(fd: int) -> bytes:
    """What is there, but no more than a few megabytes: a flood may never end."""
    chunks: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(chunks) < _MOST_CHUNKS and (chunk := os.read(fd, 65536)):
            chunks.append(chunk)
    return b"".join(chunks)
