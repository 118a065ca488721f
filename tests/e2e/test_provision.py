"""Instance groups on a real Slurm: slurm.conf is merged and applied, nodes join, drain and go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import E2eCluster, wait_for
from provision_service import Served, allow, complete, served, until
from provision_world import group, spec, workers

from hpresume.errors import (
    ProviderRefusedError,
    SlurmError,
    SlurmTimeoutError,
    SlurmTransientError,
)
from hpresume.providers.devcluster import DevClusterProvider
from hpresume.providers.model import LaunchRequest, Machine
from hpresume.provision import devcluster
from hpresume.provision.lifecycle import LifecycleScripts
from hpresume.provision.pace import Pace
from hpresume.provision.policy import Policy
from hpresume.provision.ports import Hardware, NodeEntry, slurm_entries
from hpresume.provision.service import ClusterUpdate, NodeAction, NodeQuery
from hpresume.provision.slurm_conf import MARK
from hpresume.provision.slurm_side import LocalSlurm
from hpresume.store import open_store

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 2, "gpus_per_node": 2}

#: Nothing here waits for a pause of production.
POLICY = Policy(retry_s=0.5, retry_max_s=2.0, again_s=1.0)
PACE = Pace(look_s=0.5, configure_s=0.5, step_s=0.05, idle_s=0.2)

BAD_IMAGE = "ami-0badbadbad"

NOTE = "# the administrator's own line, with   blanks \t\n"


class WithImages(DevClusterProvider):
    """Hosts of a dev cluster have no images: one name stands for an image that is not there."""

    def launch(self, request: LaunchRequest) -> Machine:
        if request.image == BAD_IMAGE:
            raise ProviderRefusedError(f"there is no image {BAD_IMAGE}")
        return super().launch(request)


@pytest.fixture(scope="module")
def running(
    module_cluster: E2eCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """The seed's cluster on the dev cluster: a controller, a login node, two workers."""
    cluster = module_cluster
    conf = cluster.layout.slurm_conf
    original = NOTE + conf.read_text()
    conf.write_text(original)
    scripts = cluster.layout.homes / "scripts"
    scripts.mkdir()
    (scripts / "on_create.sh").write_text(
        "#!/bin/sh\n"
        'cp "$SAGEMAKER_RESOURCE_CONFIG_PATH" /tmp/seen.json\n'
        "echo hello from $(hostname) >> /tmp/ran\n"
    )
    lifecycle = {"SourceS3Uri": f"file://{scripts}", "OnCreate": "on_create.sh"}
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('db')}/controller.db")
    side = devcluster.slurm_of(cluster)
    programs = devcluster.HostPrograms(cluster)
    with served(
        store,
        WithImages(cluster),
        policy=POLICY,
        pace=PACE,
        slurm=lambda state: side,
        scripts=LifecycleScripts(programs, where=devcluster.where_of(cluster)),
        attributes=devcluster.attributes_of,
        default_partition="dev",
        hardware={"ml.c5.xlarge": Hardware("Gres=gpu:2")},
    ) as running:
        running.lifecycle = lifecycle
        running.original = original
        running.service.create_cluster(
            spec(
                group("controller", "Controller", 1, LifeCycleConfig=lifecycle),
                group("login", "Login", 1, LifeCycleConfig=None),
                workers(2, LifeCycleConfig=lifecycle),
            )
        )
        until(lambda: complete(running), 60)
        yield running


def scale(running: Served, count: int) -> None:
    group = workers(count, LifeCycleConfig=running.lifecycle)
    running.service.update_cluster("c1", ClusterUpdate({}, (group,)), allow)


def partition(cluster: E2eCluster, name: str) -> list[str]:
    done = cluster.exec(["sinfo", "-h", "-N", "-p", name, "-o", "%N"], check=True)
    return sorted(done.stdout.split())


def our_lines(cluster: E2eCluster) -> list[str]:
    return [line for line in text_of(cluster).splitlines(True) if line.endswith(f"# {MARK}\n")]


def text_of(cluster: E2eCluster) -> str:
    return cluster.layout.slurm_conf.read_text()


def test_a_job_runs_on_the_nodes_of_a_group(module_cluster: E2eCluster, running: Served) -> None:
    assert running.service.cluster("c1").status == "InService"
    assert partition(module_cluster, "p1") == ["workers-1", "workers-2"]
    done = module_cluster.exec(
        ["srun", "-p", "p1", "-N2", "hostname"], user="trainer", timeout=60, check=True
    )
    assert sorted(done.stdout.split()) == ["workers-1", "workers-2"], done.stderr


