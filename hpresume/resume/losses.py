"""From a silent node to a fault: what slurmctld has to say to it first."""

from __future__ import annotations

import sys

from hpresume.errors import SlurmError
from hpresume.resume.background import Background
from hpresume.resume.detect import PROBE_TIMEOUT_S, Pulse
from hpresume.resume.model import NodeFault, Sign
from hpresume.resume.report import say
from hpresume.resume.watch import Watch
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import Node

#: A probe that began this long before Slurm's answer (s) says nothing: this host
#: may have been cut off then, and not be so any more.
_STALE_S = 2.0

#: A host that is connected again takes others for unreachable until it has looked
#: for their addresses anew (s): the kernel tries three times, a second apart.
_REACHES_AGAIN_S = 1.0

#: Pause between looks at Slurm's view of a silent node that answers (s).
_MUTE_LOOK_S = 2.0


def is_stale(
    asked: float, answered_before: float | None, answered: float, doubted: float | None = None
) -> bool:
    """Whether a probe failed at a time when Slurm may have been out of reach too. Pure.

    It began at ``asked``; Slurm's answers came at the other times (s, one clock).
    Nothing speaks against it if it began between the two, or right before the last.
    Once a probe was ``doubted``, this host may have been connected again just then.
    """
    if doubted is not None and asked < doubted + _REACHES_AGAIN_S:
        return True
    if answered_before is not None and asked >= answered_before + _REACHES_AGAIN_S:
        return False
    return asked < answered - _STALE_S


def about_mute(node: str, *, heard: bool, is_up: bool) -> str:
    """What to say about a silent node whose kernel answers. Pure.

    ``heard``: the node ever was; ``is_up``: any node was since the watch step began.
    """
    if heard:
        return f"{node} is silent but its address answers; the step goes on"
    if is_up:
        return (
            f"{node} was not heard of yet, but its address answers; the step goes on"
            f" (does {sys.executable} run there?)"
        )
    return (
        "the watch step has not come up on any node yet; until it does, a loss is seen by"
        " connections to slurmd"
    )


class Losses:
    """Confirms the losses of one attempt; slurmctld is asked in a thread.

    Times are on the loop's clock (s), which ``clock_offset`` turns into Unix time.
    """

    def __init__(
        self, gateway: SlurmGateway, frozen_timeout: float, told: set[str], clock_offset: float
    ) -> None:
        self._gateway = gateway
        self._frozen_timeout = frozen_timeout
        self._told = told
        self._clock_offset = clock_offset
        self._looks: Background[dict[str, Node]] | None = None
        self._looked_at = 0.0
        self._states: dict[str, Node] = {}
        self._states_at = 0.0
        self._answered_at: float | None = None
        self._answered_before: float | None = None
        self._asks_in_vain = False
        self._doubted: float | None = None
        self._settling: float | None = None

    @property
    def fd(self) -> int | None:
        """Readable once slurmctld has answered; None while it is not asked."""
        return self._looks.fd if self._looks is not None else None

    def settled(self, watch: Watch, others: list[str], now: float) -> bool:
        """Whether every other node was asked too: losses rarely come alone.

        Costs a millisecond where the others answer.
        """
        if self._settling is None:
            self._settling = now
            watch.probe_now(others, now)
        return not watch.is_asking or now - self._settling > 2 * PROBE_TIMEOUT_S

    def confirm(
        self,
        watch: Watch,
        suspects: list[str],
        judged: dict[str, Pulse],
        now: float,
        *,
        ended: bool,
    ) -> tuple[NodeFault, ...]:
        """Faults that Slurm's controller does not contradict; ``ended``: srun has.

        Its answer also shows that this host is not the one that is cut off.
        """
        if self._looks is not None and self._looks.done():
            try:
                self._states = self._looks.result()
                self._states_at = self._looked_at
                self._answered_before, self._answered_at = self._answered_at, now
                self._asks_in_vain |= now - self._looked_at > _STALE_S
            except SlurmError as error:
                self._asks_in_vain = True
                if "no-slurm" not in self._told:
                    self._told.add("no-slurm")
                    say(f"{', '.join(suspects)} silent, and Slurm cannot be asked: {error}")
            self._looks = None
        quiet_since = max(watch.last_beat(n) for n in suspects)
        fresh = self._states_at > quiet_since and set(suspects) <= set(self._states)
        urgent = any(judged[n] is Pulse.LOST for n in suspects)
        if self._looks is None and (not fresh if urgent else now - self._looked_at > _MUTE_LOOK_S):
            self._looked_at = now
            names = tuple(suspects)
            self._looks = Background(lambda: self._gateway.nodes(names))
        if not fresh or self._answered_at is None:
            return ()
        lost = [n for n in suspects if judged[n] is Pulse.LOST]
        before, answered = self._answered_before, self._answered_at
        if any(is_stale(watch.probe_began(n), before, answered) for n in lost):
            self._doubted = answered
        doubted = self._doubted
        stale = [n for n in lost if is_stale(watch.probe_began(n), before, answered, doubted)]
        in_vain, self._asks_in_vain = self._asks_in_vain, False
        if stale and in_vain:
            watch.forgive(now)  # it may have been this host that was cut off
            return ()
        watch.probe_now(stale, now)
        faults = []
        for name in suspects:
            if name in stale:
                continue
            fault = self._fault(watch, name, judged[name], now, ended=ended)
            if fault is not None:
                faults.append(fault)
        return tuple(faults)

    def _fault(
        self, watch: Watch, name: str, pulse: Pulse, now: float, *, ended: bool
    ) -> NodeFault | None:
        node = self._states[name]
        heard = watch.last_beat(name) + self._clock_offset
        if node.is_down:
            return NodeFault(name, Sign.DOWN, f"is DOWN in Slurm ({node.reason})")
        if pulse is Pulse.LOST:
            return NodeFault(name, Sign.LOST, f"is lost: {watch.explain(name, now)}")
        # A new slurmd alone is no sign: one that is restarted leaves its steps alone.
        booted = node.boot_time or node.slurmd_start_time
        if booted > heard and watch.has_beaten(name):
            return NodeFault(name, Sign.REBOOTED, "was booted again: its tasks are gone")
        frozen = self._frozen_timeout
        if frozen and now - watch.last_beat(name) >= frozen and watch.works(now):
            return NodeFault(name, Sign.FROZEN, f"is frozen: {watch.explain(name, now)}")
        words = about_mute(name, heard=watch.has_beaten(name), is_up=watch.is_up)
        if words not in self._told and not ended and watch.is_running:
            self._told.add(words)
            say(words)
        return None
