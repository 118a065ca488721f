"""When silence means that a node is lost. Pure.

A node beats through the watch step. Silence alone proves nothing: the agent
may be starved, or the watch step broken. A node is lost when it is silent for
the whole limit and its kernel does not accept a connection to slurmd's port
either; a busy machine still does, in microseconds, whatever its load. One that
refuses it was booted, or its slurmd is being restarted, which takes a moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Probe(StrEnum):
    """Outcome of the last connection attempt to a node's slurmd port."""

    NONE = "none"
    PENDING = "pending"
    ANSWERED = "answered"
    FAILED = "failed"
    REFUSED = "refused"  # its kernel runs, its slurmd does not: a boot, or a restart of slurmd


class Pulse(StrEnum):
    """What to make of one node."""

    ALIVE = "alive"
    PROBE = "probe"  # silent for a while: ask its kernel
    MUTE = "mute"  # silent for the whole limit, yet its kernel answers
    LOST = "lost"


#: Longest wait for a connection to a slurmd port (s). On a cluster network an
#: answer takes well under a millisecond; a lost SYN is sent again after 1 s.
PROBE_TIMEOUT_S = 0.5

#: How long connections have to be refused before the node counts as lost (s). A restart
#: of slurmd took 0.12 s with 23.11.
REFUSED_S = 1.0

#: Share of the interval beyond one beat after which a node is asked.
_PATIENCE = 1.25


@dataclass(frozen=True)
class NodePulse:
    """One node: its last beat, and the last probe begun after that beat.

    ``refused_since`` is when the first of the latest probes that were all refused
    began; 0.0 where the last one to end was not.
    """

    node: str
    last_beat: float
    probe: Probe = Probe.NONE
    probe_began: float = 0.0
    probe_text: str = ""
    refused_since: float = 0.0


def judge(pulse: NodePulse, now: float, interval: float, silence: float) -> Pulse:
    """What the silence of one node means at ``now`` (seconds, one clock).

    ``interval`` is the beat's, ``silence`` the limit; a probe counts only if
    it began after the last beat.
    """
    quiet = now - pulse.last_beat
    suspect_after = min(_PATIENCE * interval, silence)
    if quiet < suspect_after:
        return Pulse.ALIVE
    current = pulse.probe if pulse.probe_began >= pulse.last_beat else Probe.NONE
    if current is Probe.PENDING:
        return Pulse.ALIVE
    if current is Probe.NONE:
        return Pulse.PROBE
    if current is Probe.REFUSED:
        for_long = pulse.probe_began - pulse.refused_since >= REFUSED_S
        if for_long and quiet >= silence:
            return Pulse.LOST
        return Pulse.PROBE if now - pulse.probe_began >= REFUSED_S else Pulse.ALIVE
    if quiet < silence:
        return Pulse.ALIVE
    if current is Probe.FAILED:
        return Pulse.LOST
    again = now - pulse.probe_began >= max(interval, PROBE_TIMEOUT_S)
    return Pulse.PROBE if again else Pulse.MUTE


def next_look(pulse: NodePulse, now: float, interval: float, silence: float) -> float:
    """Seconds until ``judge`` may answer differently without new input."""
    quiet = now - pulse.last_beat
    marks = (_PATIENCE * interval, silence)
    waits = [mark - quiet for mark in marks if mark > quiet]
    if pulse.probe is Probe.REFUSED:
        waits.append(max(0.0, pulse.probe_began + REFUSED_S - now))
    return max(0.01, min(waits, default=interval / 2))
