"""Putting the controller together from its configuration."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from hpresume.controller.api import open_api
from hpresume.controller.config import ControllerConfig
from hpresume.controller.provisioning import Opening, Provisioning, while_leading
from hpresume.controller.service import Pass, Service, Wake
from hpresume.devcluster.cluster import DevCluster
from hpresume.errors import ConfigError, MissingDependencyError
from hpresume.jobs import inspect
from hpresume.jobs.echo import QuietLook
from hpresume.jobs.inbox import Inbox
from hpresume.jobs.keeper import Keeper
from hpresume.providers.config import open_provider
from hpresume.providers.model import Provider
from hpresume.recovery import check
from hpresume.recovery.calls import Checks
from hpresume.recovery.observe import Look, lost
from hpresume.recovery.recoverer import Recoverer
from hpresume.resume import finisher
from hpresume.resume.model import NodeFault
from hpresume.slurm.admin import AdminGateway, tool_environ
from hpresume.slurm.models import ClusterConfig, Node
from hpresume.slurm.runner import Runner
from hpresume.store import Fence, Lease, Store, open_store
from hpresume.store.holds import Holds
from hpresume.store.lease import own_identity

log = logging.getLogger(__name__)


def run(config: ControllerConfig, *, dry_run: bool = False, once: bool = False) -> bool:
    """Run the controller; whether the one pass of ``once`` went well.

    Raises HpresumeError where it cannot start.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    if os.geteuid() != 0:
        raise MissingDependencyError(
            "the controller needs root: only root and SlurmUser may change nodes in Slurm"
        )
    gateway, look, probe = reach(config)
    provider = _provider(config)
    store = open_store(config.database)
    lease = Lease(store, own_identity(), config.lease_s, time.monotonic, time.time)

    groups: list[Provisioning] = []
    helpers: list[Helper] = []

    def passes(fence: Callable[[], Fence | None], wake: Wake) -> list[Pass]:
        if not dry_run and not once:
            helpers.extend(_for_jobs(config, gateway, store, fence, wake, probe))
        holds = Holds()
        if config.provision is not None and not (dry_run or once):
            groups.append(_provisioning(config, store, provider, fence, holds, wake))
        recoverer = Recoverer(
            gateway, store, provider, _check(config, gateway), config.policy, fence,
            look=look, wake=wake, dry_run=dry_run, once=once, holds=holds,
            shaped=lambda request: groups[0].shaped(request) if groups else request,
            by_hand=lambda: groups[0].by_hand() if groups else frozenset(),
        )  # fmt: skip
        if not groups:
            return [recoverer]
        return [Opening(groups[0], recoverer.hold), recoverer, groups[0]]

    service = Service(
        store, lease, passes,
        interval_s=config.interval_s, lease_s=config.lease_s,
        keep_events_s=config.keep_events_s, leads=not dry_run,
    )  # fmt: skip
    try:
        with _api(config, groups):
            for helper in helpers:
                helper.start()
            return service.run(once=once)
    finally:
        for helper in helpers:
            helper.close()
        store.close()


def _provisioning(
    config: ControllerConfig,
    store: Store,
    provider: Provider,
    fence: Callable[[], Fence | None],
    holds: Holds,
    wake: Wake,
) -> Provisioning:
    assert config.provision is not None  # noqa: S101 (for mypy)
    dev = DevCluster(config.devcluster) if config.devcluster else None
    made: list[Provisioning] = []
    made.append(
        Provisioning(
            config.provision, store, provider, fence, holds, dev=dev, wake=lambda: wake(made[0])
        )
    )
    return made[0]


@contextmanager
def _api(config: ControllerConfig, groups: Sequence[Provisioning]) -> Iterator[None]:
    """The cluster API for as long as the controller runs, where it is wanted."""
    if config.api is None or not groups:
        yield
        return
    with open_api(config.api, while_leading(groups[0].service)) as server:
        log.info("the cluster API listens on %s", server.url)
        yield


