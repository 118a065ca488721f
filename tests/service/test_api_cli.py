"""The real aws command line against the server: the seed's two commands, as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_memory import REGION
from api_requests import SEED_REQUEST, Served, serve

AWS = Path(sys.executable).with_name("aws")

#: The seed's second command, word for word.
SECOND = """
aws sagemaker create-cluster \\
 --cluster-name $HP_CLUSTER_NAME \\
 --instance-groups '[ { "InstanceGroupName": "controller-machine", "InstanceType": "ml.c5.xlarge",
 "InstanceCount": 1, "SlurmConfig": {"NodeType": "Controller"}, "LifeCycleConfig": {
 "SourceS3Uri": "s3://'$BUCKET_NAME'", "OnCreate": "on_create.sh" },
 "ExecutionRole": "'$EXECUTION_ROLE'", "ThreadsPerCore": 2 }, { "InstanceGroupName":
 "my-login-group", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1, "SlurmConfig":
 {"NodeType": "Login"}, "LifeCycleConfig": { "SourceS3Uri": "s3://'$BUCKET_NAME'", "OnCreate":
 "on_create.sh" }, "ExecutionRole": "'$EXECUTION_ROLE'", "ThreadsPerCore": 1 }, {
 "InstanceGroupName": "worker-group-1", "InstanceType": "ml.c5.xlarge", "MinInstanceCount": 1,
 "InstanceCount": 2, "SlurmConfig": { "NodeType": "Compute", "PartitionNames": ["p1"] },
 "LifeCycleConfig": { "SourceS3Uri": "s3://'$BUCKET_NAME'", "OnCreate": "on_create.sh" },
 "ExecutionRole": "'$EXECUTION_ROLE'", "ThreadsPerCore": 1 } ]' \\
 --vpc-config '{ "SecurityGroupIds": ["'$SECURITY_GROUP'"], "Subnets": ["'$SUBNET'"] }' \\
 --node-provisioning-mode Continuous
"""


def _aws_command() -> list[str]:
    """The aws command line of this environment's Python, wherever its packages are."""
    if AWS.exists():
        return [str(AWS)]
    return [sys.executable, "-c", "import sys; from awscli.clidriver import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("api")) as served:
        yield served


@pytest.fixture
def environment(served: Served, tmp_path: Path) -> dict[str, str]:
    """Nothing but the server: its key file is the client's credentials file."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_SHARED_CREDENTIALS_FILE": str(served.keys_file),
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL_SAGEMAKER": served.url,
        "AWS_MAX_ATTEMPTS": "1",
        "HP_CLUSTER_NAME": "second",
        "BUCKET_NAME": "bucket",
        "EXECUTION_ROLE": "arn:aws:iam::111122223333:role/r",
        "SECURITY_GROUP": "sg-12345678",
        "SUBNET": "subnet-12345678",
    }


def aws(environment: dict[str, str], *arguments: str, fails: bool = False) -> Any:
    """The answer as JSON, or what stands on stderr where the command has to fail."""
    done = subprocess.run(
        [*_aws_command(), "sagemaker", *arguments, "--output", "json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    # Version 1 of the command line ends with 255 where version 2 has 254.
    assert done.returncode in ((254, 255) if fails else (0,)), done.stderr
    return done.stderr if fails else json.loads(done.stdout)


def test_the_first_command_and_what_follows(
    served: Served, environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "create_cluster.json"
    file.write_text(json.dumps(SEED_REQUEST))
    del environment["AWS_ENDPOINT_URL_SAGEMAKER"]
    arn = aws(
        environment,
        "create-cluster",
        "--cli-input-json",
        f"file://{file}",
        "--endpoint-url",
        served.url,
    )["ClusterArn"]
    environment["AWS_ENDPOINT_URL"] = served.url
    name = ("--cluster-name", "my-training-cluster")
    served.service.settle(arn)
    assert aws(environment, "describe-cluster", *name)["ClusterStatus"] == "InService"
    # The command line follows the tokens by itself.
    nodes = aws(environment, "list-cluster-nodes", "--cluster-name", arn, "--page-size", "5")
    assert len(nodes["ClusterNodeSummaries"]) == 18
    two = aws(environment, "list-cluster-nodes", *name, "--max-items", "2")
    rest = aws(environment, "list-cluster-nodes", *name, "--starting-token", two["NextToken"])
    assert len(two["ClusterNodeSummaries"]) == 2
    assert len(rest["ClusterNodeSummaries"]) == 16
    worker = nodes["ClusterNodeSummaries"][-1]["InstanceId"]
    replaced = aws(environment, "batch-replace-cluster-nodes", *name, "--node-ids", worker)
    assert replaced["Successful"] == [worker]
    group = dict(SEED_REQUEST["InstanceGroups"][2], InstanceCount=3)
    aws(environment, "update-cluster", *name, "--instance-groups", json.dumps([group]))
    found = aws(environment, "describe-cluster", *name)["InstanceGroups"]
    assert {g["InstanceGroupName"]: g["TargetCount"] for g in found}["worker-gpu-a"] == 3
    assert aws(environment, "list-cluster-events", *name)["Events"]
    assert aws(environment, "delete-cluster", *name)["ClusterArn"] == arn
    text = aws(environment, "describe-cluster", "--cluster-name", "nope", fails=True)
    assert "(ResourceNotFound)" in text


def test_the_second_command_runs_word_for_word(
    served: Served, environment: dict[str, str], tmp_path: Path
) -> None:
    command = tmp_path / "bin" / "aws"
    command.parent.mkdir()
    words = " ".join(f"'{word}'" for word in _aws_command())
    command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    command.chmod(0o755)
    environment["PATH"] = f"{command.parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", SECOND], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    record = served.service.cluster(json.loads(done.stdout)["ClusterArn"])
    assert [(g.spec.name, g.target_count, g.min_count) for g in record.groups] == [
        ("controller-machine", 1, 1),
        ("my-login-group", 1, 1),
        ("worker-group-1", 2, 1),
    ]


def test_a_wrong_request_and_a_wrong_key_are_told(
    served: Served, environment: dict[str, str], tmp_path: Path
) -> None:
    text = aws(environment, "create-cluster", "--cluster-name", "x", fails=True)
    assert "(ValidationException)" in text
    assert "NodeProvisioningMode has to be Continuous" in text
    assert "has no InstanceGroup with Controller node type." in text
    text = aws(environment, "list-clusters", "--no-sign-request", fails=True)
    assert "(MissingAuthenticationToken)" in text