def test_its_gpus_are_slurms(module_cluster: E2eCluster, running: Served) -> None:
    done = module_cluster.exec(
        ["srun", "-p", "p1", "-N2", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES"],
        user="trainer",
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["0,1", "0,1"]


def test_scripts_ran_on_each_machine_with_their_configuration(
    module_cluster: E2eCluster, running: Served
) -> None:
    nodes = running.service.nodes("c1", NodeQuery(limit=9, group_contains="workers")).items
    for node in nodes:
        ran = module_cluster.exec(["cat", "/tmp/ran"], node.name, check=True).stdout
        assert ran == f"hello from {node.name}\n"
        seen = json.loads(module_cluster.exec(["cat", "/tmp/seen.json"], node.name).stdout)
        assert seen["ClusterConfig"]["ClusterName"] == "c1"
    kept = sorted((module_cluster.layout.logs / "lifecycle").rglob("*.log"))
    assert {node.instance_id for node in nodes} <= {path.stem for path in kept}


def test_only_our_entries_of_slurm_conf_changed(
    module_cluster: E2eCluster, running: Served
) -> None:
    text = text_of(module_cluster)
    assert text.startswith(NOTE)
    ours = our_lines(module_cluster)
    assert sorted(line.split()[0] for line in ours) == [
        "NodeName=workers-1",
        "NodeName=workers-2",
        "PartitionName=dev",
        "PartitionName=p1",
    ]
    before = Path(f"{module_cluster.layout.slurm_conf}.hpresume-before").read_text()
    foreign = [line for line in text.splitlines(True) if line not in ours]
    assert foreign == [line for line in before.splitlines(True) if not line.endswith(f"{MARK}\n")]


def test_more_nodes_join_while_a_job_runs_and_removed_ones_drain_first(
    module_cluster: E2eCluster, running: Served
) -> None:
    cluster = module_cluster
    gate = cluster.home() / "gate"
    # the newest go first
    up = [n for n in running.book.find("c1").nodes.values() if n.group == "workers"]
    stays, goes = (n.name for n in sorted(up, key=lambda n: (n.running_since, n.index)))
    job = cluster.exec(
        ["sbatch", "--parsable", "-p", "p1", "-w", goes, "-o", "/dev/null",
         "--wrap", f"while [ ! -e {gate} ]; do sleep 0.1; done"],
        user="trainer", check=True,
    ).stdout.strip()  # fmt: skip
    deadline = time.monotonic() + 30
    wait_for(lambda: state_of_job(cluster, job) == "RUNNING", deadline, "the job does not start")
    scale(running, 3)
    until(lambda: complete(running), 60)
    assert partition(cluster, "p1") == ["workers-1", "workers-2", "workers-3"]
    assert state_of_job(cluster, job) == "RUNNING"
    scale(running, 1)
    until(lambda: "DRAIN" in node_states(cluster).get(goes, ""), 30)
    until(lambda: partition(cluster, "p1") == ["workers-1", "workers-2"], 60)
    assert state_of_job(cluster, job) == "RUNNING"
    gate.touch()
    until(lambda: complete(running), 60)
    assert partition(cluster, "p1") == [stays]
    assert goes not in node_states(cluster)
    assert state_of_job(cluster, job) in ("COMPLETED", "")
    machines = {m.node for m in DevClusterProvider(cluster).list() if m.token}
    assert machines == {"controller-1", "login-1", stays}


def test_a_node_takes_no_job_before_its_scripts_have_ended(
    module_cluster: E2eCluster, running: Served
) -> None:
    cluster = module_cluster
    gate, scripts = cluster.layout.homes / "may-end", cluster.layout.homes / "late"
    scripts.mkdir()
    (scripts / "wait.sh").write_text(f"#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.1; done\n")
    lifecycle = {"SourceS3Uri": f"file://{scripts}", "OnCreate": "wait.sh"}
    late = group("late", "Compute", 1, partition="late", LifeCycleConfig=lifecycle)
    running.service.update_cluster("c1", ClusterUpdate({}, (late,)), allow)
    # Without an asterisk: its slurmd answers already.
    until(lambda: node_states(cluster).get("late-1") == "DRAINED", 60)
    shown = cluster.exec(["scontrol", "show", "node", "late-1"], check=True).stdout
    assert "Reason=hpresume: the lifecycle scripts run" in shown
    job = cluster.exec(
        ["sbatch", "--parsable", "-p", "late", "-o", "/dev/null", "--wrap", "true"],
        user="trainer",
        check=True,
    ).stdout.strip()
    assert state_of_job(cluster, job) == "PENDING"
    gate.touch()
    until(lambda: state_of_job(cluster, job) == "COMPLETED", 60)
    running.service.update_cluster("c1", ClusterUpdate({}, (), ("late",)), allow)
    until(lambda: complete(running) and "late" not in running.book.find("c1").groups, 60)


def test_a_replaced_node_comes_back_under_its_name_and_takes_jobs(
    module_cluster: E2eCluster, running: Served
) -> None:
    cluster = module_cluster
    scale(running, 2)
    until(lambda: complete(running), 60)
    (node,) = (
        n
        for n in running.service.nodes("c1", NodeQuery(limit=9, group_contains="workers")).items
        if n.name == "workers-1"
    )
    running.service.act_on_nodes(
        "c1",
        NodeAction.REPLACE,
        instance_ids=(node.instance_id,),
        logical_ids=(),
        judge=lambda record, found: tuple(found),
    )
    until(
        lambda: (
            running.service.node("c1", logical_id=node.logical_id).status == "Running"
            and running.service.node("c1", logical_id=node.logical_id).instance_id
            != node.instance_id
        ),
        60,
    )
    done = cluster.exec(
        ["srun", "-p", "p1", "-w", "workers-1", "hostname"], user="trainer", timeout=60, check=True
    )
    assert done.stdout.split() == ["workers-1"]
    assert cluster.exec(["cat", "/tmp/ran"], "workers-1").stdout == "hello from workers-1\n"


def test_a_software_update_that_fails_is_rolled_back(
    module_cluster: E2eCluster, running: Served
) -> None:
    cluster = module_cluster
    before = {n.name: n.machine_id for n in running.book.find("c1").nodes.values()}
    size = {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1}}
    document = {"ImageId": BAD_IMAGE, "DeploymentConfig": {"RollingUpdatePolicy": size}}
    running.service.update_software("c1", document, allow)
    until(lambda: running.service.cluster("c1").status == "RollingBack", 60)
    until(lambda: running.service.cluster("c1").status == "InService", 60)
    after = {n.name: n.machine_id for n in running.book.find("c1").nodes.values()}
    # nothing but the first batch was touched
    assert {name for name in after if after[name] != before[name]} == {"workers-1"}
    done = cluster.exec(
        ["srun", "-p", "p1", "-N2", "hostname"], user="trainer", timeout=60, check=True
    )
    assert sorted(done.stdout.split()) == ["workers-1", "workers-2"]


def test_a_rebooted_node_runs_no_scripts_again(module_cluster: E2eCluster, running: Served) -> None:
    cluster = module_cluster
    nodes = running.service.nodes("c1", NodeQuery(limit=9, group_contains="workers")).items
    (node,) = (node for node in nodes if node.name == "workers-1")
    before = boot_of(cluster, "workers-1")
    running.service.act_on_nodes(
        "c1",
        NodeAction.REBOOT,
        instance_ids=(node.instance_id,),
        logical_ids=(),
        judge=lambda record, found: tuple(found),
    )
    until(lambda: boot_of(cluster, "workers-1") != before, 60)
    until(lambda: complete(running), 60)
    after = running.service.node("c1", logical_id=node.logical_id)
    assert after.instance_id == node.instance_id
    # a reboot clears /tmp: a script that ran again would have written there
    assert cluster.exec(["ls", "/tmp"], "workers-1", check=True).stdout == ""
    done = cluster.exec(
        ["srun", "-p", "p1", "-w", "workers-1", "hostname"], user="trainer", timeout=60, check=True
    )
    assert done.stdout.split() == ["workers-1"]


class Killed(BaseException):
    """In place of kill -9."""


class Ends(devcluster.ControllerRunner):
    """Is killed where it would tell Slurm of the new file."""

    def check(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> str:
        if list(argv) == ["scontrol", "reconfigure"]:
            raise Killed
        return super().check(argv, timeout_s, cwd)


def test_what_was_installed_and_not_applied_is_applied_by_the_next_process(
    module_cluster: E2eCluster, running: Served
) -> None:
    """kill -9 between the new file and ``scontrol reconfigure``; no node comes or goes in it."""
    cluster = module_cluster
    conf = cluster.layout.slurm_conf
    now = slurm_entries(running.book.find("c1"), "dev")
    more = replace(now, partitions={**now.partitions, "late": ("workers-1",)})
    with pytest.raises(Killed):
        LocalSlurm(conf, Ends(cluster)).configure(more)
    assert "PartitionName=late " in conf.read_text()
    assert partition(cluster, "late") == []
    side = devcluster.slurm_of(cluster)
    side.configure(more)
    assert partition(cluster, "late") == ["workers-1"]
    side.configure(now)
    assert partition(cluster, "late") == []
    assert "late" not in conf.read_text()


def test_a_slurmctld_that_ended_over_a_half_done_change_is_started(
    module_cluster: E2eCluster, running: Served
) -> None:
    """kill -9 between the new file and what applies it, and somebody's reconfigure just then."""

    def killed() -> None:
        raise Killed

    cluster = module_cluster
    conf = cluster.layout.slurm_conf
    now = slurm_entries(running.book.find("c1"), "dev")
    more = replace(now, nodes=(*now.nodes, NodeEntry("workers-9", "10.0.0.9")))
    with pytest.raises(Killed):
        LocalSlurm(conf, Ends(cluster), killed).configure(more)  # from 23.11 nothing is restarted
    # what ends one until 23.11; later ones take the new nodes
    assert "NodeName=workers-9 " in conf.read_text()
    cluster.exec(["scontrol", "reconfigure"])
    side = devcluster.slurm_of(cluster)
    side.configure(more)
    assert "workers-9" in node_states(cluster)
    side.configure(now)
    assert "workers-9" not in node_states(cluster)


def test_a_slurmctld_that_somebody_stopped_is_left_alone(
    module_cluster: E2eCluster, running: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = module_cluster
    monkeypatch.setattr("hpresume.provision.slurm_side._READ_S", 2.0)
    now = slurm_entries(running.book.find("c1"), "dev")
    begun: list[str] = []
    side = LocalSlurm(
        cluster.layout.slurm_conf,
        devcluster.ControllerRunner(cluster),
        lambda: begun.append("restart"),
    )
    side.configure(now)
    cluster.exec(["scontrol", "shutdown", "slurmctld"], check=True)
    try:
        with pytest.raises((SlurmTransientError, SlurmTimeoutError)):
            side.configure(now)
    finally:
        cluster.restart_daemon("slurmctld")
    assert begun == []
    side.configure(now)


@pytest.mark.parametrize(
    "broken",
    [
        "NoSuchKey=1\n",
        "NodeName=n1 CPUs=2\n",
        "PartitionName=px Nodes=nobody[1-3]\n",
    ],
    ids=["unknown key", "node twice", "unknown nodes"],
)
def test_a_broken_slurm_conf_is_never_installed(
    module_cluster: E2eCluster, running: Served, broken: str
) -> None:
    """What an administrator has broken stays theirs: nothing is added to it, nothing applied."""
    cluster = module_cluster
    conf = cluster.layout.slurm_conf
    good = conf.read_text()
    try:
        conf.write_text(good + broken)
        side = devcluster.slurm_of(cluster)
        now = slurm_entries(running.book.find("c1"), "dev")
        more = replace(now, nodes=(*now.nodes, NodeEntry("workers-9", "10.0.0.9")))
        with pytest.raises(SlurmError, match=r"unrecognized key|not installed"):
            side.configure(more)
        assert conf.read_text() == good + broken
    finally:
        conf.write_text(good)
    assert partition(cluster, "p1") == ["workers-1", "workers-2"]


def test_deleting_the_cluster_leaves_the_administrators_file(
    module_cluster: E2eCluster, running: Served
) -> None:
    running.service.delete_cluster("c1", allow)
    until(lambda: not running.book.states, 60)
    until(lambda: our_lines(module_cluster) == [], 30)
    assert text_of(module_cluster) == running.original
    until(lambda: set(node_states(module_cluster)) == {"n1", "n2"}, 30)
    assert [m.node for m in DevClusterProvider(module_cluster).list() if m.token] == []


def node_states(cluster: E2eCluster) -> dict[str, str]:
    text = cluster.exec(["sinfo", "-h", "-N", "-o", "%N %T"], check=True).stdout
    return {line.split()[0]: line.split()[1].upper() for line in text.splitlines()}


def state_of_job(cluster: E2eCluster, job: str) -> str:
    done = cluster.exec(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"])
    return done.stdout.strip()


def boot_of(cluster: E2eCluster, node: str) -> str:
    (machine,) = (m for m in cluster.machines() if m.record.node == node and m.condition != "gone")
    init = cluster._store.running_init(node) if machine.condition == "running" else None
    return "" if init is None else str(init.pid)
