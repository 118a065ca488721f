"""One pass of node recovery: observe everything, decide, act."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hpresume.errors import LeadershipLostError
from hpresume.providers.model import LaunchRequest, Provider
from hpresume.recovery.calls import Calls, Checks
from hpresume.recovery.decide import decide
from hpresume.recovery.dry import would
from hpresume.recovery.execute import Executor
from hpresume.recovery.model import Policy, Snapshot, Sweep
from hpresume.recovery.observe import Look, Observer, lost
from hpresume.slurm import nodeset
from hpresume.slurm.admin import AdminGateway
from hpresume.slurm.models import Node
from hpresume.store import Fence, Store
from hpresume.store.holds import Holds

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Passed:
    """What a pass left. ``acted``: look again at once; ``busy``: something is under way."""

    acted: bool
    busy: bool


class Recoverer:
    """Node recovery for one controller.

    ``fence`` gives the controller's fence, or None while another instance leads;
    ``wake`` is called when a call in the background has ended. ``holds`` is shared with
    provisioning; ``shaped`` adds to a launch what that knows of the node, ``by_hand``
    says which nodes it wants recovered on people's orders only. With ``once``, ``close``
    waits for the calls that the pass has begun. ``crossed`` is called
    with the name of every step that was taken, and ``submit`` runs the calls: for tests.
    """

    def __init__(
        self,
        gateway: AdminGateway,
        store: Store,
        provider: Provider,
        check: Checks,
        policy: Policy,
        fence: Callable[[], Fence | None],
        *,
        look: Look = lost,
        wake: Callable[[], None] = lambda: None,
        dry_run: bool = False,
        once: bool = False,
        holds: Holds | None = None,
        shaped: Callable[[LaunchRequest], LaunchRequest] = lambda request: request,
        by_hand: Callable[[], frozenset[str]] = frozenset,
        clock: Callable[[], float] = time.time,
        crossed: Callable[[str], None] = lambda _: None,
        submit: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._policy = policy
        self._fence = fence
        self._clock = clock
        self._dry_run = dry_run
        self._finish = once
        self._told: frozenset[str] = frozenset()
        self._named = False
        holds = holds or Holds()
        self._calls = Calls(provider, check, fence, shaped=shaped, done=wake, submit=submit)
        self._observer = Observer(gateway, store, self._calls, policy, look, holds, by_hand)
        self._executor = Executor(
            gateway, store, provider, self._calls, self._standing, clock, crossed, holds
        )

    def hold(self) -> None:
        """Take in hand what the table says is acted on. Raises StoreError."""
        self._observer.hold()

    def once(self) -> Passed:
        """One pass; SlurmError, StoreError and LeadershipLostError end it."""
        snapshot = self._observer.observe(self._clock())
        self._name_unknown(snapshot.nodes)
        policy = self._without_own_host(snapshot.nodes)
        actions = decide(snapshot, policy, self._clock())
        if self._dry_run:
            self._tell(snapshot, policy)
            return Passed(False, False)
        if any(isinstance(action, Sweep) for action in actions):
            self._observer.swept_at = self._clock()
        acted = self._executor.execute(actions, snapshot)
        swept = sum(isinstance(action, Sweep) for action in actions)
        busy = bool(self._calls.in_flight()) or any(r.phase.is_acting for r in snapshot.active)
        return Passed(acted > swept, busy)

    def close(self) -> None:
        """Begin nothing more."""
        self._calls.close(finish=self._finish)

    def _standing(self) -> Fence:
        fence = self._fence()
        if fence is None:
            raise LeadershipLostError("this instance does not lead any more")
        return fence

    def _without_own_host(self, nodes: Mapping[str, Node]) -> Policy:
        # Anew each time: a node of this host may come to Slurm later.
        host = os.uname().nodename.partition(".")[0]
        own = {
            node.name
            for node in nodes.values()
            if host in (node.name, node.hostname.partition(".")[0])
        }
        return replace(self._policy, denied=self._policy.denied | own)

    def _name_unknown(self, nodes: Mapping[str, Node]) -> None:
        """Say which nodes of the configuration Slurm does not know: a typing error, maybe."""
        if self._named:
            return
        self._named = True
        given = {"nodes": self._policy.allowed or frozenset(), "never": self._policy.denied}
        for key, names in given.items():
            unknown = sorted(names - nodes.keys())
            if unknown:
                log.warning("%s: Slurm knows no node %s", key, nodeset.fold(unknown)[:200])

    def _tell(self, snapshot: Snapshot, policy: Policy) -> None:
        lines = would(snapshot, policy, self._clock()) or ("nothing would be done",)
        for line in lines:
            if line not in self._told:
                log.info("dry run: %s", line)
        self._told = frozenset(lines)
