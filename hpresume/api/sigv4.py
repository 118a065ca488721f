"""Signature version 4, checked: who sent a request, when, and that nobody altered it.

botocore does the arithmetic: its own signer computes the signature of the request as it was
received, and the two are compared in constant time. Texts are AWS's where they are known.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from hpresume.api.errors import ApiError

ALGORITHM = "AWS4-HMAC-SHA256"

#: Greatest difference between the date of a request and the server's clock, both ways (s).
#: SageMaker's reference, RequestExpired: "more than 15 minutes".
MAX_SKEW = 15 * 60.0

#: Headers that decide what a request means; a second one would be ambiguous.
_SINGLE = frozenset(
    {
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
        "x-amz-target",
    }
)

_PARAMETERS = ("Credential", "SignedHeaders", "Signature")
_DATE = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_MAX_AUTHORIZATION = 4096


@dataclass(frozen=True)
class Head:
    """A request without its body: header names in small letters, as often as they came."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """Value of a header, the first one if there are several."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True)
class Claim:
    """What a request says about its signature; nothing of it is proven yet."""

    key_id: str
    scope_date: str
    region: str
    signed_headers: tuple[str, ...]
    signature: str
    timestamp: str
    time: float


class _Signer(SigV4Auth):  # type: ignore[misc]
    """botocore's signer over exactly the headers that the sender has signed."""

    def headers_to_sign(self, request: Any) -> HTTPHeaders:
        headers = HTTPHeaders()
        for name, value in request.headers.items():
            headers[name.lower()] = value
        return headers


def claim(head: Head, *, region: str, service: str, now: float) -> Claim:
    """What the headers say, checked as far as it goes without key and body.

    ``now`` is Unix time (s). Raises MissingAuthenticationToken, IncompleteSignature,
    InvalidSignatureException, UnrecognizedClientException or RequestExpired.
    """
    counts: dict[str, int] = {}
    for name, _ in head.headers:
        counts[name] = counts.get(name, 0) + 1
    for name in _SINGLE:
        if counts.get(name, 0) > 1:
            raise ApiError("MalformedHttpRequestException", f"header {name} is there twice")
    authorization = head.get("authorization")
    if authorization is None:
        raise ApiError("MissingAuthenticationToken", "Missing Authentication Token")
    parameters = _parameters(authorization)
    timestamp = head.get("x-amz-date")
    if timestamp is None:
        raise ApiError(
            "IncompleteSignature",
            "Authorization header requires existence of a 'X-Amz-Date' header.",
        )
    if head.get("x-amz-security-token") is not None:
        raise ApiError(
            "UnrecognizedClientException",
            "The security token included in the request is invalid: "
            "this server knows no temporary credentials.",
        )
    key_id, scope_date = _scope(parameters["Credential"], region, service)
    time = _time(timestamp)
    if timestamp[:8] != scope_date:
        raise ApiError(
            "InvalidSignatureException",
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date "
            f"from HTTP: '{scope_date}' != '{timestamp[:8]}', from '{timestamp}'.",
        )
    _check_skew(timestamp, time, now)
    return Claim(
        key_id=key_id,
        scope_date=scope_date,
        region=region,
        signed_headers=_signed_headers(parameters["SignedHeaders"], head),
        signature=parameters["Signature"],
        timestamp=timestamp,
        time=time,
    )


def verify(
    head: Head, body: bytes, claimed: Claim, keys: Mapping[str, str], *, service: str
) -> None:
    """Raise unless the claimed key has signed exactly this request.

    UnrecognizedClientException for a key that is not known, else InvalidSignatureException.
    """
    secret = keys.get(claimed.key_id)
    if secret is None:
        raise ApiError(
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
        )
    expected = _signature(head, body, claimed, secret, service)
    if not hmac.compare_digest(expected.encode(), claimed.signature.encode()):
        raise ApiError(
            "InvalidSignatureException",
            "The request signature we calculated does not match the signature you provided. "
            "Check your AWS Secret Access Key and signing method.",
        )
    digest = head.get("x-amz-content-sha256")
    if digest is not None and digest != hashlib.sha256(body).hexdigest():
        # botocore trusts this header, and so would take an altered body.
        raise ApiError(
            "InvalidSignatureException",
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )


