"""``POST /v1/reports``: where the supervisors of users speak to the controller.

A small endpoint of its own: MUNGE vouches for the sender, so it has neither keys nor
sessions. In this order, so that a request costs little until its sender is known:
headers, body (bounded in size and time), credential, then slurmctld is asked.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from typing import Protocol

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hpresume.api.connections import patient
from hpresume.errors import ConfigError, CredentialError, HpresumeError, MessageError
from hpresume.jobs.inbox import Reply
from hpresume.resume.message import MAX_BODY, PATH, Message, decode
from hpresume.slurm import credential

log = logging.getLogger(__name__)

#: Longest time for a body and, twice over, for the head before it (s); requests at work at
#: once, and requests let in.
_BODY_S = 5.0
_WORKERS = 8
_CONNECTIONS = 256

_SCHEME = "MUNGE "


class Takes(Protocol):
    """Whoever deals with messages."""

    def take(self, uid: int, message: Message) -> Reply:
        """Deal with a message of user ``uid``."""
        ...


def build_app(inbox: Takes, munge_socket: str = "") -> Starlette:
    """The ASGI application."""
    limiter = anyio.CapacityLimiter(_WORKERS)

    def deal(authorization: str, body: bytes) -> Reply:
        try:
            sender = credential.verify(authorization, body, socket=munge_socket)
        except CredentialError as error:
            log.warning("a report is refused: %s", error)
            return Reply(401, str(error))
        try:
            return inbox.take(sender.uid, decode(body))
        except MessageError as error:
            return Reply(400, str(error))
        except HpresumeError as error:
            log.warning("a report cannot be dealt with: %s", error)
            return Reply(503, "Slurm or the database does not answer: try again")

    async def reports(request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        if not authorization.startswith(_SCHEME):
            return _answer(Reply(401, "send Authorization: MUNGE and a credential"))
        try:
            async with asyncio.timeout(_BODY_S):
                body = await _body(request)
        except (TimeoutError, ClientDisconnect):
            return _answer(Reply(408, f"the body did not come within {_BODY_S:g} s"))
        if body is None:
            return _answer(Reply(413, f"a message has at most {MAX_BODY} bytes"))
        reply = await anyio.to_thread.run_sync(
            deal, authorization.removeprefix(_SCHEME).strip(), body, limiter=limiter
        )
        return _answer(reply)

    return Starlette(routes=[Route(PATH, reports, methods=["POST"])])


async def _body(request: Request) -> bytes | None:
    """The body; None for one that is too long."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            return None
        parts.append(part)
    return b"".join(parts)


def _answer(reply: Reply) -> Response:
    return JSONResponse({"message": reply.words}, status_code=reply.status)


def listen(address: str) -> socket.socket:
    """A socket at ``HOST:PORT`` (``[HOST]:PORT``); ConfigError where that cannot be."""
    host, _, port = address.rpartition(":")
    try:
        info = socket.getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(info[0], info[1])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(info[4])
        made.listen(_CONNECTIONS)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"reports cannot be taken at {address}: {error}") from None
    return made


class ReportServer:
    """The endpoint in a thread of its own, on a socket that listens already."""

    def __init__(self, inbox: Takes, listening: socket.socket, munge_socket: str = "") -> None:
        self._socket = listening
        config = uvicorn.Config(
            build_app(inbox, munge_socket),
            http=patient(_BODY_S),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=2,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._socket.close()

    def _run(self) -> None:
        serve: Callable[..., None] = self._server.run
        serve(sockets=[self._socket])
