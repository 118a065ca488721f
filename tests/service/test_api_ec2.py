"""A cluster's whole life on EC2: the aws command line, the API, the engine, the EC2 provider.

Simulated are the machines. EC2 and S3 are moto's: an instance is a row there, it boots nothing,
so no slurmd can start and no Slurm is managed here (tests/e2e/test_provision.py has that). A
lifecycle script runs on this host, in a folder that stands for its machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from api_requests import SEED_REQUEST, group
from botocore.exceptions import ClientError
from moto import mock_aws, settings
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from provision_service import PACE, QUICK, until
from sqlalchemy import select

from hpresume.api.keys import load_keys, write_key
from hpresume.controller import config as controller
from hpresume.controller.api import open_api
from hpresume.providers.config import open_provider
from hpresume.provision.setup import open_provisioning
from hpresume.provision.tables import BillRow
from hpresume.store import Store, open_store

REGION = "us-east-1"
NAME = SEED_REQUEST["ClusterName"]
WORKERS = "worker-gpu-a"
BUCKET = "amzn-s3-demo-bucket"
SCRIPT = b"#!/bin/sh\ncd ../.. && echo done >> ran\n"

#: In the place of ssh: a machine is a folder, and the paths of one are below it.
ON_MACHINE = """\
#!/bin/sh
home=$0.d/$1 && shift && mkdir -p "$home"
exec /bin/sh -c "$(echo "$*" | sed "s#/var/lib/hpresume#$home#g; s#/opt/ml#$home/ml#g")"
"""


class Cloud:
    """An account of EC2 with a subnet, a launch template, and a bucket with a script."""

    def __init__(self) -> None:
        self.ec2 = boto3.client("ec2", region_name=REGION)
        vpc = self.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        subnet = self.ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]
        self.subnet = subnet["SubnetId"]
        self.ec2.create_launch_template(
            LaunchTemplateName="plain", LaunchTemplateData={"ImageId": "ami-12345678"}
        )
        s3 = boto3.client("s3", region_name=REGION)
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="lifecycle-scripts/src/on_create.sh", Body=SCRIPT)

    def instances(self, *states: str) -> list[dict[str, Any]]:
        pages = self.ec2.get_paginator("describe_instances").paginate()
        found = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
        return [i for i in found if i["State"]["Name"] in (states or ("running",))]

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Running instances by the node they are for."""
        found = self.instances()
        assert len({node_of(i) for i in found}) == len(found), "two machines of one node"
        return {node_of(i): i for i in found}

    def free(self, address: str) -> None:
        """EC2 deletes a terminated instance's interface after a while; moto keeps it for ever."""
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][REGION]
        for key, interface in list(backend.enis.items()):
            if interface.private_ip_address == address:
                del backend.enis[key]
        backend.get_subnet(self.subnet).del_subnet_ip(address)

    def give_to_another(self, address: str) -> None:
        """An interface of somebody else's has the address."""
        self.free(address)
        self.ec2.create_network_interface(SubnetId=self.subnet, PrivateIpAddress=address)
        # moto's subnets count addresses of instances only
        ec2_backends[DEFAULT_ACCOUNT_ID][REGION].get_subnet(self.subnet).request_ip(address, None)


def tags_of(instance: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance["Tags"]}


def node_of(instance: dict[str, Any]) -> str:
    return tags_of(instance)["hpresume:node"]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    # moto takes any instance type otherwise; now one that has a known one in it
    monkeypatch.setattr(settings, "EC2_ENABLE_INSTANCE_TYPE_VALIDATION", True)
    with mock_aws():
        yield Cloud()


