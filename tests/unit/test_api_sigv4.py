"""Signatures: what botocore signs is taken, whatever else is there is refused by its name."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from hpresume.api.errors import ApiError
from hpresume.api.sigv4 import MAX_SKEW, Head, claim, verify

KEY, SECRET = "HPRK0123456789ABCDEF", "a-secret-of-at-least-20-characters"
KEYS = {KEY: SECRET, "HPRKFEDCBA9876543210": "another-secret-of-another-key"}
NOW = datetime(2026, 3, 1, 0, 0, 30, tzinfo=UTC).timestamp()
BODY = b'{"ClusterName":"c"}'
HEADERS = {
    "Host": "127.0.0.1:8600",
    "Content-Type": "application/x-amz-json-1.1",
    "X-Amz-Target": "SageMaker.DescribeCluster",
}


class _At(SigV4Auth):
    """botocore's signer at a time of the test's choice."""

    def __init__(self, time: float, region: str, service: str, credentials: Credentials) -> None:
        super().__init__(credentials, service, region)
        self._time = time

    def add_auth(self, request: Any) -> None:
        timestamp = datetime.fromtimestamp(self._time, UTC).strftime("%Y%m%dT%H%M%SZ")
        request.context["timestamp"] = timestamp
        self._modify_request_before_signing(request)
        canonical = self.canonical_request(request)
        signature = self.signature(self.string_to_sign(request, canonical), request)
        self._inject_signature_to_request(request, signature)


def signed(
    *,
    time: float = NOW,
    region: str = "us-west-2",
    service: str = "sagemaker",
    key: str = KEY,
    secret: str = SECRET,
    token: str | None = None,
    body: bytes = BODY,
    headers: dict[str, str] = HEADERS,
    unsigned: dict[str, str] | None = None,
) -> dict[str, str]:
    """Headers of a request as botocore signs it."""
    request = AWSRequest("POST", "http://127.0.0.1:8600/", headers=headers, data=body)
    _At(time, region, service, Credentials(key, secret, token)).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()} | (unsigned or {})


def check(headers: dict[str, str], body: bytes = BODY, now: float = NOW) -> None:
    head = Head("POST", "/", tuple(headers.items()))
    claimed = claim(head, region="us-west-2", service="sagemaker", now=now)
    verify(head, body, claimed, KEYS, service="sagemaker")


def code(headers: dict[str, str], body: bytes = BODY, now: float = NOW) -> tuple[str, str]:
    with pytest.raises(ApiError) as caught:
        check(headers, body, now)
    return caught.value.code, caught.value.message


def test_what_botocore_signs_is_taken() -> None:
    check(signed())
    check(signed(unsigned={"user-agent": "Boto3", "amz-sdk-invocation-id": "1"}))
    check(signed(body=b""), b"")
    check(signed(headers={**HEADERS, "X-Amz-Content-SHA256": hashlib.sha256(BODY).hexdigest()}))
    check(signed(headers={**HEADERS, "X-Amz-Meta": "  a   b  "}))


@pytest.mark.parametrize("skew", [-MAX_SKEW, MAX_SKEW, 0, 30])
def test_clocks_may_differ_by_fifteen_minutes(skew: float) -> None:
    check(signed(time=NOW + skew))


@pytest.mark.parametrize(
    ("skew", "text"), [(-MAX_SKEW - 1, "expired"), (MAX_SKEW + 1, "not yet current")]
)
def test_older_and_newer_requests_are_refused(skew: float, text: str) -> None:
    assert code(signed(time=NOW + skew))[0] == "RequestExpired"
    assert f"Signature {text}" in code(signed(time=NOW + skew))[1]


def without(name: str, **more: Any) -> dict[str, str]:
    headers = signed(**more)
    del headers[name]
    return headers


def altered(name: str, value: str, **more: Any) -> dict[str, str]:
    return {**signed(**more), name: value}


def authorization(old: str, new: str) -> dict[str, str]:
    headers = signed()
    assert old in headers["authorization"]
    return {**headers, "authorization": headers["authorization"].replace(old, new)}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (without("authorization"), "MissingAuthenticationToken"),
        (without("x-amz-date"), "IncompleteSignature"),
        (without("host"), "InvalidSignatureException"),
        (without("content-type"), "InvalidSignatureException"),
        (without("x-amz-target"), "InvalidSignatureException"),
        (altered("authorization", "Basic abc"), "IncompleteSignature"),
        (altered("authorization", ""), "IncompleteSignature"),
        (altered("authorization", "AWS4-HMAC-SHA256"), "IncompleteSignature"),
        (altered("authorization", "AWS4-HMAC-SHA256 " + "a=b, " * 5000), "IncompleteSignature"),
        (authorization("AWS4-HMAC", "AWS4-ECDSA-P256"), "IncompleteSignature"),
        (authorization("Signature=", "Nothing="), "IncompleteSignature"),
        (authorization("Credential=", "Credential=x, Credential="), "IncompleteSignature"),
        (authorization("/aws4_request", ""), "IncompleteSignature"),
        (authorization("/aws4_request", "/aws5_request"), "InvalidSignatureException"),
        (authorization("content-type;host", "host;content-type"), "IncompleteSignature"),
        (authorization("content-type;host", "Content-Type;host"), "IncompleteSignature"),
        (
            authorization("content-type;host", "content-type;cookie;host"),
            "InvalidSignatureException",
        ),
        (authorization("Signature=", "Signature=0"), "InvalidSignatureException"),
        (authorization("Signature=", "Signature=é"), "InvalidSignatureException"),
        (authorization("20260301", "20260302"), "InvalidSignatureException"),
        (altered("x-amz-date", "20260301T000031Z"), "InvalidSignatureException"),
        (altered("x-amz-date", "2026-03-01T00:00:30Z"), "IncompleteSignature"),
        (altered("x-amz-date", "20261301T000030Z"), "IncompleteSignature"),
        (altered("x-amz-date", "٢0260301T000030Z"), "IncompleteSignature"),
        (altered("x-amz-target", "SageMaker.DeleteCluster"), "InvalidSignatureException"),
        (altered("host", "elsewhere"), "InvalidSignatureException"),
        (signed(secret="x" * 30), "InvalidSignatureException"),
        (signed(key="HPRKFEDCBA9876543210"), "InvalidSignatureException"),
        (signed(key="HPRKUNKNOWN000000000"), "UnrecognizedClientException"),
        (signed(token="session"), "UnrecognizedClientException"),
        (signed(region="us-east-1"), "InvalidSignatureException"),
        (signed(service="ec2"), "InvalidSignatureException"),
        # What decides about the request has to be signed.
        (signed(unsigned={"x-amz-target2": "x"}), "InvalidSignatureException"),
        (
            signed(
                headers={k: v for k, v in HEADERS.items() if k != "Content-Type"},
                unsigned={"content-type": "application/x-amz-json-1.1"},
            ),
            "InvalidSignatureException",
        ),
    ],
    ids=str,
)
def test_each_fault_has_its_error(headers: dict[str, str], expected: str) -> None:
    assert code(headers)[0] == expected


def test_an_altered_body_is_refused() -> None:
    assert code(signed(), BODY + b" ")[0] == "InvalidSignatureException"


def test_the_digest_in_a_header_is_not_trusted() -> None:
    # botocore's canonical request takes the header's word for the body.
    digest = hashlib.sha256(BODY).hexdigest()
    headers = signed(headers={**HEADERS, "X-Amz-Content-SHA256": digest})
    found, text = code(headers, b'{"ClusterName":"other"}')
    assert found == "InvalidSignatureException"
    assert "x-amz-content-sha256" in text
    unsigned_payload = signed(headers={**HEADERS, "X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    assert code(unsigned_payload)[0] == "InvalidSignatureException"


@pytest.mark.parametrize("name", ["authorization", "host", "x-amz-date", "x-amz-target"])
def test_a_second_header_is_refused(name: str) -> None:
    headers = signed()
    head = Head("POST", "/", (*headers.items(), (name, headers[name])))
    with pytest.raises(ApiError) as caught:
        claim(head, region="us-west-2", service="sagemaker", now=NOW)
    assert caught.value.code == "MalformedHttpRequestException"


def test_a_header_of_botocores_list_of_unsigned_ones_may_be_signed_by_others() -> None:
    # Other SDKs sign User-Agent; botocore's own signer would leave it out and fail.
    import hmac

    headers = {**{k.lower(): v for k, v in HEADERS.items()}, "user-agent": "other-sdk/1"}
    headers["x-amz-date"] = "20260301T000030Z"
    names = sorted(headers)
    canonical = "\n".join(
        [
            "POST",
            "/",
            "",
            *(f"{n}:{headers[n]}" for n in names),
            "",
            ";".join(names),
            hashlib.sha256(BODY).hexdigest(),
        ]
    )
    scope = "20260301/us-west-2/sagemaker/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n20260301T000030Z\n{scope}\n{digest}"
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={KEY}/{scope},SignedHeaders={';'.join(names)},"
        f"Signature={signature}"
    )
    check(headers)
