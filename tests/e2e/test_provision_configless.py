"""Merge mode where nodes have no slurm.conf of their own: slurmctld serves the edited one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import E2eCluster
from provision_service import Served, allow, complete, served, until
from provision_world import group, spec, workers

from hpresume.devcluster.spec import CONTROLLER
from hpresume.providers.devcluster import DevClusterProvider
from hpresume.provision import devcluster
from hpresume.provision.lifecycle import LifecycleScripts
from hpresume.provision.pace import Pace
from hpresume.provision.policy import Policy
from hpresume.provision.ports import Hardware
from hpresume.provision.service import ClusterUpdate
from hpresume.store import open_store

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 2, "gpus_per_node": 2, "configless": True}

POLICY = Policy(retry_s=0.5, retry_max_s=2.0, again_s=1.0)
PACE = Pace(look_s=0.5, configure_s=0.5, step_s=0.05, idle_s=0.2)


@pytest.fixture
def running(module_cluster: E2eCluster, tmp_path: Path) -> Iterator[Served]:
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    side = devcluster.slurm_of(module_cluster)
    with served(
        store,
        DevClusterProvider(module_cluster),
        policy=POLICY,
        pace=PACE,
        slurm=lambda state: side,
        scripts=LifecycleScripts(devcluster.HostPrograms(module_cluster)),
        attributes=devcluster.attributes_of,
        hardware={"ml.c5.xlarge": Hardware("Gres=gpu:2")},
    ) as running:
        yield running
    store.close()


def served_conf(cluster: E2eCluster, node: str) -> str:
    """The slurm.conf that Slurm's clients on a node use."""
    return cluster.exec(["cat", "/run/slurm/conf/slurm.conf"], node, check=True).stdout


def have_it(cluster: E2eCluster, *nodes: str) -> bool:
    """Whether every slurmd has the file as slurmctld's host has it now."""
    text = cluster.layout.slurm_conf.read_text()
    return all(served_conf(cluster, node) == text for node in nodes)


def srun(cluster: E2eCluster, node: str, *argv: str) -> list[str]:
    """The sorted output of a step that a user starts on a node."""
    done = cluster.exec(["srun", *argv], node, user="trainer", timeout=60)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split())


def set_count(running: Served, count: int) -> None:
    update = ClusterUpdate({}, (workers(count, LifeCycleConfig=None),))
    running.service.update_cluster("c1", update, allow)
    until(lambda: complete(running), 60)


def test_new_nodes_join_and_everybody_gets_the_new_file(
    module_cluster: E2eCluster, running: Served
) -> None:
    cluster, conf = module_cluster, module_cluster.layout.slurm_conf
    original = conf.read_text()
    # whoever does not read it as root has to have got it from slurmctld
    conf.chmod(0o600)
    assert cluster.exec(["sinfo"], CONTROLLER, user="trainer").returncode != 0
    assert srun(cluster, "n1", "-N2", "hostname") == ["n1", "n2"]

    running.service.create_cluster(
        spec(
            group("controller", "Controller", 1, LifeCycleConfig=None),
            workers(2, LifeCycleConfig=None),
        )
    )
    until(lambda: complete(running), 60)
    both = ["workers-1", "workers-2"]
    until(lambda: have_it(cluster, "n1", "n2", *both), 20)
    assert "NodeName=workers-2 " in served_conf(cluster, "n1")
    # from a node that was there before, and from a new one, without a restart of either
    for client in ("n1", "workers-2"):
        assert srun(cluster, client, "-p", "p1", "-N2", "hostname") == both
    devices = ["-p", "p1", "-N2", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES"]
    assert srun(cluster, "workers-1", *devices) == ["0,1", "0,1"]

    # one that starts again fetches it again
    cluster.restart_daemon("slurmd", "workers-1")
    cluster.wait_idle(both)
    assert srun(cluster, "workers-1", "-p", "p1", "-N2", "hostname") == both

    # an administrator's change, and another one of ours on top of it
    text = conf.read_text()
    assert "KillWait=5\n" in text
    conf.write_text(text.replace("KillWait=5\n", "KillWait=7 # by hand\n"))
    cluster.exec(["scontrol", "reconfigure"], check=True)
    until(lambda: have_it(cluster, "n1", "n2", *both), 20)
    set_count(running, 3)
    every = [*both, "workers-3"]
    until(lambda: have_it(cluster, "n1", "n2", *every), 20)
    assert "KillWait=7 # by hand\n" in served_conf(cluster, "workers-3")
    assert srun(cluster, "workers-1", "-p", "p1", "-N3", "hostname") == every

    set_count(running, 1)
    (left,) = (n.name for n in running.book.find("c1").nodes.values() if n.group == "workers")
    until(lambda: have_it(cluster, "n1", "n2", left), 20)
    assert srun(cluster, "n1", "-p", "p1", "-N1", "hostname") == [left]

    running.service.delete_cluster("c1", allow)
    until(lambda: not running.book.states, 60)
    assert conf.read_text() == original.replace("KillWait=5\n", "KillWait=7 # by hand\n")
    until(lambda: have_it(cluster, "n1", "n2"), 20)
    assert srun(cluster, "n2", "-N2", "hostname") == ["n1", "n2"]