class Site:
    """What ``hpresume controller`` serves, from its file, but for node recovery."""

    def __init__(self, folder: Path, cloud: Cloud) -> None:
        self.cloud = cloud
        self.machines = folder / "on_machine.d"
        on_machine = folder / "on_machine"
        on_machine.write_text(ON_MACHINE)
        on_machine.chmod(0o755)
        self.keys = folder / "api-keys"
        key_id = write_key(self.keys, "alice")
        self.config = controller.parse(
            {
                "provider": {
                    "type": "ec2", "cluster": "research", "launch_template": "plain",
                    "subnet": cloud.subnet, "region": REGION,
                },
                "provision": {
                    "run_on": [str(on_machine), "{machine}"], "logs": str(folder / "logs"),
                },
                "api": {
                    "port": 0, "keys": str(self.keys), "secret": str(folder / "api-secret"),
                },
            },
            "controller.toml",
        )  # fmt: skip
        self.store: Store = open_store(f"sqlite:///{folder}/controller.db")
        provider = open_provider("ec2", self.config.provider)
        assert self.config.provision is not None
        quick = replace(self.config.provision, policy=QUICK, pace=PACE)
        service, self._engine = open_provisioning(quick, self.store, provider)
        assert self.config.api is not None
        self._server = open_api(self.config.api, service)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._engine.run, args=(self._stop,))
        self.client = boto3.client(
            "sagemaker", endpoint_url=self._server.url, region_name=REGION,
            aws_access_key_id=key_id, aws_secret_access_key=load_keys(self.keys)[key_id],
        )  # fmt: skip

    def __enter__(self) -> Site:
        self._server.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._stop.set()
        self._engine.wake()
        self._thread.join(10)
        self.store.close()

    def aws(self, *arguments: str) -> Any:
        command = Path(sys.executable).with_name("aws")
        code = "import sys; from awscli.clidriver import main; sys.exit(main())"
        line = [str(command)] if command.exists() else [sys.executable, "-c", code]
        environ = {
            "PATH": os.environ["PATH"], "AWS_SHARED_CREDENTIALS_FILE": str(self.keys),
            "AWS_PROFILE": "alice", "AWS_DEFAULT_REGION": REGION,
        }  # fmt: skip
        done = subprocess.run(
            [*line, "sagemaker", *arguments, "--endpoint-url", self._server.url],
            env=environ, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def counts(self) -> dict[str, tuple[int, int]]:
        groups = self.client.describe_cluster(ClusterName=NAME)["InstanceGroups"]
        return {g["InstanceGroupName"]: (g["CurrentCount"], g["TargetCount"]) for g in groups}

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Nodes of the API by their logical ids."""
        pages = self.client.get_paginator("list_cluster_nodes").paginate(
            ClusterName=NAME, IncludeNodeLogicalIds=True
        )
        found = [node for page in pages for node in page["ClusterNodeSummaries"]]
        return {node["NodeLogicalId"]: node for node in found}

    def node(self, logical_id: str) -> dict[str, Any]:
        answer = self.client.describe_cluster_node(ClusterName=NAME, NodeLogicalId=logical_id)
        return answer["NodeDetails"]

    def is_whole(self, count: int) -> bool:
        """Every node is up, and EC2 has an instance for each and no other."""
        nodes = self.nodes().values()
        return (
            len(nodes) == count
            and all(node["InstanceStatus"]["Status"] == "Running" for node in nodes)
            and {node["InstanceId"] for node in nodes}
            == {instance["InstanceId"] for instance in self.cloud.instances()}
        )

    def open_bills(self) -> set[str]:
        """Machines that are metered now."""
        with self.store.read() as session:
            return set(
                session.scalars(select(BillRow.machine_id).where(BillRow.ended_at.is_(None)))
            )


@pytest.fixture
def site(tmp_path: Path, cloud: Cloud) -> Iterator[Site]:
    with Site(tmp_path, cloud) as site:
        yield site


def test_a_clusters_life_on_ec2(site: Site, cloud: Cloud, tmp_path: Path) -> None:
    file = tmp_path / "create_cluster.json"
    file.write_text(json.dumps(SEED_REQUEST))
    site.aws("create-cluster", "--cli-input-json", f"file://{file}")
    until(lambda: site.is_whole(18), 60)
    assert site.client.describe_cluster(ClusterName=NAME)["ClusterStatus"] == "InService"
    assert site.counts() == {"controller-group": (1, 1), "login-group": (1, 1), WORKERS: (16, 16)}
    names = ["controller-group-1", "login-group-1", *(f"{WORKERS}-{n}" for n in range(1, 17))]
    first = cloud.nodes()
    assert sorted(first) == sorted(names)
    # EC2's own names of the types, which are those of the request without "ml."
    assert Counter(instance["InstanceType"] for instance in first.values()) == {
        "m5.xlarge": 2, "p5.48xlarge": 16,
    }  # fmt: skip
    tags = tags_of(first[f"{WORKERS}-1"])
    assert (tags["hpresume:cluster"], tags["hpresume:group"]) == ("research", WORKERS)
    for node in site.nodes().values():
        machine = site.machines / node["InstanceId"]
        assert (machine / "ran").read_text() == "done\n"
        seen = json.loads((machine / "ml/config/resource_config.json").read_text())
        assert seen["ClusterConfig"]["ClusterName"] == NAME

    fewer = group(WORKERS, 4, "Compute")
    site.client.update_cluster(ClusterName=NAME, InstanceGroups=[fewer])
    until(lambda: site.is_whole(6), 30)
    assert site.counts()[WORKERS] == (4, 4)
    assert len(cloud.instances("terminated")) == 12
    more = group(WORKERS, 6, "Compute")
    site.client.update_cluster(ClusterName=NAME, InstanceGroups=[more])
    until(lambda: site.is_whole(8), 30)

    # replaced: another machine under the name, at the address once EC2 has it free again
    logical = next(i for i, n in site.nodes().items() if n["InstanceGroupName"] == WORKERS)
    before = site.node(logical)
    address = before["PrivatePrimaryIp"]
    name = next(n for n, i in cloud.nodes().items() if i["InstanceId"] == before["InstanceId"])
    assert cloud.nodes()[name]["PrivateIpAddress"] == address
    others = {n: i["InstanceId"] for n, i in cloud.nodes().items() if n != name}
    site.aws(
        "batch-replace-cluster-nodes", "--cluster-name", NAME, "--node-ids", before["InstanceId"]
    )
    held = f"address {address} is still that of {before['InstanceId']}"
    until(lambda: held in site.node(logical)["InstanceStatus"].get("Message", ""), 30)
    assert name not in cloud.nodes()
    cloud.free(address)
    until(lambda: site.is_whole(8), 30)
    after = cloud.nodes()[name]
    assert after["InstanceId"] != before["InstanceId"]
    assert after["PrivateIpAddress"] == address == site.node(logical)["PrivatePrimaryIp"]
    assert {n: i["InstanceId"] for n, i in cloud.nodes().items() if n != name} == others

    # taken away by EC2 itself, and its address by somebody else: the name stays
    cloud.give_to_another(address)
    cloud.ec2.terminate_instances(InstanceIds=[after["InstanceId"]])
    until(lambda: site.is_whole(8) and cloud.nodes()[name] != after, 30)
    assert cloud.nodes()[name]["PrivateIpAddress"] != address
    assert cloud.nodes()[name]["PrivateIpAddress"].startswith("10.9.1.")
    assert site.open_bills() == {instance["InstanceId"] for instance in cloud.instances()}

    site.client.delete_cluster(ClusterName=NAME)

    def is_gone() -> bool:
        try:
            site.client.describe_cluster(ClusterName=NAME)
        except ClientError as error:
            return error.response["Error"]["Code"] == "ResourceNotFound"
        return False

    until(is_gone, 30)
    every = cloud.instances("pending", "running", "stopped", "shutting-down", "terminated")
    assert {instance["State"]["Name"] for instance in every} == {"terminated"}
    # 18, two more, one replaced and one lost: one for each launch that was ever asked for
    assert len(every) == len({tags_of(i)["hpresume:token"] for i in every}) == 22
    assert site.open_bills() == set()


def test_a_type_that_ec2_does_not_have_is_told(site: Site, cloud: Cloud) -> None:
    """The refusal is final for a controller: the cluster is Failed and says why."""
    unknown = group("controller-group", 1, "Controller", InstanceType="ml.trn2.3xlarge")
    groups = [unknown, *SEED_REQUEST["InstanceGroups"][1:]]
    site.client.create_cluster(**{**SEED_REQUEST, "InstanceGroups": groups})
    said = until(lambda: site.client.describe_cluster(ClusterName=NAME).get("FailureMessage"), 30)
    assert site.client.describe_cluster(ClusterName=NAME)["ClusterStatus"] == "Failed"
    assert "InvalidInstanceType" in said
    assert "trn2.3xlarge" in said
    assert cloud.instances() == []
