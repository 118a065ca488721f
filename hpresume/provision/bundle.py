"""Lifecycle scripts from where they are kept: a folder of S3, or of this host.

``SourceS3Uri`` is ``s3://bucket/prefix`` or ``file:///absolute/folder``. All that lies below is
brought to the machine as one archive.
"""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from hpresume.errors import ProviderError, ProviderRefusedError, ProviderTransientError

#: More than any folder of scripts has; a training set put there by mistake is refused.
MAX_BYTES = 256 * 1024 * 1024
MAX_FILES = 10_000

#: Names that are asked of S3 at once: its maximum.
PAGE = 1000

#: How long an archive that was fetched is used for the next machines (s).
FRESH_S = 60.0


class Sources:
    """Fetches folders of scripts; thousands of machines at once share one download.

    ``s3`` makes the client (boto3's by default). Raises ProviderRefusedError for what is not
    there or not allowed, ProviderTransientError for what may work later.
    """

    def __init__(
        self, s3: Callable[[], Any] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._s3 = s3 or _s3_client
        self._clock = clock
        self._kept: dict[str, tuple[float, dict[str, bytes]]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def files(self, uri: str) -> dict[str, bytes]:
        """The files of a folder by their paths below it."""
        with self._lock:
            lock = self._locks.setdefault(uri, threading.Lock())
        with lock:
            kept = self._kept.get(uri)
            if kept is not None and self._clock() - kept[0] < FRESH_S:
                return kept[1]
            files = self._fetch(uri)
            with self._lock:
                now = self._clock()
                self._kept = {u: k for u, k in self._kept.items() if now - k[0] < FRESH_S}
                self._kept[uri] = (now, files)
            return files

    def forget(self, uri: str, files: dict[str, bytes]) -> None:
        """Fetch the folder anew next time: what came of it was no good, and may be mended now."""
        with self._lock:
            if self._kept.get(uri, (0.0, None))[1] is files:
                del self._kept[uri]

    def _fetch(self, uri: str) -> dict[str, bytes]:
        parts = urlsplit(uri)
        if parts.scheme == "s3" and parts.netloc:
            found = _from_s3(self._s3(), parts.netloc, parts.path.strip("/"))
        elif parts.scheme == "file" and not parts.netloc:
            found = _from_folder(Path(unquote(parts.path)))
        else:
            raise ProviderRefusedError(
                f"SourceS3Uri {uri}: use s3://bucket/prefix or file:///absolute/folder"
            )
        files: dict[str, bytes] = {}
        size = 0
        for name, content in found:
            _check_name(uri, name)
            size += len(content)
            files[name] = content
            if size > MAX_BYTES or len(files) > MAX_FILES:
                raise ProviderRefusedError(
                    f"SourceS3Uri {uri}: more than {MAX_FILES} files or {MAX_BYTES >> 20} MB; "
                    "keep only the lifecycle scripts there"
                )
        if not files:
            raise ProviderRefusedError(f"SourceS3Uri {uri}: there is nothing there")
        return files


def archive(files: dict[str, bytes]) -> bytes:
    """A tar archive of files, all executable by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def problem_of_script(name: str, content: bytes) -> str:
    """Why the machine could not start a script; empty where it can."""
    first = content[:256].partition(b"\n")[0]
    if content.startswith(b"#!") and first.endswith(b"\r"):
        return f"{name} has Windows line ends (CR LF), save it with LF"
    if not content.startswith((b"#!", b"\x7fELF")):
        return f"{name} has to begin with a line such as #!/bin/bash"
    return ""


def _check_name(uri: str, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ProviderRefusedError(f"SourceS3Uri {uri}: {name!r} would lie outside the folder")


def _from_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    try:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path.read_bytes()
    except OSError as error:
        raise ProviderRefusedError(
            f"SourceS3Uri file://{folder}: {error.filename}: {error.strerror}"
        ) from error


def _from_s3(client: Any, bucket: str, prefix: str) -> Iterator[tuple[str, bytes]]:
    from botocore.exceptions import BotoCoreError, ClientError

    uri = f"s3://{bucket}/{prefix}"
    below = f"{prefix}/" if prefix else ""
    try:
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=below, PaginationConfig={"PageSize": PAGE}
        )
        for page in pages:
            for entry in page.get("Contents", ()):
                name = entry["Key"][len(below) :]
                if not name or name.endswith("/"):
                    continue
                if entry["Size"] > MAX_BYTES:
                    raise ProviderRefusedError(f"{uri}/{name} is larger than {MAX_BYTES >> 20} MB")
                yield name, client.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()
    except ClientError as error:
        raise _refused(uri, error) from error
    except BotoCoreError as error:
        raise ProviderTransientError(f"SourceS3Uri {uri}: {error}") from error


def _refused(uri: str, error: Any) -> ProviderError:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = error.response.get("Error", {}).get("Code", "")
    said = f"SourceS3Uri {uri}: {code}: {error.response.get('Error', {}).get('Message', '')}"
    if status >= 500 or code in ("SlowDown", "RequestTimeout", "Throttling"):
        return ProviderTransientError(said)
    return ProviderRefusedError(said)


def _s3_client() -> Any:
    import boto3
    from botocore.config import Config

    settings = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard"})
    return boto3.client("s3", config=settings)
