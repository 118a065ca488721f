"""A real server for boto3, in memory; every answer is validated with the model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from api_requests import SEED_NAME, Served, request, serve

from hpresume.api.model import load_model
from hpresume.api.walker import violations

MODEL = load_model()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("api")) as served:
        yield served


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """The operations that were answered well."""
    return set()


def _validate(event_name: str, response_dict: dict[str, Any], seen: set[str]) -> None:
    """What came over the wire against the model: required, enum, pattern, sizes, unknown."""
    operation = event_name.rpartition(".")[2]
    document = json.loads(response_dict["body"])
    assert response_dict["headers"]["x-amzn-requestid"]
    assert response_dict["headers"]["content-type"] == "application/x-amz-json-1.1"
    if response_dict["status_code"] == 200:
        shape = MODEL.operations[operation].output_shape
        found = violations(shape, document)
        assert [v.text for v in found] == [], document
        seen.add(operation)
    else:
        assert set(document) <= {"__type", "message", "Message"}
        assert document["__type"]


@pytest.fixture
def served(running: Served) -> Served:
    """The server with nothing in it."""
    running.service.kept.clear()
    running.service.changes.clear()
    return running


@pytest.fixture(scope="module")
def shared_client(running: Served, seen: set[str]) -> Any:
    """A client whose every answer is validated; making one takes half a second."""
    client = running.client(attempts=3)

    def validate(response_dict: dict[str, Any], event_name: str, **_: Any) -> None:
        _validate(event_name, response_dict, seen)

    client.meta.events.register("before-parse.sagemaker.*", validate)
    return client


@pytest.fixture
def client(served: Served, shared_client: Any) -> Any:
    return shared_client


@pytest.fixture
def cluster(client: Any, served: Served) -> str:
    """The seed's cluster, InService; its ARN."""
    # Another tag each time: the same request in the same second would have to wait for the next.
    tag = {"Key": "test", "Value": str(uuid.uuid4())}
    arn = str(client.create_cluster(**request(Tags=[tag]))["ClusterArn"])
    served.service.settle(SEED_NAME)
    served.service.find(SEED_NAME).tags = {}
    return arn
