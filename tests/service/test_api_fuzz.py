"""Whatever is sent: never a 5xx, never a change, and memory stays bounded."""

from __future__ import annotations

import json
import resource
import string
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from api_requests import Served, request, serve, signed_headers
from api_samples import sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpresume.api.model import SERVED, load_model

MODEL = load_model()
OPERATIONS = st.sampled_from(sorted(SERVED))
FUZZ = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["", "x", "\ud800", "a" * 70_000, 2**31, -1, 10**30, 1e308]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("api")) as served:
        yield served


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=30) as client:
        yield client


def send(served: Served, http: httpx.Client, operation: str, body: bytes) -> httpx.Response:
    """Sign what is sent: a fuzzer without a key gets no further than the signature."""
    response = http.post(served.url, content=body, headers=signed_headers(served, operation, body))
    check(response)
    return response


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    assert response.headers["x-amzn-requestid"]
    document = response.json()
    assert isinstance(document, dict)
    if response.status_code != 200:
        assert document["__type"]
        assert len(response.content) < 20_000


@FUZZ
@given(operation=OPERATIONS, body=st.binary(max_size=2000))
def test_bytes(served: Served, http: httpx.Client, operation: str, body: bytes) -> None:
    assert send(served, http, operation, body).status_code == 400
    assert served.service.changes == []


@FUZZ
@given(operation=OPERATIONS, text=st.text(alphabet='{}[]":,\\u0d8aeE+-.1nulltrue\x00 '))
def test_what_looks_like_json(
    served: Served, http: httpx.Client, operation: str, text: str
) -> None:
    send(served, http, operation, text.encode())
    assert served.service.changes == []


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@FUZZ
@given(data=st.data())
def test_a_good_request_with_one_thing_wrong(
    served: Served, http: httpx.Client, data: st.DataObject
) -> None:
    """Some other JSON in the place of one member, at any depth."""
    operation = data.draw(OPERATIONS)
    document = sample(MODEL.operations[operation].input_shape)
    places = list(_places(document))
    path = data.draw(st.sampled_from(places))
    wrong = _put(document, path, data.draw(JSON))
    response = send(served, http, operation, _encoded(wrong))
    # The samples name a cluster that is not there, and CreateCluster's breaks rules.
    assert response.status_code == 400 or not SERVED[operation]
    assert served.service.changes == []


@FUZZ
@given(data=st.data())
def test_a_change_is_made_exactly_when_it_is_answered(
    served: Served, http: httpx.Client, data: st.DataObject
) -> None:
    """The seed's request with some other JSON in one place; now and then that is a good one."""
    document = request()
    path = data.draw(st.sampled_from(list(_places(document))))
    value = data.draw(JSON | st.sampled_from([1, 2, "x", "Compute", "ml.c5.xlarge", {}, []]))
    try:
        response = send(served, http, "CreateCluster", _encoded(_put(document, path, value)))
        made = ["create"] if response.status_code == 200 else []
        assert served.service.changes == made
    finally:
        served.service.kept.clear()
        served.service.changes.clear()


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list):
        yield from _places(value[0], (*path, 0))


def _put(root: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    step, *rest = path
    if isinstance(root, dict):
        return {**root, step: _put(root[step], tuple(rest), value)}
    return [_put(root[0], tuple(rest), value), *root[1:]]


@FUZZ
@given(data=st.data())
def test_a_member_twice(served: Served, http: httpx.Client, data: st.DataObject) -> None:
    text = json.dumps(request())
    member = data.draw(st.sampled_from(["ClusterName", "InstanceCount", "NodeType", "Slurm"]))
    value = data.draw(st.sampled_from(["1", '"x"', "null", "{}", "[]"]))
    doubled = text.replace(f'"{member}":', f'"{member}": {value}, "{member}":', 1)
    assert doubled != text
    response = send(served, http, "CreateCluster", doubled.encode())
    assert response.json()["__type"] == "SerializationException"
    assert served.service.changes == []


@FUZZ
@given(
    name=st.sampled_from(
        ["authorization", "x-amz-date", "x-amz-target", "content-type", "x-amz-content-sha256"]
    ),
    value=st.text(alphabet=string.printable.strip() + "äé ", max_size=300),
)
def test_any_header(served: Served, http: httpx.Client, name: str, value: str) -> None:
    headers = {k.lower(): v for k, v in signed_headers(served, "ListClusters", b"{}").items()}
    raw = [(k, v) for k, v in headers.items() if k != name] + [(name, value.strip())]
    encoded = [(k.encode(), v.encode("latin-1")) for k, v in raw]
    response = http.post(served.url, content=b"{}", headers=encoded)
    check(response)
    assert response.status_code in (400, 403, 404)


@FUZZ
@given(operation=OPERATIONS, token=st.text(max_size=100))
def test_any_token(served: Served, http: httpx.Client, operation: str, token: str) -> None:
    body = _encoded({"NextToken": token, "ClusterName": "x", "ClientToken": token})
    send(served, http, operation, body)
    assert served.service.changes == []


DEEP = [
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'{"InstanceGroups":' + b"[" * 500_000,
    b'{"InstanceGroups":[' + b"{}," * 300_000 + b"{}]}",
    b'{"InstanceGroups":[' + b'{"a":{}},' * 100_000 + b"{}]}",
    b'{"Tags":[' + b'{"Key":"a","Value":"b"},' * 40_000 + b"{}]}",
    b'{"ClusterName":"' + b"a-" * 500_000 + b'"}',
    b'{"ClusterName":"' + b"\\u0000" * 170_000 + b'"}',
    b'{"' + b'a":1,"'.join(str(n).encode() for n in range(80_000)) + b'":1}',
    b"9" * 1_000_000,
    b'{"a":' + b"9" * 1_000_000 + b"}",
    b" " * 1_048_576,
    b"{" * 2_000_000,
]


@pytest.mark.parametrize("body", DEEP, ids=lambda body: repr(body[:24]))
def test_huge_and_deep_bodies_stay_within_bounds(
    served: Served, http: httpx.Client, body: bytes
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        response = send(served, http, "ListClusters", body + b" " * _)
        assert response.status_code in (400, 413)
        response = send(served, http, "CreateCluster", body + b" " * _)
        assert response.status_code in (400, 413)
    assert served.service.changes == []
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mib < 200


def test_a_good_request_is_still_served(served: Served, http: httpx.Client) -> None:
    response = send(served, http, "CreateCluster", _encoded(request()))
    assert response.status_code == 200
    assert served.service.changes == ["create"]
