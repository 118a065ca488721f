"""Installing an edited configuration file: checked before, whole or not at all, with a backup."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpresume.errors import SlurmError

#: Beside the file: what it was before the last change from here.
BACKUP = ".hpresume-before"

Edit = Callable[[str], str]
Check = Callable[[Path], None]


@dataclass(frozen=True)
class Installed:
    """One file that was changed, what it was (None: there was none) and what it has become."""

    path: Path
    before: bytes | None
    after: bytes

    def undo(self) -> None:
        """Put back what was there.

        Raises SlurmError where that is not possible, or somebody else has changed the file since:
        an administrator who mends it must not get the broken one back.
        """
        try:
            if self.path.read_bytes() != self.after:
                raise SlurmError(
                    f"{self.path} was changed by somebody else meanwhile: it is not put back"
                )
            if self.before is None:
                self.path.unlink(missing_ok=True)
            else:
                _replace(self.path, self.before, self.path)
        except OSError as error:
            raise SlurmError(
                f"{self.path}: what was there before cannot be put back: {error.strerror}"
            ) from error


class Mark:
    """An empty file whose being there outlives this process and the machine's power."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def is_set(self) -> bool:
        """Whether the file is there."""
        return self._path.exists()

    def set(self) -> None:
        """Make the file. Raises SlurmError where that is not possible."""
        try:
            self._path.touch()
            _sync(self._path.parent)
        except OSError as error:
            raise SlurmError(f"{self._path}: cannot be written: {error.strerror}") from error

    def clear(self) -> None:
        """Remove the file; a power failure may bring it back.

        Raises SlurmError where that is not possible.
        """
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise SlurmError(f"{self._path}: cannot be removed: {error.strerror}") from error


def read(path: Path) -> str:
    """The text of a file, empty where there is none; every byte comes back when written."""
    try:
        return _text(path.read_bytes())
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SlurmError(f"{path}: cannot be read: {error.strerror}") from error


def install(path: Path, edit: Edit, check: Check) -> Installed | None:
    """Edit a file; None where nothing changes.

    ``check`` gets the new text under another name beside ``path``, and raises
    SlurmError where it is no good: then nothing is installed. Raises SlurmError also where
    the file changed meanwhile, or cannot be written. A link stays one: the file behind it changes.
    """
    real = path.resolve()
    try:
        before = path.read_bytes() if path.exists() else None
        text = edit(_text(before or b""))
        after = text.encode("utf-8", errors="surrogateescape")
        if after == (before or b""):
            return None
        name = f".{path.name}.hpresume-{secrets.token_hex(4)}"
        # Both in their own folder: files that are included are looked for beside the link.
        candidate, fresh = path.with_name(name), real.with_name(f"{name}.new")
        try:
            like = real if before is not None else None
            _write(candidate, after, like)
            check(candidate)
            _write(fresh, after, like)
            if before is not None:
                _replace(path.with_name(path.name + BACKUP), before, path)
            if (path.read_bytes() if path.exists() else None) != before:
                raise SlurmError(f"{path} was changed by somebody else meanwhile; trying again")
            os.replace(fresh, real)
            _sync(real.parent)
        finally:
            candidate.unlink(missing_ok=True)
            fresh.unlink(missing_ok=True)
    except OSError as error:
        # Not the error's own name, which is one of passing: the same trouble has the same text.
        raise SlurmError(f"{real}: cannot be written: {error.strerror}") from error
    return Installed(real, before, after)


def _replace(path: Path, content: bytes, like: Path) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write(fresh, content, like if like.exists() else None)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    _sync(path.parent)


def _write(path: Path, content: bytes, like: Path | None) -> None:
    """Write a new file to disk, with the owner and mode of another one."""
    mode = 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if like is not None:
            status = like.stat()
            mode = status.st_mode & 0o7777
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), status.st_uid, status.st_gid)
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="surrogateescape")
