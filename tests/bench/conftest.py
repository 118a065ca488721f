"""Clusters and the installation that the measurements are taken of.

Every file here has a cluster of its own, described in its variable ``CLUSTER`` as
in the end-to-end tests, whose helpers are used.
"""

from __future__ import annotations

import compileall
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpresume
from hpresume.devcluster.requirements import require_root, require_tools
from hpresume.errors import MissingDependencyError

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

from cluster import E2eCluster, remove_abandoned_clusters


@pytest.fixture(scope="session")
def machine() -> None:
    """A machine that can carry clusters, with hpresume's bytecode in place as pip leaves it.

    The accounts of a cluster cannot write it, and would compile every module anew.
    """
    try:
        require_root()
        require_tools()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    compileall.compile_dir(Path(hpresume.__file__).parent, quiet=1)
    remove_abandoned_clusters()


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, machine: None) -> Iterator[E2eCluster]:
    """The cluster of a file."""
    cluster = E2eCluster.start(**request.module.CLUSTER)
    yield cluster
    cluster.down()
