"""The seed's cluster from the real aws command line, on one ``hpresume controller``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest
from cluster import E2eCluster
from combined import EXAMPLES, GROUP, NAME, WORKERS, Site, fake_s3

from hpresume.provision.arn import instance_id

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 2, "gpus_per_node": 0, "slurmd_timeout": 6, "plugin": True}


@pytest.fixture(scope="module")
def site(module_cluster: E2eCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with fake_s3() as s3:
        site = Site(module_cluster, tmp_path_factory.mktemp("site"), s3)
        site.start()
        try:
            yield site
        finally:
            site.process.terminate()
            site.process.wait(timeout=20)
            site.close()


def test_the_seeds_request_brings_a_cluster_up(site: Site) -> None:
    answer = site.aws("create-cluster", "--cli-input-json", "file://examples/create_cluster.json")
    assert answer["ClusterArn"].startswith("arn:aws:sagemaker:us-east-1:")
    site.wait(lambda: site.running() == WORKERS, "the workers do not come up")
    said = site.client.describe_cluster(ClusterName=NAME)
    assert said["ClusterStatus"] == "InService"
    counts = {g["InstanceGroupName"]: (g["CurrentCount"], g["TargetCount"])
              for g in said["InstanceGroups"]}  # fmt: skip
    # as asked for, and as many as this machine has room for
    assert counts == {"controller-group": (1, 1), "login-group": (1, 1), GROUP: (3, 16)}
    assert site.partition("idle") == WORKERS
    for node in (*WORKERS, "login-group-1"):
        ran = site.cluster.exec(["cat", "/tmp/ran"], node, check=True).stdout
        assert ran == f"hello from {node}\n"


def test_the_commands_show_it(site: Site) -> None:
    (cluster,) = site.cli("clusters")
    assert (cluster["name"], cluster["status"], cluster["current"]) == (NAME, "InService", 5)
    workers = site.cli("groups", NAME)[2]
    assert (workers["group"], workers["partition"]) == (GROUP, "gpu-training")
    assert (workers["current"], workers["target"], workers["phases"]) == (3, 16, {})
    nodes = {line["node"]: line for line in site.cli("nodes", "--all")}
    assert nodes[WORKERS[0]]["group"] == f"{NAME}/{GROUP}"
    assert nodes["login-group-1"]["state"] == "not in Slurm"
    assert nodes["n1"]["group"] == ""


def test_the_example_job_runs_on_it(site: Site) -> None:
    home = site.cluster.home()
    batch = home / "batch.sh"
    shutil.copy(EXAMPLES / "batch.sh", batch)
    line = [
        "sbatch",
        "--wait",
        "-p",
        "gpu-training",
        "--chdir",
        str(home),
        "-o",
        "said",
        str(batch),
    ]
    done = site.cluster.exec([*line, "hostname"], user="trainer", timeout=60)
    said = (home / "said").read_text()
    assert done.returncode == 0, f"{done.stderr}\n{said}"
    assert len({line for line in said.splitlines() if line in WORKERS}) == 2, said


def test_a_crashed_worker_is_replaced_once(site: Site) -> None:
    node = WORKERS[1]
    before = site.machines(node)
    site.cluster.crash(node)
    # Slurm's own word takes it half a minute; test_recovery_down waits for that.
    site.mark_down(node)
    site.wait(lambda: len(site.events("node-replaced", node)) == 1, "it is not replaced")
    site.wait(lambda: len(site.bills(node)) == 2 and site.running() == WORKERS, "not taken over")
    (machine,) = site.machines(node)
    assert [machine] != before
    assert site.nodes()[node]["machine_id"] == machine
    (_, ended), (began, runs) = site.bills(node)
    assert ended is not None
    assert ended <= began
    assert runs is None
    assert site.cluster.exec(["cat", "/tmp/ran"], node).stdout == f"hello from {node}\n"
    done = site.cluster.exec(
        ["srun", "-p", "gpu-training", "-w", node, "hostname"], user="trainer", timeout=60
    )
    assert done.stdout == f"{node}\n", done.stderr


def test_a_batch_replacement_keeps_the_name(site: Site) -> None:
    node = WORKERS[0]
    before = site.machines(node)
    instance = instance_id(site.nodes()[node]["machine_id"])
    answer = site.aws("batch-replace-cluster-nodes", "--cluster-name", NAME, "--node-ids", instance)
    assert answer["Successful"] == [instance]
    site.wait(lambda: site.running() == WORKERS and site.machines(node) != before, "not replaced")
    assert len(site.machines(node)) == 1
    assert site.events("replace-begins", node) == ()  # recovery kept off
    site.wait(lambda: site.partition("idle") == WORKERS, "it takes no jobs")


def test_an_order_that_comes_while_a_node_is_rebooted_is_followed_after_it(site: Site) -> None:
    node = WORKERS[2]
    (before,) = site.machines(node)
    orders = len(site.events("node-replaced", node))
    instance = instance_id(site.nodes()[node]["machine_id"])
    answer = site.aws("batch-reboot-cluster-nodes", "--cluster-name", NAME, "--node-ids", instance)
    assert answer["Successful"] == [instance]
    site.cluster.exec(
        ["scontrol", "update", f"nodename={node}", "state=fail", "reason=Action:Replace"],
        check=True,
    )
    site.wait(lambda: len(site.events("node-replaced", node)) == orders + 1, "it is not replaced")
    site.wait(lambda: site.partition("idle") == WORKERS, "it takes no jobs")
    assert site.machines(node) != [before]
    assert len(site.machines(node)) == 1


def test_a_software_update_replaces_one_batch_at_a_time(site: Site) -> None:
    """The controller is killed meanwhile; a job ends in peace, others run on the rest."""
    gate = site.cluster.home() / "gate"
    busy = WORKERS[2]
    job = site.cluster.exec(
        ["sbatch", "--parsable", "-p", "gpu-training", "-w", busy, "-o", "/dev/null",
         "--wrap", f"while [ ! -e {gate} ]; do sleep 0.1; done"],
        user="trainer", check=True,
    ).stdout.strip()  # fmt: skip
    site.wait(lambda: state_of(site, job) == "RUNNING", "the job does not start")
    before = {node: site.machines(node) for node in WORKERS}
    orders = [site.events("replace-begins", node) for node in WORKERS]
    least = len(WORKERS)

    def replaced() -> list[str]:
        nonlocal least
        # Completing: where a job has just ended, which is in service all the same.
        up = site.partition("idle", "mixed", "allocated", "completing")
        least = min(least, len(up))
        return [node for node in WORKERS if not set(site.machines(node)) & set(before[node])]

    size = {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1}}
    site.aws(
        "update-cluster-software", "--cluster-name", NAME,
        "--instance-groups", json.dumps([{"InstanceGroupName": GROUP}]),
        "--deployment-config", json.dumps({"RollingUpdatePolicy": size}),
    )  # fmt: skip
    assert site.client.describe_cluster(ClusterName=NAME)["ClusterStatus"] == "SystemUpdating"
    site.wait(lambda: replaced() == WORKERS[:1], "the first batch is not replaced")
    site.process.kill()
    site.process.wait()
    site.start()
    site.wait(lambda: replaced() == WORKERS[:2], "the second batch is not replaced")
    site.wait(lambda: site.partition("draining", "drained") == [busy], "the last does not drain")
    assert state_of(site, job) == "RUNNING"
    done = site.cluster.exec(
        ["srun", "-p", "gpu-training", "-N2", "hostname"], user="trainer", timeout=60
    )
    assert sorted(done.stdout.split()) == WORKERS[:2], done.stderr
    gate.touch()
    site.wait(lambda: replaced() == WORKERS, "the last one is not replaced")
    assert state_of(site, job) in ("COMPLETED", "")
    site.wait(
        lambda: site.client.describe_cluster(ClusterName=NAME)["ClusterStatus"] == "InService",
        "the update does not end",
    )
    group = site.client.describe_cluster(ClusterName=NAME)["InstanceGroups"][2]
    assert (group["SoftwareUpdateStatus"], group["TargetStateCount"]) == ("Succeeded", 3)
    site.wait(lambda: site.partition("idle") == WORKERS, "they take no jobs")
    assert least >= len(WORKERS) - 1
    assert [len(site.machines(node)) for node in WORKERS] == [1, 1, 1]
    for node in WORKERS:
        assert site.cluster.exec(["cat", "/tmp/ran"], node).stdout == f"hello from {node}\n"
    assert [site.events("replace-begins", node) for node in WORKERS] == orders  # nor recovery


def test_a_health_check_finds_the_bad_node_and_recovery_mends_it(site: Site) -> None:
    bad = WORKERS[1]
    job = site.cluster.exec(
        ["sbatch", "--parsable", "-p", "gpu-training", "-w", WORKERS[0], "-o", "/dev/null",
         "--wrap", "sleep 600"],
        user="trainer", check=True,
    ).stdout.strip()  # fmt: skip
    site.wait(lambda: state_of(site, job) == "RUNNING", "the job does not start")
    assert checked(site, "InstanceStress", WORKERS[0]) == {WORKERS[0]: "was skipped"}
    assert state_of(site, job) == "RUNNING"
    site.cluster.exec(["scancel", job], check=True)
    site.wait(lambda: site.partition("idle") == WORKERS, "the job does not end")

    slow = ["tc", "qdisc", "add", "dev", "eth0", "root"]
    slow += ["tbf", "rate", "20mbit", "burst", "32kb", "latency", "400ms"]
    site.cluster.exec(slow, bad, check=True)
    try:
        found = checked(site, "InstanceStress", *WORKERS, also="InstanceConnectivity")
    finally:
        site.cluster.exec(["tc", "qdisc", "del", "dev", "eth0", "root"], bad)
    good = dict.fromkeys((WORKERS[0], WORKERS[2]), "has passed")
    assert found == {**good, bad: "has failed"}
    site.wait(lambda: len(site.events("node-rebooted", bad)) == 1, "it is not rebooted")
    site.wait(lambda: site.partition("idle") == WORKERS, "it does not come back")
    site.wait(lambda: site.running() == WORKERS, "it is not Running")
    shown = site.cluster.exec(["scontrol", "show", "reservation"]).stdout
    assert "hpresume-deep" not in shown


def checked(site: Site, *what: str, also: str = "") -> dict[str, str]:
    """What a health check of nodes says of each of them."""
    kind, *nodes = what
    ids = {instance_id(site.nodes()[node]["machine_id"]): node for node in nodes}
    part = {"InstanceGroupName": GROUP, "InstanceIds": list(ids), "DeepHealthChecks": [kind]}
    configurations = [part, {**part, "DeepHealthChecks": [also]}] if also else [part]
    site.aws(
        "start-cluster-health-check", "--cluster-name", NAME,
        "--deep-health-check-configurations", json.dumps(configurations),
    )  # fmt: skip
    listed = site.client.list_cluster_operations(ClusterName=NAME, Type="DeepHealthCheck")
    operation = listed["ClusterOperationSummaries"][0]["OperationId"]

    def status() -> str:
        one = site.client.describe_cluster_operation(ClusterName=NAME, OperationId=operation)
        return str(one["Status"])

    assert status() == "InProgress"
    shown = site.client.list_cluster_nodes(ClusterName=NAME)["ClusterNodeSummaries"]
    statuses = {n["InstanceId"]: n["InstanceStatus"]["Status"] for n in shown}
    assert {statuses[key] for key in ids} == {"DeepHealthCheckInProgress"}
    site.wait(lambda: status() == "Done", "the check does not end", 120)
    events = site.client.list_cluster_events(ClusterName=NAME, OperationId=operation)["Events"]
    return {
        ids[e["InstanceId"]]: e["Description"].rpartition(f"{GROUP} ")[2]
        for e in events if e["ResourceType"] == "Instance"
    }  # fmt: skip


def state_of(site: Site, job: str) -> str:
    done = site.cluster.exec(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"])
    return done.stdout.strip()


def test_another_count_changes_sinfo(site: Site) -> None:
    group = json.loads((EXAMPLES / "create_cluster.json").read_text())["InstanceGroups"][2]
    site.aws(
        "update-cluster", "--cluster-name", NAME,
        "--instance-groups", json.dumps([{**group, "InstanceCount": 1}]),
    )  # fmt: skip
    site.wait(lambda: len(site.partition()) == 1 and len(site.running()) == 1, "they do not leave")
    assert len(site.events("node-replaced", WORKERS[1])) == 1
