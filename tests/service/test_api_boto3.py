"""The protocol as boto3 sees it: what is refused, and what is done once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from api_requests import SEED_REQUEST, Served, request
from api_requests import error_code as code
from botocore.exceptions import ClientError


def test_what_is_not_served_is_an_unknown_operation(client: Any) -> None:
    with pytest.raises(ClientError, match="ListTrainingJobs is not served here") as caught:
        client.list_training_jobs()
    assert caught.value.response["Error"]["Code"] == "UnknownOperationException"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
    assert code(client.list_cluster_scheduler_configs) == "UnknownOperationException"


def test_what_clients_do_not_check_the_server_does(client: Any, served: Served) -> None:
    document = request()
    document["InstanceGroups"][2]["InstanceCount"] = 9999
    document["InstanceGroups"][2]["SlurmConfig"]["NodeType"] = "Worker"
    with pytest.raises(ClientError, match="2 validation errors detected") as caught:
        client.create_cluster(**document)
    assert caught.value.response["Error"]["Code"] == "ValidationException"
    assert served.service.changes == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"secret": "x" * 40}, "InvalidSignatureException"),
        ({"key_id": "HPRK0000000000000000"}, "UnrecognizedClientException"),
        ({"region": "eu-west-1"}, "InvalidSignatureException"),
        ({"aws_session_token": "token"}, "UnrecognizedClientException"),
    ],
    ids=str,
)
def test_a_client_that_is_not_ours_is_told_so(
    served: Served, config: dict[str, Any], expected: str
) -> None:
    client = served.client(**config)
    assert code(client.create_cluster, **SEED_REQUEST) == expected
    assert served.service.changes == []


def test_the_same_change_twice_in_a_second_is_done_twice(
    client: Any, cluster: str, served: Served
) -> None:
    """botocore signs with whole seconds; what a retry is and what a new call has to be told."""
    served.service.changes.clear()
    for _ in range(3):
        client.add_tags(ResourceArn=cluster, Tags=[{"Key": "a", "Value": "b"}])
    assert served.service.changes == ["tags"] * 3


def test_a_retry_with_the_same_signature_is_done_once(
    client: Any, cluster: str, served: Served
) -> None:
    """The answer is lost on the way; botocore asks again within the second."""
    served.service.changes.clear()
    lost: list[int] = []
    frozen = datetime.now(UTC).replace(tzinfo=None)

    def lose(**_: Any) -> float | None:
        if lost:
            return None
        lost.append(1)
        return 0.0  # seconds until the retry

    client.meta.events.register_first("needs-retry.sagemaker.AddTags", lose)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.auth.get_current_datetime", lambda: frozen)
        answer = client.add_tags(ResourceArn=cluster, Tags=[{"Key": "a", "Value": "b"}])
    client.meta.events.unregister("needs-retry.sagemaker.AddTags", lose)
    assert answer["ResponseMetadata"]["RetryAttempts"] == 1
    assert answer["Tags"] == [{"Key": "a", "Value": "b"}]
    assert served.service.changes == ["tags"]
