"""NextToken: opaque to clients, good for the list it was given for, and not to be altered.

A token holds the position after which the next page begins and a digest of the operation, the
cluster, the filters and the order; both are under an HMAC. It does not grow old: a position
is no snapshot. MaxResults may change from page to page.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpresume.api.errors import ApiError
from hpresume.api.keys import read_private
from hpresume.errors import ConfigError
from hpresume.provision.page import Position

_MAC_LENGTH = 16
_SECRET_LENGTH = 32

#: Members of a request that say where in a list a page is, not which list.
_POSITION_MEMBERS = frozenset({"NextToken", "MaxResults"})


class PageTokens:
    """Makes and reads tokens under one secret."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < _SECRET_LENGTH:
            raise ConfigError(f"the secret of page tokens needs {_SECRET_LENGTH} bytes")
        self._secret = secret

    def seal(self, operation: str, cluster: str, request: Mapping[str, Any], at: Position) -> str:
        """Token for the page after ``at``; ``cluster`` is the ARN, empty for a list of clusters."""
        content = json.dumps([_digest(operation, cluster, request), *at]).encode()
        return base64.urlsafe_b64encode(self._mac(content) + content).decode()

    def open(self, operation: str, cluster: str, request: Mapping[str, Any]) -> Position | None:
        """Position of the request's NextToken, None without one.

        Raises ValidationException for a token that is not ours, or is for another list.
        """
        token = request.get("NextToken")
        if not token:
            return None
        try:
            raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error, ValueError):
            raise _invalid() from None
        mac, content = raw[:_MAC_LENGTH], raw[_MAC_LENGTH:]
        if not hmac.compare_digest(mac, self._mac(content)):
            raise _invalid()
        digest, value, identity = json.loads(content)
        if digest != _digest(operation, cluster, request):
            raise ApiError(
                "ValidationException",
                "NextToken was given for another list: "
                "repeat the request with the same cluster, filters and order",
            )
        return (value, identity)

    def _mac(self, content: bytes) -> bytes:
        return hmac.new(self._secret, content, hashlib.sha256).digest()[:_MAC_LENGTH]


def load_secret(path: Path) -> bytes:
    """The secret in a file, made with mode 0600 where there is none.

    Kept, so that lists go on over a restart. Raises ``ConfigError``.
    """
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(secrets.token_hex(_SECRET_LENGTH))
                stream.flush()
                os.fsync(stream.fileno())
            with contextlib.suppress(FileExistsError):  # another process was quicker: use its
                os.link(temporary, path)
            temporary.unlink()
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot make the secret of page tokens: {error.strerror}"
            ) from None
    try:
        return bytes.fromhex(read_private(path, "the secret of page tokens"))
    except ValueError:
        raise ConfigError(f"{path}: not hexadecimal; delete it to have a new one") from None


def _digest(operation: str, cluster: str, request: Mapping[str, Any]) -> str:
    which = {k: v for k, v in request.items() if k not in _POSITION_MEMBERS}
    if cluster:
        which["ClusterName"] = cluster
    text = json.dumps([operation, which], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _invalid() -> ApiError:
    return ApiError("ValidationException", "Invalid pagination token: NextToken was not given here")