class Helper(Protocol):
    """Something with a thread of its own beside the passes."""

    def start(self) -> None:
        """Begin."""
        ...

    def close(self) -> None:
        """Begin nothing more."""
        ...


def _for_jobs(
    config: ControllerConfig,
    gateway: AdminGateway,
    store: Store,
    fence: Callable[[], Fence | None],
    wake: Callable[[], None],
    probe: finisher.Look,
) -> list[Helper]:
    """What looks after auto-resume jobs, where their supervisors can speak to it."""
    if not config.reports:
        return []
    try:
        from hpresume.api import reports
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{config.source}: reports needs the Python package {error.name}: "
            "in hpresume's checkout, pip install '.[api]'"
        ) from None
    check: inspect.Inspect = inspect.never
    if config.check == "slurm":
        limit_s = config.policy.check_s
        check = inspect.through_slurm(gateway, config.check_command, limit_s)
    keeper = Keeper(gateway, store, fence, probe, check, config.jobs, wake)
    inbox = Inbox(gateway, store, fence, keeper.wake, config.jobs.keep_s)
    if not config.devcluster:
        return [keeper, reports.ReportServer(inbox, reports.listen(config.reports))]
    from hpresume.devcluster import inside
    from hpresume.devcluster.cluster import DevCluster

    cluster = DevCluster(config.devcluster)
    listening = inside.in_network(cluster, lambda: reports.listen(config.reports))
    munge = str(cluster.layout.munge_socket)
    return [keeper, reports.ReportServer(inbox, listening, munge)]


def reach(config: ControllerConfig) -> tuple[AdminGateway, Look, finisher.Look]:
    """The cluster's Slurm, and ways to ask its nodes' kernels.

    Raises DevClusterError where a dev cluster is named that was never made.
    """
    if not config.devcluster:
        return AdminGateway(Runner(tool_environ())), lost, QuietLook()
    from hpresume.devcluster import inside
    from hpresume.devcluster.cluster import DevCluster
    from hpresume.devcluster.store import Store as Known

    Known(config.devcluster).state()  # a mistyped name is nothing to wait for
    cluster = DevCluster(config.devcluster)

    def look(
        names: Sequence[str], nodes: Mapping[str, Node], settings: ClusterConfig
    ) -> Collection[str]:
        known = inside.with_addresses(cluster, nodes)
        return inside.in_network(cluster, lambda: lost(names, known, settings))

    quiet = QuietLook()

    def probe(
        names: Sequence[str],
        nodes: Mapping[str, Node],
        settings: ClusterConfig,
        *,
        lone: bool = False,
    ) -> Sequence[NodeFault]:
        known = inside.with_addresses(cluster, nodes)
        return inside.in_network(cluster, lambda: quiet(names, known, settings, lone=lone))

    return AdminGateway(inside.InsideRunner(cluster)), look, probe


def _provider(config: ControllerConfig) -> Provider:
    """The provider, of the same cluster as the nodes. Raises ConfigError."""
    table, where = dict(config.provider), f"{config.source}: [provider]"
    kind = table.get("type")
    if config.devcluster and kind == "power":
        raise ConfigError(
            f'{where}: type = "power" would act on this host\'s own Slurm, '
            f"and [controller] devcluster names another one, {config.devcluster!r}"
        )
    if config.devcluster and kind == "devcluster":
        cluster = table.setdefault("cluster", config.devcluster)
        if cluster != config.devcluster:
            raise ConfigError(
                f"{where}: cluster = {cluster!r}: [controller] devcluster is "
                f"{config.devcluster!r}: machines of one would stand in for nodes of the other"
            )
    return open_provider(str(kind or "provider"), table, where)


def _check(config: ControllerConfig, gateway: AdminGateway) -> Checks:
    if config.check == "none":
        return check.no_check
    limit_s = config.policy.check_s
    if config.check == "program":
        return check.by_program(config.check_command, limit_s)
    return check.through_slurm(gateway, config.check_command, limit_s)
