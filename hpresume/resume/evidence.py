"""Looking at nodes once: where no watch runs, or a recovery takes too long."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Mapping

from hpresume.resume import probe
from hpresume.resume.detect import PROBE_TIMEOUT_S, Probe
from hpresume.resume.model import NodeFault, Sign
from hpresume.resume.observe import slurmd_address
from hpresume.resume.probe import ProbeAttempt
from hpresume.slurm.models import ClusterConfig, Node


def look_once(
    names: Iterable[str],
    nodes: Mapping[str, Node],
    config: ClusterConfig,
    *,
    lone: bool = False,
) -> tuple[NodeFault, ...]:
    """Nodes whose kernel does not answer on slurmd's port.

    Takes at most half a second for some hundred of them. At least one node has to
    answer: else the ports cannot be reached from here, or this host is cut off.
    With ``lone`` every node that does not answer counts, and one whose slurmd does not
    run too: is it back yet?
    """
    attempts = _asked(names, nodes, config)
    if not lone and all(a.outcome is not Probe.ANSWERED for a in attempts):
        return ()
    return tuple(
        NodeFault(a.node, Sign.LOST, f"is lost: slurmd's port: {a.text}")
        for a in attempts
        if a.outcome is Probe.FAILED or (lone and a.outcome is not Probe.ANSWERED)
    )


def unserved(
    names: Iterable[str],
    witnesses: Iterable[str],
    nodes: Mapping[str, Node],
    config: ClusterConfig,
) -> tuple[NodeFault, ...]:
    """Those of ``names`` whose kernel refuses connections to slurmd's port: it does not run there.

    One of ``names`` or ``witnesses`` has to answer: else a firewall may be what refuses.
    """
    asked = tuple(names)
    attempts = _asked(dict.fromkeys((*asked, *witnesses)), nodes, config)
    if all(a.outcome is not Probe.ANSWERED for a in attempts):
        return ()
    return tuple(
        NodeFault(a.node, Sign.UNHEALTHY, f"runs no slurmd: its port: {a.text}")
        for a in attempts
        if a.outcome is Probe.REFUSED and a.node in asked
    )


def _asked(
    names: Iterable[str], nodes: Mapping[str, Node], config: ClusterConfig
) -> list[ProbeAttempt]:
    targets = [(n, *slurmd_address(n, nodes, config)) for n in names]
    most = probe.most_at_once()
    attempts: list[ProbeAttempt] = []
    for start in range(0, len(targets), most):
        attempts += _ask(targets[start : start + most])
    return attempts


def _ask(targets: Iterable[tuple[str, str, int]]) -> list[ProbeAttempt]:
    now = time.monotonic()
    attempts = [probe.begin(node, address, port, now) for node, address, port in targets]
    while pending := [a for a in attempts if not a.settle(time.monotonic())]:
        poller = select.poll()
        for attempt in pending:
            if attempt.sock is not None:
                poller.register(attempt.sock, select.POLLOUT)
        left = now + PROBE_TIMEOUT_S - time.monotonic()
        poller.poll(max(0.0, left) * 1000)
    return attempts