def _signature(head: Head, body: bytes, claimed: Claim, secret: str, service: str) -> str:
    signer = _Signer(Credentials(claimed.key_id, secret), service, claimed.region)
    headers = {
        name: ",".join(value for key, value in head.headers if key == name)
        for name in claimed.signed_headers
    }
    # The URL gives no more than the path: the host is among the signed headers. A plain
    # "http" makes botocore hash the body.
    request = AWSRequest(
        method=head.method, url=f"http://host{head.path}", headers=headers, data=body
    )
    request.context["timestamp"] = claimed.timestamp
    string_to_sign = signer.string_to_sign(request, signer.canonical_request(request))
    return str(signer.signature(string_to_sign, request))


def _parameters(authorization: str) -> dict[str, str]:
    algorithm, _, rest = authorization.strip().partition(" ")
    if algorithm != ALGORITHM:
        raise ApiError(
            "IncompleteSignature", f"Unsupported AWS 'algorithm': '{_shown(algorithm)}'."
        )
    found: dict[str, str] = {}
    if len(rest) <= _MAX_AUTHORIZATION:
        for part in rest.split(","):
            name, equals, value = part.strip().partition("=")
            if not equals or name in found:
                raise ApiError(
                    "IncompleteSignature",
                    f"'{_shown(part.strip())}' not a valid key=value pair (missing equal-sign or "
                    "given twice) in Authorization header.",
                )
            found[name] = value.strip()
    missing = [name for name in _PARAMETERS if not found.get(name)]
    if missing:
        raise ApiError(
            "IncompleteSignature",
            " ".join(f"Authorization header requires '{name}' parameter." for name in missing),
        )
    return found


def _scope(credential: str, region: str, service: str) -> tuple[str, str]:
    parts = credential.split("/")
    if len(parts) != 5 or not all(parts):
        raise ApiError(
            "IncompleteSignature",
            "Credential must have exactly 5 slash-delimited elements, "
            f"e.g. keyid/date/region/service/term, got '{_shown(credential)}'.",
        )
    key_id, date, its_region, its_service, terminator = parts
    if its_region != region:
        problem = (
            f"Credential should be scoped to a valid region, not '{_shown(its_region)}': "
            f"this server is {region}."
        )
    elif its_service != service:
        problem = f"Credential should be scoped to correct service: '{service}'."
    elif terminator != "aws4_request":
        problem = (
            "Credential should be scoped with a valid terminator: 'aws4_request', "
            f"not '{_shown(terminator)}'."
        )
    else:
        return key_id, date
    raise ApiError("InvalidSignatureException", problem)


def _time(timestamp: str) -> float:
    if _DATE.fullmatch(timestamp):
        try:
            parsed = datetime.strptime(timestamp, "%Y%m%dT%H%M%SZ")
            return parsed.replace(tzinfo=UTC).timestamp()
        except ValueError:
            pass
    raise ApiError(
        "IncompleteSignature",
        "Date must be in ISO-8601 'basic format'. "
        f"Got '{_shown(timestamp)}'. See http://en.wikipedia.org/wiki/ISO_8601",
    )


def _check_skew(timestamp: str, time: float, now: float) -> None:
    if abs(now - time) <= MAX_SKEW:
        return
    clock = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    what = "expired" if time < now else "not yet current"
    side = "earlier" if time < now else "later"
    raise ApiError(
        "RequestExpired",
        f"Signature {what}: {timestamp} is {side} than {clock} by more than "
        f"{MAX_SKEW / 60:g} min. Check the clocks.",
    )


def _signed_headers(text: str, head: Head) -> tuple[str, ...]:
    names = tuple(text.split(";"))
    if list(names) != sorted(set(names)) or not all(_HEADER.fullmatch(name) for name in names):
        raise ApiError(
            "IncompleteSignature",
            "SignedHeaders have to be names in small letters, sorted, each one once.",
        )
    present = {name for name, _ in head.headers}
    for name in names:
        if name not in present:
            raise ApiError(
                "InvalidSignatureException", f"'{name}' is a 'SignedHeader', but is not there."
            )
    # AWS's rule (IAM user guide, "Create a signed AWS API request"): host, content-type
    # if there is one, and all x-amz-* headers have to be signed.
    needed = {name for name in present if name.startswith("x-amz-") or name == "content-type"}
    for name in sorted(needed | {"host", "x-amz-date"}):
        if name not in names:
            raise ApiError(
                "InvalidSignatureException",
                f"'{_shown(name)}' must be a 'SignedHeader' in the AWS Authorization.",
            )
    return names


def _shown(text: str) -> str:
    return text if len(text) <= 64 else text[:63] + "…"
