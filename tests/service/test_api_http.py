"""The endpoint as HTTP sees it: what is no request of ours, limits, replays, TLS, addresses."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_memory import MemoryClusters
from api_requests import SEED_REQUEST, Served, post, request, serve, signed_headers
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hpresume.api.app import Limits
from hpresume.api.keys import write_key
from hpresume.api.server import ApiServer, ApiSettings
from hpresume.errors import ConfigError, ResourceNotFoundError
from hpresume.provision.service import ClusterSpec

SPEC = ClusterSpec("my-training-cluster", {}, ())
TYPE = {"Content-Type": "application/x-amz-json-1.1"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = Limits(body=100_000, body_time=1.0)
    with serve(tmp_path_factory.mktemp("api"), limits=limits) as served:
        yield served


@pytest.fixture
def served(running: Served) -> Served:
    running.service.kept.clear()
    running.service.changes.clear()
    return running


def error(response: httpx.Response) -> str:
    assert response.headers["x-amzn-requestid"]
    return str(response.json()["__type"])


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {}),
        ("HEAD", "/", {}),
        ("PUT", "/", {}),
        ("OPTIONS", "/", {}),
        ("BREW", "/", {}),
        ("POST", "/other", {**TYPE, "X-Amz-Target": "SageMaker.ListClusters"}),
        ("POST", "/?Action=ListClusters", {**TYPE, "X-Amz-Target": "SageMaker.ListClusters"}),
        ("POST", "/", {}),
        ("POST", "/", TYPE),
        ("POST", "/", {**TYPE, "X-Amz-Target": "ListClusters"}),
        ("POST", "/", {**TYPE, "X-Amz-Target": "EC2.ListClusters"}),
        ("POST", "/", {**TYPE, "X-Amz-Target": "SageMaker."}),
        ("POST", "/", {**TYPE, "X-Amz-Target": "SageMaker.listclusters"}),
        ("POST", "/", {**TYPE, "X-Amz-Target": "SageMaker.CreateEndpoint"}),
        (
            "POST",
            "/",
            {"Content-Type": "application/json", "X-Amz-Target": "SageMaker.ListClusters"},
        ),
    ],
)
def test_what_is_no_operation_is_unknown(
    served: Served, method: str, path: str, headers: dict[str, str]
) -> None:
    response = httpx.request(method, served.url + path, headers=headers, trust_env=False)
    assert response.status_code == 404
    if method != "HEAD":
        assert error(response) == "UnknownOperationException"


def test_an_unsigned_request_is_refused_before_its_body_is_read(served: Served) -> None:
    headers = {**TYPE, "X-Amz-Target": "SageMaker.CreateCluster"}
    response = httpx.post(served.url, headers=headers, content=b"{" * 200_000, trust_env=False)
    assert (response.status_code, error(response)) == (403, "MissingAuthenticationToken")


def test_the_connection_goes_on_after_an_error(served: Served) -> None:
    """The body of a refused request is not taken for the next request."""
    smuggled = b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" * 2000
    headers = {**TYPE, "X-Amz-Target": "SageMaker.CreateCluster"}
    good = signed_headers(served, "ListClusters", b"{}")
    with httpx.Client(trust_env=False) as client:
        for _ in range(3):
            assert client.post(served.url, headers=headers, content=smuggled).status_code == 403
            answer = client.post(served.url, headers=good, content=b"{}")
            assert answer.json() == {"ClusterSummaries": []}


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    response = post(served, "CreateCluster", b"{" + b" " * 100_000 + b"}")
    assert (response.status_code, error(response)) == (413, "RequestEntityTooLargeException")

    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 1000

    headers = signed_headers(served, "CreateCluster", b"{}")
    response = httpx.post(served.url, headers=headers, content=endless(), trust_env=False)
    assert (response.status_code, error(response)) == (413, "RequestEntityTooLargeException")


def test_a_body_that_does_not_come_is_not_waited_for(served: Served) -> None:
    headers = signed_headers(served, "ListClusters", b"{}")
    host, port = served.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.putrequest("POST", "/", skip_host=True, skip_accept_encoding=True)
    for name, value in {**headers, "Host": f"{host}:{port}", "Content-Length": "2"}.items():
        connection.putheader(name, value)
    connection.endheaders(b"{")
    response = connection.getresponse()
    assert response.status == 408
    assert json.loads(response.read())["__type"] == "RequestTimeoutException"
    connection.close()


@pytest.mark.parametrize(
    "text", [b"", b"POST / HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]
)
def test_a_request_that_does_not_come_is_not_waited_for(tmp_path: Path, text: bytes) -> None:
    with serve(tmp_path, head_time=0.2) as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as silent:
            silent.sendall(text)
            while silent.recv(65536):
                pass  # the answer to a whole request; then the end


def test_a_connection_with_requests_is_kept(tmp_path: Path) -> None:
    with serve(tmp_path, head_time=0.2) as served:
        host, port = served.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.connect()
        connection.auto_open = False  # no second connection in the place of a closed one
        ends = time.monotonic() + 1.2
        while time.monotonic() < ends:
            connection.request("GET", "/")
            assert connection.getresponse().read()
        connection.close()


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_an_endless_body_costs_no_memory(served: Served, signed: bool, chunked: bool) -> None:
    size, part = 64 * 1024 * 1024, b"x" * 65536
    headers = {**TYPE, "X-Amz-Target": "SageMaker.ListClusters"}
    if signed:
        headers = signed_headers(served, "ListClusters", b"{}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def parts() -> Iterator[bytes]:
        for _ in range(size // len(part)):
            yield part

    headers = headers if chunked else {**headers, "Content-Length": str(size)}
    response = httpx.post(served.url, headers=headers, content=parts(), trust_env=False, timeout=60)
    assert response.status_code == (413 if signed else 403)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mib < 32


def test_compressed_and_doubled_are_refused(served: Served) -> None:
    response = post(served, "ListClusters", b"{}", headers={"Content-Encoding": "gzip"})
    assert (response.status_code, error(response)) == (400, "MalformedHttpRequestException")
    headers = [*signed_headers(served, "ListClusters", b"{}").items()]
    doubled = [*headers, ("X-Amz-Target", "SageMaker.DeleteCluster")]
    response = httpx.post(served.url, headers=doubled, content=b"{}", trust_env=False)
    assert (response.status_code, error(response)) == (400, "MalformedHttpRequestException")


def test_an_altered_body_is_refused_on_the_wire(served: Served) -> None:
    headers = signed_headers(served, "CreateCluster", json.dumps(SEED_REQUEST).encode())
    other = json.dumps(request(ClusterName="other")).encode()
    response = httpx.post(served.url, headers=headers, content=other, trust_env=False)
    assert (response.status_code, error(response)) == (403, "InvalidSignatureException")
    assert served.service.changes == []


def test_a_replay_changes_nothing(served: Served) -> None:
    body = json.dumps({"ClusterName": "my-training-cluster"}).encode()
    served.service.create_cluster(SPEC)
    recorded = signed_headers(served, "DeleteCluster", body)

    def send(**more: str) -> httpx.Response:
        return httpx.post(
            served.url, headers={**recorded, **more}, content=body, trust_env=False, timeout=10
        )

    first = send(**{"amz-sdk-invocation-id": "1"})
    assert first.status_code == 200
    served.service.kept.clear()
    served.service.create_cluster(SPEC)  # somebody has made it anew since
    assert send(**{"amz-sdk-invocation-id": "1"}).json() == first.json()
    assert error(send(**{"amz-sdk-invocation-id": "2"})) == "ThrottlingException"
    assert error(send()) == "ThrottlingException"
    assert served.service.changes.count("delete") == 1
    assert served.service.cluster("my-training-cluster").status == "Creating"


def test_a_failure_of_ours_is_one_5xx_and_is_not_kept_as_an_answer(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps(request(ClusterName="unlucky")).encode()
    headers = signed_headers(served, "CreateCluster", body) | {"amz-sdk-invocation-id": "1"}
    with monkeypatch.context() as patch:
        patch.setattr(served.service, "create_cluster", lambda _: 1 / 0)
        response = httpx.post(served.url, headers=headers, content=body, trust_env=False)
    assert (response.status_code, error(response)) == (500, "InternalFailure")
    assert "division" not in response.text
    assert response.headers["x-amzn-requestid"] in caplog.text
    response = httpx.post(served.url, headers=headers, content=body, trust_env=False)
    assert response.status_code == 200


def test_the_log_says_who_changed_what_and_no_secret(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="hpresume")
    good = post(served, "CreateCluster", request(ClusterName="logged"))
    bad = post(served, "DeleteCluster", {"ClusterName": "nope"})
    post(served, "ListClusters", {})
    lines = [r.getMessage() for r in caplog.records if r.name == "hpresume.api"]
    assert lines == [
        f"CreateCluster by {served.key_id}: done ({good.headers['x-amzn-requestid']})",
        f"DeleteCluster by {served.key_id}: ResourceNotFound ({bad.headers['x-amzn-requestid']})",
    ]
    assert served.secret not in caplog.text


def test_many_clients_at_once_are_all_answered(served: Served) -> None:
    headers = signed_headers(served, "ListClusters", b"{}")

    def ask(_: int) -> int:
        return httpx.post(
            served.url, headers=headers, content=b"{}", trust_env=False, timeout=30
        ).status_code

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(ask, range(64))) == {200}


class _Slow(MemoryClusters):
    """Holds every read until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()

    def cluster(self, ref: str) -> Any:
        self.entered.release()
        assert self.go.wait(20)
        raise ResourceNotFoundError(f"Cluster {ref} does not exist")


