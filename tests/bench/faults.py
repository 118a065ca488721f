"""A crash whose moment is known."""

from __future__ import annotations

import time

import pytest
from cluster import E2eCluster

from hpresume.devcluster import network


def crash(cluster: E2eCluster, monkeypatch: pytest.MonkeyPatch, node: str) -> float:
    """Crash a node; the Unix time at which its link was about to be cut."""
    times: list[float] = []
    cut = network.set_link

    def noted(*args: object, **options: object) -> None:
        times.append(time.time())
        cut(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(network, "set_link", noted)
        cluster.crash(node)
    return times[0]
