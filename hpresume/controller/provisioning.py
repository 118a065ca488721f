"""Provisioning as a pass of the controller, beside node recovery.

Both act on the same nodes and take each in hand before. When this instance begins to lead,
recovery first has what its table says it acts on, then provisioning what is in motion in its
own; only then does either of them do anything.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from hpresume.devcluster.cluster import DevCluster
from hpresume.errors import (
    LeadershipLostError,
    ProviderTransientError,
    ServiceBusyError,
    StoreError,
)
from hpresume.providers.model import LaunchRequest, Machine, Provider
from hpresume.provision.control import Provisioner
from hpresume.provision.devcluster import attributes_of
from hpresume.provision.engine import Engine
from hpresume.provision.model import Node, State
from hpresume.provision.service import ClusterService
from hpresume.provision.setup import ProvisionConfig, open_provisioning
from hpresume.recovery.recoverer import Passed
from hpresume.store import Fence, Store
from hpresume.store.holds import Holds

log = logging.getLogger(__name__)

FenceOf = Callable[[], Fence | None]


class Provisioning:
    """Instance groups while this instance leads.

    ``wake`` ends this pass's pause. What is in memory is read anew under each leadership.
    """

    def __init__(
        self,
        config: ProvisionConfig,
        store: Store,
        provider: Provider,
        fence: FenceOf,
        holds: Holds,
        *,
        dev: DevCluster | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._store = store
        self._provider = Fenced(provider, fence)
        self._fence = fence
        self._holds = holds
        self._dev = dev
        self._wake = wake
        self._opened: tuple[Fence, Provisioner, Engine] | None = None

    def open(self, before: Callable[[], object]) -> None:
        """Read the clusters under a leadership that is new, and take in hand what is in motion.

        ``before`` lets recovery take its nodes first. Raises StoreError.
        """
        fence = self._standing()
        if self._opened is not None and self._opened[0] == fence:
            return
        self.close()
        before()
        service, engine = open_provisioning(
            self._config,
            self._store,
            self._provider,
            fence=self._standing,
            holds=self._holds,
            dev=self._dev,
            woken=self._wake,
        )
        engine.hold()
        self._opened = (fence, service, engine)

    def once(self) -> Passed:
        """One step of the engine."""
        if not self._is_current():
            return Passed(acted=False, busy=True)
        assert self._opened is not None  # noqa: S101 (for mypy)
        engine = self._opened[2]
        engine.step()
        return Passed(acted=False, busy=engine.is_busy)

    def close(self) -> None:
        """Begin nothing more."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[2].close()

    def service(self) -> ClusterService:
        """What the API asks. Raises ServiceBusyError while this instance does not lead."""
        opened = self._opened
        if opened is None or not self._is_current():
            raise ServiceBusyError("this instance does not lead: another one answers, or soon will")
        return opened[1]

    def shaped(self, request: LaunchRequest) -> LaunchRequest:
        """A launch of recovery's, with the type, group and image of a node of an instance group."""
        found = self._find(request.node)
        if found is None:
            return request
        state, node = found
        return replace(
            request,
            instance_type=state.groups[node.group].instance_type,
            group=node.group,
            image=node.image,
            attributes=attributes_of(state, node) if self._dev else request.attributes,
        )

    def by_hand(self) -> frozenset[str]:
        """Nodes of clusters whose ``NodeRecovery`` is None."""
        opened = self._opened
        if opened is None:
            return frozenset()
        return frozenset(
            node.name
            for state in opened[2].states.values()
            if state.cluster.spec.get("NodeRecovery") == "None"
            for node in state.nodes.values()
        )

    def _find(self, name: str) -> tuple[State, Node] | None:
        states = self._opened[2].states.values() if self._opened else ()
        return next(
            ((state, node) for state in states for node in state.nodes.values()
             if node.name == name),
            None,
        )  # fmt: skip

    def _standing(self) -> Fence:
        fence = self._fence()
        if fence is None:
            raise LeadershipLostError("this instance does not lead any more")
        return fence

    def _is_current(self) -> bool:
        opened = self._opened
        return opened is not None and opened[0] == self._fence()


class Opening:
    """The pass before all others: provisioning is opened, and both parts have their nodes."""

    def __init__(self, provisioning: Provisioning, before: Callable[[], object]) -> None:
        self._provisioning = provisioning
        self._before = before

    def once(self) -> Passed:
        """Open what is not open yet."""
        self._provisioning.open(self._before)
        return Passed(acted=False, busy=False)

    def close(self) -> None:
        """Nothing is begun here."""


class Fenced:
    """A provider that changes nothing once another instance may lead."""

    def __init__(self, provider: Provider, fence: FenceOf) -> None:
        self.name = provider.name
        self._provider = provider
        self._fence = fence

    def launch(self, request: LaunchRequest) -> Machine:
        """As the provider's."""
        return self._leading().launch(request)

    def terminate(self, machine_id: str) -> None:
        """As the provider's."""
        self._leading().terminate(machine_id)

    def reboot(self, machine_id: str) -> None:
        """As the provider's."""
        self._leading().reboot(machine_id)

    def describe(self, machine_id: str) -> Machine | None:
        """As the provider's."""
        return self._provider.describe(machine_id)

    def list(self) -> tuple[Machine, ...]:
        """As the provider's."""
        return self._provider.list()

    def _leading(self) -> Provider:
        if self._fence() is None:
            raise ProviderTransientError("another instance leads")
        return self._provider


class _WhileLeading:
    """A ClusterService that asks for the present one at every call."""

    def __init__(self, current: Callable[[], ClusterService]) -> None:
        self._current = current

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._current(), name)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except LeadershipLostError as error:
                # Nothing was written: the same request may be sent again.
                raise ServiceBusyError(str(error)) from error
            except StoreError as error:
                log.warning("%s: %s", name, error)
                raise ServiceBusyError(f"{error}: send the request again") from error

        return call


def while_leading(current: Callable[[], ClusterService]) -> ClusterService:
    """A service for the API: ServiceBusyError (ThrottlingException there) while nobody leads here,
    or the database does not answer.

    SDKs send such a request again by themselves.
    """
    return cast(ClusterService, _WhileLeading(current))