def test_more_than_can_wait_are_throttled(tmp_path: Path) -> None:
    service = _Slow()
    limits = Limits(workers=1, readers=1, waiting=1)
    with serve(tmp_path, service, limits=limits) as served, ThreadPoolExecutor(3) as pool:

        def ask() -> tuple[int, str]:
            response = post(served, "DescribeCluster", {"ClusterName": "x"})
            return response.status_code, error(response)

        first = pool.submit(ask)
        assert service.entered.acquire(timeout=20)
        second, third = pool.submit(ask), pool.submit(ask)
        done = next(f for f in _as_completed(second, third))
        assert done.result() == (400, "ThrottlingException")
        service.go.set()
        waited = third if done is second else second
        assert {first.result(20), waited.result(20)} == {(400, "ResourceNotFound")}


def _as_completed(*futures: Any) -> Iterator[Any]:
    from concurrent.futures import as_completed

    yield from as_completed(futures, timeout=20)


def test_clients_get_their_answers_while_the_server_stops(tmp_path: Path) -> None:
    service = _Slow()
    with ThreadPoolExecutor(1) as pool:
        with serve(tmp_path, service) as served:
            answer = pool.submit(post, served, "DescribeCluster", {"ClusterName": "x"})
            assert service.entered.acquire(timeout=20)
            service.go.set()
        assert answer.result(20).status_code == 400
    with pytest.raises(httpx.ConnectError):
        httpx.get(served.url, trust_env=False)


