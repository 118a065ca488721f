"""Development clusters with slurmdbd: jobs that change their size several times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import E2eCluster, wait_for
from remote_gateway import RemoteGateway
from test_devcluster import hostnames, traces

from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.database import DATABASE_UID
from hpresume.devcluster.processes import all_pids, name_of
from hpresume.devcluster.spec import CONTROLLER
from hpresume.slurm.models import DonorSpec, Job, JobState

pytestmark = pytest.mark.e2e

# jobs with generic resources cannot grow
CLUSTER = {"nodes": 5, "gpus_per_node": 0, "accounting": True}
NO_TRACES: dict[str, list[str]] = {"processes": [], "mounts": [], "cgroups": [], "files": []}


@contextmanager
def opened(cluster: E2eCluster) -> Iterator[RemoteGateway]:
    remote = RemoteGateway(cluster)
    yield remote
    remote.close()


@pytest.fixture
def gateway(cluster: E2eCluster) -> Iterator[RemoteGateway]:
    with opened(cluster) as remote:
        yield remote


def running(cluster: E2eCluster, gateway: RemoteGateway, nodes: int) -> Job:
    """Submit a batch job of trainer's and wait until it runs."""
    argv = ["sbatch", "--parsable", f"-N{nodes}", "--exclusive", "--wrap=sleep 300"]
    job_id = int(cluster.exec(argv, user="trainer", check=True).stdout)
    deadline = time.monotonic() + 30
    while (job := gateway.job(job_id)).state is not JobState.RUNNING or job.flags:
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    return job


def grow(gateway: RemoteGateway, job: Job, nodes: int = 1) -> tuple[str, ...]:
    donor = DonorSpec(job.job_id, nodes, "main", exclusive=True)
    return tuple(gateway.grow_job(donor, 30.0))


def wait_for_size_in_database(cluster: E2eCluster, job_id: int, nodes: int) -> None:
    """Wait until slurmdbd knows the size of a job; changes of one second share a record."""
    argv = ["sacct", "-X", "-n", "-P", "-o", "nnodes", "-j", str(job_id)]

    def known() -> bool:
        sizes = cluster.exec(argv, check=True).stdout.split()
        return sizes[-1:] == [str(nodes)]

    wait_for(known, time.monotonic() + 10, "slurmdbd does not hear of the new size")


def daemon_pids(cluster: E2eCluster, name: str) -> list[int]:
    return [pid for pid in cluster.pids_on(CONTROLLER) if name_of(pid) == name]


def test_shrinks_again_and_again(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    assert gateway.config().slurmdbd
    job = running(cluster, gateway, 4)
    for kept in (job.nodes[:3], job.nodes[:2], job.nodes[:1]):
        gateway.set_job_nodes(job.job_id, kept)
        assert gateway.job(job.job_id).nodes == kept
    wait_for_size_in_database(cluster, job.job_id, 1)


def test_shrinks_and_grows_in_turn(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, 3)
    everything = {"n1", "n2", "n3", "n4", "n5"}
    for at in (2, 1):
        before = gateway.job(job.job_id).nodes
        kept = tuple(node for node in before if node != before[at])
        gateway.set_job_nodes(job.job_id, kept)
        # The node that has just left, or another: Slurm's choice.
        (new,) = grow(gateway, job)
        assert new in everything - {*kept}
        assert {*gateway.job(job.job_id).nodes} == {*kept, new}
    left = everything - {*gateway.job(job.job_id).nodes}
    assert {*grow(gateway, job, 2)} == left
    assert {*gateway.job(job.job_id).nodes} == everything


def test_outlives_the_controller(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    """The database's files stay; its daemons come with the machine."""
    job = running(cluster, gateway, 3)
    gateway.set_job_nodes(job.job_id, job.nodes[:2])
    wait_for_size_in_database(cluster, job.job_id, 2)
    cluster.restart_daemon("slurmctld")  # saves its state: some seconds of it may be lost else
    cluster.crash(CONTROLLER)
    cluster.boot(CONTROLLER)
    cluster.wait_idle(sorted({"n1", "n2", "n3", "n4", "n5"} - {*job.nodes}))
    wait_for_size_in_database(cluster, job.job_id, 2)
    with opened(cluster) as again:  # the first one was a process of the old machine
        again.set_job_nodes(job.job_id, job.nodes[:1])
    wait_for_size_in_database(cluster, job.job_id, 1)


def test_slurmdbd_can_be_restarted(cluster: E2eCluster) -> None:
    before = daemon_pids(cluster, "slurmdbd")
    cluster.restart_daemon("slurmdbd")
    after = daemon_pids(cluster, "slurmdbd")
    assert len(before) == len(after) == 1
    assert before != after
    assert cluster.exec(["sacctmgr", "-n", "-P", "list", "cluster"]).stdout.startswith(cluster.name)


def test_reset_brings_lost_daemons_back(cluster: E2eCluster) -> None:
    cluster.exec(["pkill", "-KILL", "slurmdbd|mariadbd"], check=True)
    wait_for(lambda: not daemon_pids(cluster, "mariadbd"), time.monotonic() + 5, "they live")
    cluster.reset()
    with opened(cluster) as gateway:
        job = running(cluster, gateway, 3)
        gateway.set_job_nodes(job.job_id, job.nodes[:2])
        gateway.set_job_nodes(job.job_id, job.nodes[:1])


def test_database_is_closed_to_users_and_runs_without_rights(cluster: E2eCluster) -> None:
    [pid] = daemon_pids(cluster, "mariadbd")
    assert Path(f"/proc/{pid}").stat().st_uid == DATABASE_UID
    connect = (
        "import socket, sys\nfor path in sys.argv[1:]: socket.socket(socket.AF_UNIX).connect(path)"
    )
    argv = ["python3", "-c", connect, str(cluster.layout.database_socket)]
    assert cluster.exec(argv).returncode == 0
    assert "PermissionError" in cluster.exec(argv, user="trainer").stderr
    configuration = ["cat", str(cluster.layout.slurmdbd_conf)]
    assert "Permission denied" in cluster.exec(configuration, user="trainer").stderr


def test_down_leaves_nothing_and_up_works_after_everything_was_killed(make_cluster) -> None:
    start = time.monotonic()
    cluster = make_cluster(nodes=2, accounting=True)
    assert time.monotonic() - start < 10
    init = cluster._store.cluster_init()
    init.kill()
    assert init.wait_gone(10)
    DevCluster.up(cluster.spec)
    assert hostnames(cluster, "-N2") == ["n1", "n2"]
    [database] = daemon_pids(cluster, "mariadbd")
    cluster.down()
    assert traces(cluster.name, cluster.layout.root) == NO_TRACES
    assert database not in all_pids()
