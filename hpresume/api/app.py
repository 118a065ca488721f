"""The endpoint: SageMaker's JSON 1.1 over HTTP, ``POST /``.

In this order, so that a request costs little until it is known to be a client's: method and
target, headers of the signature, a place in line, body (bounded in size and time), signature,
JSON, the model's constraints, rules, the handler.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hpresume.api import body as bodies
from hpresume.api import rules, sigv4
from hpresume.api.errors import ApiError, declared, from_service
from hpresume.api.handlers import HANDLERS, Call
from hpresume.api.model import ApiModel, Operation, load_model
from hpresume.api.replay import Answer, Entry, ReplayTable, repeat
from hpresume.api.tokens import PageTokens
from hpresume.api.walker import check_request
from hpresume.errors import ServiceError
from hpresume.provision.service import ClusterService

_LOG = logging.getLogger("hpresume.api")


@dataclass(frozen=True)
class Limits:
    """What the endpoint lets itself be made to do.

    Sizes in bytes, times in seconds. ``workers`` requests are worked on at once, ``readers``
    bodies held, ``waiting`` requests in line; memory is bounded by their product with the
    body.
    """

    body: int = bodies.MAX_BODY
    body_time: float = 10.0
    workers: int = 4
    readers: int = 16
    waiting: int = 512


@dataclass(frozen=True)
class Endpoint:
    """Everything that answering requests needs; ``clock`` gives Unix time (s)."""

    service: ClusterService
    keys: Mapping[str, str]
    tokens: PageTokens
    region: str
    model: ApiModel = field(default_factory=load_model)
    limits: Limits = field(default_factory=Limits)
    clock: Callable[[], float] = time.time
    replays: ReplayTable = field(default_factory=ReplayTable)


def build_app(endpoint: Endpoint) -> Starlette:
    """The ASGI application; one event loop has to run it."""
    return Starlette(routes=[Route("/{path:path}", _Front(endpoint))])


class _Front:
    """Takes requests in, in bounded numbers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._readers = asyncio.Semaphore(endpoint.limits.readers)
        self._workers = anyio.CapacityLimiter(endpoint.limits.workers)
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._response(Request(scope, receive))
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        """Answer one request, whatever it is."""
        request_id = str(uuid.uuid4())
        operation: Operation | None = None
        try:
            operation = self._operation(request)
            answer = await self._authenticated(request, operation, request_id)
        except ApiError as error:
            known = operation.errors if operation else frozenset()
            answer = _error_answer(declared(error, known))
        except ClientDisconnect:
            answer = _error_answer(
                ApiError("MalformedHttpRequestException", "the request ended within its body")
            )
        except Exception:
            _LOG.exception("request %s failed", request_id)
            answer = _error_answer(ApiError("InternalFailure", f"internal error, see {request_id}"))
        return Response(
            answer.body,
            status_code=answer.status,
            headers={
                "x-amzn-RequestId": request_id,
                "content-type": f"application/x-amz-json-{self._endpoint.model.json_version}",
            },
        )

    def _operation(self, request: Request) -> Operation:
        model = self._endpoint.model
        if request.scope["path"] != "/" or request.scope["query_string"]:
            raise _unknown("operations are asked for with POST /")
        if request.method != "POST":
            raise _unknown(f"{request.method} is no operation: use POST /")
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != f"application/x-amz-json-{model.json_version}":
            raise _unknown(
                f"the Content-Type has to be application/x-amz-json-{model.json_version}"
            )
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError("MalformedHttpRequestException", "compressed bodies are not taken")
        prefix, _, name = request.headers.get("x-amz-target", "").partition(".")
        if prefix != model.target_prefix or not name:
            raise _unknown(f"the X-Amz-Target has to be {model.target_prefix}.OPERATION")
        operation = model.operations.get(name)
        if operation is not None:
            return operation
        if name in model.known:
            raise _unknown(f"{name} is not served here: this server has the HyperPod operations")
        raise _unknown(f"{name[:64]!a} is no operation of this server's release of the API")

    async def _authenticated(
        self, request: Request, operation: Operation, request_id: str
    ) -> Answer:
        endpoint, limits = self._endpoint, self._endpoint.limits
        head = _head(request)
        service = endpoint.model.signing_name
        claimed = sigv4.claim(head, region=endpoint.region, service=service, now=endpoint.clock())
        if claimed.key_id not in endpoint.keys:
            sigv4.verify(head, b"", claimed, endpoint.keys, service=service)
        if self._waiting >= limits.waiting:
            raise ApiError("ThrottlingException", "Rate exceeded: too many requests at once")
        self._waiting += 1
        try:
            await self._readers.acquire()
        finally:
            self._waiting -= 1
        entry: Entry | None = None
        try:
            body = await _read(request, limits)
            sigv4.verify(head, body, claimed, endpoint.keys, service=service)
            if operation.changes:
                invocation = head.get("amz-sdk-invocation-id") or ""
                entry = endpoint.replays.begin(
                    claimed.signature,
                    invocation,
                    claimed.time + sigv4.MAX_SKEW + 1,
                    endpoint.clock(),
                )
                if entry is None:
                    return await self._change(operation, body, claimed, request_id)
            else:
                return await self._work(operation, body)
        finally:
            self._readers.release()
        answer = await repeat(entry, invocation)
        if answer is None:
            raise ApiError("ThrottlingException", "Rate exceeded: send the request again")
        return answer

    async def _change(
        self, operation: Operation, body: bytes, claimed: sigv4.Claim, request_id: str
    ) -> Answer:
        """Work on a change, and say in the log who asked for it.

        Its answer is kept for whoever sends the signature again.
        """
        answer: Answer | None = None
        outcome = "InternalFailure"
        try:
            answer = await self._work(operation, body)
            outcome = "done"
        except ApiError as error:
            error = declared(error, operation.errors)
            outcome = error.code
            if error.code != "ThrottlingException":
                answer = _error_answer(error)
            raise
        finally:
            self._endpoint.replays.finish(claimed.signature, answer)
            _LOG.info("%s by %s: %s (%s)", operation.name, claimed.key_id, outcome, request_id)
        return answer

    async def _work(self, operation: Operation, body: bytes) -> Answer:
        return await anyio.to_thread.run_sync(
            _answer, self._endpoint, operation, body, limiter=self._workers
        )


