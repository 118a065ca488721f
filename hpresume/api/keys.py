"""Access keys of the clients, from a file in the form of ``~/.aws/credentials``.

    [alice]
    aws_access_key_id = HPR…
    aws_secret_access_key = …

Each section is one key; the same file serves clients as AWS_SHARED_CREDENTIALS_FILE.
Whoever has a key may do everything: there are no users with fewer rights.
"""

from __future__ import annotations

import configparser
import os
import re
import secrets
import stat
import string
from collections.abc import Mapping
from pathlib import Path

from hpresume.errors import ConfigError

_KEY_ID = re.compile(r"[A-Za-z0-9]{16,128}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SHORTEST_SECRET = 20
_MAX_FILE = 1024 * 1024

_ID_ALPHABET = string.ascii_uppercase + string.digits


def new_key() -> tuple[str, str]:
    """A new access key id and its secret, in AWS's lengths (20 and 40 characters)."""
    key_id = "HPRK" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(16))
    return key_id, secrets.token_urlsafe(30)


def write_key(path: Path, name: str) -> str:
    """Add a new key as section ``name``, make file and folder if need be; answers the key id.

    Raises ``ConfigError`` where the section is there already, or the file cannot be used.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name of a key has 1 to 64 letters, digits, '.', '_', '@' and '-', not {name!a}"
        )
    path = path.resolve()
    text = ""
    if path.exists():
        if _read(path).has_section(name):
            raise ConfigError(f"{path}: there is a key {name} already; take another name")
        # As text: what else people have written there stays as it is.
        text = read_private(path, "the access keys")
        text += ("" if not text or text.endswith("\n") else "\n") + "\n"
    key_id, secret = new_key()
    text += f"[{name}]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret}\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the access keys: {error.strerror}") from None
    return key_id


def load_keys(path: Path) -> Mapping[str, str]:
    """Secrets by access key id.

    Raises ``ConfigError`` unless the file belongs to this account or root, nobody else
    can read it, and every section has both members.
    """
    keys: dict[str, str] = {}
    if not path.exists():
        raise ConfigError(
            f"{path}: there is no such file of access keys; "
            f"hpresume api add-key NAME --file {path} makes it"
        )
    parser = _read(path)
    for name in parser.sections():
        section = parser[name]
        key_id = section.get("aws_access_key_id", "")
        secret = section.get("aws_secret_access_key", "")
        if not _KEY_ID.fullmatch(key_id):
            raise ConfigError(
                f"{path}: [{name}] needs aws_access_key_id, 16 to 128 letters and digits"
            )
        if len(secret) < _SHORTEST_SECRET:
            raise ConfigError(
                f"{path}: [{name}] needs aws_secret_access_key, "
                f"at least {_SHORTEST_SECRET} characters"
            )
        if key_id in keys:
            raise ConfigError(f"{path}: [{name}] repeats the access key id {key_id}")
        keys[key_id] = secret
    if not keys:
        raise ConfigError(f"{path}: no access key is in it; hpresume api add-key NAME adds one")
    return keys


def _parser() -> configparser.ConfigParser:
    return configparser.ConfigParser(interpolation=None, default_section="\0")


def _read(path: Path) -> configparser.ConfigParser:
    parser = _parser()
    try:
        parser.read_string(read_private(path, "the access keys"))
    except configparser.Error as error:
        # The error's own text quotes lines of the file, and with them secrets.
        raise ConfigError(
            f"{path}: cannot be read as an INI file ({type(error).__name__})"
        ) from None
    return parser


def read_private(path: Path, what: str) -> str:
    """Text of a file that only its owner, this account or root, can read; ``ConfigError`` else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: {what} have to be in a regular file")
            if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
                raise ConfigError(
                    f"{path}: {what} have to be a file of this account or root with mode 0600, "
                    f"not {stat.S_IMODE(status.st_mode):04o} of uid {status.st_uid}; "
                    f"chmod 0600 {path}"
                )
            content = stream.read(_MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read {what}: {error.strerror}") from None
    if len(content) > _MAX_FILE:
        raise ConfigError(f"{path}: larger than {_MAX_FILE} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