# addresses and TLS


def _settings(tmp_path: Path, **changes: Any) -> ApiSettings:
    keys = tmp_path / "keys"
    if not keys.exists():
        write_key(keys, "default")
    return ApiSettings(**{"keys": keys, "secret": tmp_path / "secret", "port": 0, **changes})


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_another_address_than_loopback_needs_tls(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="is not loopback"):
        ApiServer(_settings(tmp_path, host=host), MemoryClusters())
    with ApiServer(_settings(tmp_path, host=host, insecure=True), MemoryClusters()) as server:
        assert server.url.startswith("http://")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"host": "no.such.host.invalid"}, "no.such.host.invalid"),
        ({"port": 70000}, "70000"),
        ({"cert": Path("/nowhere/cert.pem")}, "TLS needs both"),
        ({"cert": Path("/nowhere/cert.pem"), "key": Path("/nowhere/key.pem")}, "/nowhere/key.pem"),
    ],
)
def test_a_bad_setting_is_one_clear_line(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        ApiServer(_settings(tmp_path, **changes), MemoryClusters())
    assert "\n" not in str(caught.value)


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*another port in "
        ):
            ApiServer(_settings(tmp_path, port=port), MemoryClusters())


def test_answers_do_not_wait_for_acknowledgements(tmp_path: Path) -> None:
    # asyncio sets TCP_NODELAY only on sockets that were made with TCP's number.
    with ApiServer(_settings(tmp_path), MemoryClusters()) as server:
        assert server._socket.proto == socket.IPPROTO_TCP


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1."""
    import ipaddress

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hpresume")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_file.touch(mode=0o600)
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file


def test_boto3_speaks_tls_with_the_server(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with serve(tmp_path, cert=cert, key=key) as served:
        assert served.url.startswith("https://")
        client = served.client(verify=str(cert))
        arn = client.create_cluster(**SEED_REQUEST)["ClusterArn"]
        assert client.describe_cluster(ClusterName=arn)["ClusterStatus"] == "Creating"
        host, port = served.url.removeprefix("https://").split(":")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with warnings.catch_warnings(action="ignore"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            pytest.raises(ssl.SSLError),
        ):
            old.wrap_socket(plain)
        client.close()


def test_a_key_that_others_can_read_and_one_of_another_certificate_are_refused(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    shared = tmp_path / "key.pem"
    shared.write_bytes(key.read_bytes())
    shared.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read the TLS key"):
        ApiServer(_settings(tmp_path, cert=cert, key=shared), MemoryClusters())
    with pytest.raises(ConfigError, match="not a certificate with its key"):
        ApiServer(_settings(tmp_path, cert=key, key=key), MemoryClusters())