def _answer(endpoint: Endpoint, operation: Operation, body: bytes) -> Answer:
    """From a body that is a client's to the answer; runs in a thread."""
    request = bodies.without_nulls(bodies.parse(body))
    check_request(operation.input_shape, request)
    rules.check_request(operation.name, request)
    call = Call(operation.name, request, endpoint.service, endpoint.tokens)
    try:
        document = HANDLERS[operation.name](call)
    except ServiceError as error:
        raise from_service(error) from error
    return Answer(200, _encoded(document))


def _head(request: Request) -> sigv4.Head:
    headers = tuple(
        (name.decode("latin-1").lower(), value.decode("latin-1"))
        for name, value in request.scope["headers"]
    )
    return sigv4.Head(request.method, request.scope["path"], headers)


async def _read(request: Request, limits: Limits) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limits.body:
        raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_time):
            async for part in request.stream():
                size += len(part)
                if size > limits.body:
                    raise _too_large(limits)
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            "RequestTimeoutException", f"the body took longer than {limits.body_time:g} s"
        ) from None
    return b"".join(parts)


def _too_large(limits: Limits) -> ApiError:
    return ApiError(
        "RequestEntityTooLargeException", f"the body is larger than {limits.body} bytes"
    )


def _unknown(why: str) -> ApiError:
    return ApiError("UnknownOperationException", why)


def _error_answer(error: ApiError) -> Answer:
    return Answer(error.status, _encoded(error.document()))


def _encoded(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
