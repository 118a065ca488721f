"""Clusters for the end-to-end tests.

A test module says what cluster it wants in a module variable ``CLUSTER``, a dict
of ClusterSpec's fields (default: 4 nodes with 4 GPUs). ``cluster`` is that
cluster, reset before every test; ``make_cluster`` makes further ones. Every
cluster belongs to one test process, so that test files can run side by side.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster import E2eCluster, remove_abandoned_clusters

from hpresume.devcluster.requirements import require_root, require_tools
from hpresume.errors import HpresumeError, MissingDependencyError

# So that their assertions tell values too.
pytest.register_assert_rewrite("combined", "steps", "trio", "watched")

_live: list[E2eCluster] = []


@pytest.fixture(scope="session")
def machine() -> None:
    """A machine that can carry development clusters, free of abandoned ones."""
    try:
        require_root()
        require_tools()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    remove_abandoned_clusters()


@pytest.fixture(scope="module")
def module_cluster(request: pytest.FixtureRequest, machine: None) -> Iterator[E2eCluster]:
    """The cluster of a test module, in whatever state the last test left it."""
    cluster = _start(getattr(request.module, "CLUSTER", {}))
    yield cluster
    _down(cluster)


@pytest.fixture
def cluster(module_cluster: E2eCluster) -> E2eCluster:
    """The cluster of a test module, without jobs, all hosts running, all nodes idle."""
    module_cluster.reset()
    return module_cluster


@pytest.fixture
def make_cluster(
    machine: None, request: pytest.FixtureRequest
) -> Iterator[Callable[..., E2eCluster]]:
    """Make clusters for one test; arguments are ClusterSpec's fields."""
    made: list[E2eCluster] = []

    def make(**fields: Any) -> E2eCluster:
        made.append(_start(fields))
        return made[-1]

    request.node.made_clusters = made
    yield make
    for each in made:
        _down(each)


@pytest.fixture
def site(cluster: E2eCluster, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Make controllers for the module's cluster; arguments are settings of [recovery]."""
    from recovering import Controller  # not every test needs SQLAlchemy

    made: list[Controller] = []

    def make(**recovery: Any) -> Controller:
        made.append(Controller(cluster, tmp_path, **recovery))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the ends of Slurm's logs to the report of a test that failed."""
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    clusters = list(getattr(item, "made_clusters", []))
    if "module_cluster" in getattr(item, "funcargs", {}):
        clusters.append(item.funcargs["module_cluster"])
    for each in clusters:
        with suppress(OSError, HpresumeError):
            report.sections.append((f"Slurm logs of {each.name}", each.logs()))


@atexit.register
def _down_all() -> None:
    """The last resort: pytest did not get to the end of its fixtures."""
    for each in list(_live):
        with suppress(HpresumeError):
            _down(each)


def _start(fields: dict[str, Any]) -> E2eCluster:
    cluster = E2eCluster.start(**fields)
    _live.append(cluster)
    return cluster


def _down(cluster: E2eCluster) -> None:
    cluster.down()
    _live.remove(cluster)
