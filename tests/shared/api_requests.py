"""Requests of the seed, and a real server on loopback for them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import httpx
import pytest
from api_memory import REGION, MemoryClusters
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from hpresume.api.app import Limits
from hpresume.api.keys import load_keys, write_key
from hpresume.api.server import ApiServer, ApiSettings

ROLE = "arn:aws:iam::111122223333:role/iam-role-for-cluster"
LIFECYCLE = {
    "SourceS3Uri": "s3://amzn-s3-demo-bucket/lifecycle-scripts/src/",
    "OnCreate": "on_create.sh",
}


def group(name: str, count: int, node_type: str, **more: Any) -> dict[str, Any]:
    """An instance group in the seed's form."""
    config: dict[str, Any] = {"NodeType": node_type}
    if node_type == "Compute":
        config["PartitionNames"] = ["gpu-training"]
    return {
        "InstanceGroupName": name,
        "InstanceType": "ml.p5.48xlarge" if node_type == "Compute" else "ml.m5.xlarge",
        "InstanceCount": count,
        "LifeCycleConfig": LIFECYCLE,
        "ExecutionRole": ROLE,
        "SlurmConfig": config,
        **more,
    }


SEED_NAME = "my-training-cluster"

#: The seed's first request, without the comment line that no client takes.
SEED_REQUEST: dict[str, Any] = {
    "ClusterName": SEED_NAME,
    "NodeProvisioningMode": "Continuous",
    "Orchestrator": {"Slurm": {}},
    "InstanceGroups": [
        group("controller-group", 1, "Controller"),
        group("login-group", 1, "Login"),
        group("worker-gpu-a", 16, "Compute"),
    ],
    "VpcConfig": {"SecurityGroupIds": ["sg-12345678"], "Subnets": ["subnet-12345678"]},
}


def request(**changes: Any) -> dict[str, Any]:
    """The seed's request with other members."""
    document = copy.deepcopy(SEED_REQUEST)
    document.update(changes)
    return document


@dataclass
class Served:
    """A running server, its state and a key for it."""

    url: str
    service: MemoryClusters
    key_id: str
    secret: str
    keys_file: Path
    server: ApiServer

    def client(self, **config: Any) -> Any:
        """A boto3 client of the server."""
        session = boto3.Session()
        return session.client(
            "sagemaker",
            endpoint_url=self.url,
            region_name=config.pop("region", REGION),
            aws_access_key_id=config.pop("key_id", self.key_id),
            aws_secret_access_key=config.pop("secret", self.secret),
            config=botocore.config.Config(
                retries={"total_max_attempts": config.pop("attempts", 1), "mode": "standard"},
                read_timeout=10,
            ),
            **config,
        )


@contextmanager
def serve(folder: Path, service: Any = None, **settings: Any) -> Iterator[Served]:
    """A server on a free port of loopback, with one key."""
    keys = folder / "keys"
    key_id = write_key(keys, "default")
    service = service if service is not None else MemoryClusters()
    complete = ApiSettings(
        keys=keys,
        secret=folder / "secret",
        region=REGION,
        port=0,
        limits=settings.pop("limits", Limits()),
        **settings,
    )
    with ApiServer(complete, service) as server:
        yield Served(server.url, service, key_id, load_keys(keys)[key_id], keys, server)


def signed_headers(
    served: Served, target: str, body: bytes, *, headers: dict[str, str] | None = None
) -> dict[str, str]:
    """Headers of a request as botocore signs it."""
    url = served.url + "/"
    given = {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": f"SageMaker.{target}",
        **(headers or {}),
    }
    signed = AWSRequest("POST", url, headers=given, data=body)
    credentials = Credentials(served.key_id, served.secret)
    SigV4Auth(credentials, "sagemaker", REGION).add_auth(signed)
    return dict(signed.headers.items())


def post(served: Served, target: str, body: bytes | dict[str, Any], **more: Any) -> httpx.Response:
    """A signed request with whatever body, without a client's own checks."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = signed_headers(served, target, content, **more)
    return httpx.post(
        served.url + "/", content=content, headers=headers, timeout=30, trust_env=False
    )


def error_code(call: Any, **members: Any) -> str:
    """The code of the error with which a call of boto3 ends."""
    with pytest.raises(ClientError) as caught:
        call(**members)
    return str(caught.value.response["Error"]["Code"])
