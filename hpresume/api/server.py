"""The API as a server: where it listens, with or without TLS, and its own thread.

Without TLS it listens on loopback only, unless the administrator says otherwise: signatures prove
who asks, but everything that is said can be read on the way.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from hpresume.api.app import Endpoint, Limits, build_app
from hpresume.api.connections import patient
from hpresume.api.keys import load_keys
from hpresume.api.tokens import PageTokens, load_secret
from hpresume.errors import ConfigError, HpresumeError
from hpresume.provision.service import ClusterService

_LOG = logging.getLogger("hpresume.api")

#: Most connections; more are answered 503, which SDKs try again.
_MAX_CONNECTIONS = 1000

#: Longest headers in bytes.
_MAX_HEADERS = 16 * 1024

#: How long an idle connection is kept, and requests in work at the end are waited for (s).
_KEEP_ALIVE = 30
_SHUTDOWN = 5

_BACKLOG = 256


@dataclass(frozen=True)
class ApiSettings:
    """Where the API listens and what it needs.

    ``keys`` is the file of access keys (``hpresume.api.keys``), ``secret`` the file of the page
    tokens' secret, made where there is none. ``port`` 0 takes a free one. ``cert`` and ``key`` are
    PEM files; the key's must be private. ``insecure`` allows another address than loopback
    without TLS. ``head_time`` bounds the wait for the head of a request (s, up to twice that).
    """

    keys: Path
    secret: Path
    region: str = "us-east-1"
    host: str = "127.0.0.1"
    port: int = 8600
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False
    head_time: float = 20.0
    limits: Limits = field(default_factory=Limits)


class ApiServer:
    """The API in a thread of its own; ``with`` starts and stops it."""

    def __init__(self, settings: ApiSettings, service: ClusterService) -> None:
        """Check the settings and open the port; raises ``ConfigError``."""
        self._tls = _tls_files(settings)
        endpoint = Endpoint(
            service=service,
            keys=load_keys(settings.keys),
            tokens=PageTokens(load_secret(settings.secret)),
            region=settings.region,
            limits=settings.limits,
        )
        for name in endpoint.model.missing:
            _LOG.warning(
                "botocore %s does not know %s yet: it is answered as unknown",
                endpoint.model.release,
                name,
            )
        self._socket = _listen(settings)
        self._server = uvicorn.Server(_uvicorn_config(endpoint, self._tls, settings.head_time))
        self._thread = threading.Thread(target=self._run, name="hpresume-api", daemon=True)
        self._error: BaseException | None = None

    @property
    def url(self) -> str:
        """What clients give as ``--endpoint-url``."""
        host, port = self._socket.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{host}:{port}"

    def start(self) -> None:
        """Serve until ``stop``. The port is open already: nobody is turned away meanwhile."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests, let those in work end, and close the port."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(timeout=_SHUTDOWN + 5)
        self._socket.close()
        if self._error is not None:
            raise HpresumeError(f"the API ended with an error: {self._error}") from self._error

    def __enter__(self) -> ApiServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:
            _LOG.exception("the API ended")
            self._error = error


def _uvicorn_config(
    endpoint: Endpoint, tls: tuple[Path, Path] | None, head_time: float
) -> uvicorn.Config:
    # One parser, the pure one: what the tests see is what is served, with or without httptools.
    return uvicorn.Config(
        build_app(endpoint),
        http=patient(head_time),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_SHUTDOWN,
        h11_max_incomplete_event_size=_MAX_HEADERS,
        ssl_certfile=str(tls[0]) if tls else None,
        ssl_keyfile=str(tls[1]) if tls else None,
    )


def _tls_files(settings: ApiSettings) -> tuple[Path, Path] | None:
    if settings.cert is None and settings.key is None:
        return None
    if settings.cert is None or settings.key is None:
        raise ConfigError("TLS needs both: the certificate and its key")
    try:
        mode = settings.key.stat().st_mode
        if mode & 0o077:
            raise ConfigError(f"{settings.key}: others can read the TLS key; chmod 0600")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.cert, settings.key)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{settings.cert}, {settings.key}: not a certificate with its key: {error.reason}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{error.filename or settings.cert}: {error.strerror}") from None
    return settings.cert, settings.key


def _listen(settings: ApiSettings) -> socket.socket:
    if not 0 <= settings.port <= 65535:
        raise ConfigError(f"port {settings.port}: a number from 0 (a free one) to 65535")
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigError(f"address {settings.host}:{settings.port}: {error}") from None
    family, _, _, _, address = found[0]
    host = str(address[0])
    loopback = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    if not (loopback or settings.insecure or settings.cert is not None):
        raise ConfigError(
            f"address {host} is not loopback, and without TLS everybody on the way can read "
            "along: give a certificate and its key, listen on 127.0.0.1, or allow it "
            "explicitly (insecure)"
        )
    # With the protocol's number asyncio sets TCP_NODELAY; without, an answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"cannot listen on {host}:{settings.port}: another process does already; "
                "end it, or set another port in [api]"
            ) from None
        raise ConfigError(f"cannot listen on {host}:{settings.port}: {error}") from None
    return listener
