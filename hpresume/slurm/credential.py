"""MUNGE credentials: who sent a message, as the munged of the cluster's hosts vouches.

Made and read by the programs ``munge`` and ``unmunge``, which every Slurm cluster with
its default authentication has. The credential's payload names what it is for and the
digest of the message that goes with it, so that neither a credential that was made for
another service (Slurm's own are of the same kind) nor another message can be put in.
munged itself remembers what it has read, and refuses it a second time.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hpresume.errors import CredentialError

#: What the payload begins with: a purpose of its own.
_PURPOSE = b"hpresume-report-1 "

#: How long a credential is good for (s): delivery, and clocks that differ a little.
TTL_S = 60

#: Longest wait for munged (s).
_TIMEOUT_S = 3.0

#: Longest credential that is looked at; ours have some 250 characters.
_MAX_LENGTH = 4096

#: Exit codes of unmunge, which are munge's error numbers (munge.h).
_REFUSALS = {
    15: "it has expired",
    16: "it comes from the future: the clocks of the hosts differ",
    17: "it was used before",
    18: "it is for somebody else",
}

_KEYS = "STATUS,ENCODE_TIME,DECODE_TIME,TTL,UID,LENGTH"


@dataclass(frozen=True)
class Sender:
    """Who made a credential, and when (Unix s, by the sender's clock)."""

    uid: int
    encoded_at: int


def sign(message: bytes, *, timeout_s: float = _TIMEOUT_S) -> str:
    """A credential of this process's user for ``message``, which only root can read.

    Raises CredentialError.
    """
    argv = ("munge", f"--ttl={TTL_S}", "--restrict-uid=0")
    credential = _run(argv, _payload(message), timeout_s).stdout
    return credential.decode("ascii", errors="replace").strip()


def verify(
    credential: str, message: bytes, *, socket: str = "", timeout_s: float = _TIMEOUT_S
) -> Sender:
    """Who sent ``message``. ``socket`` is munged's, where it is not the default one.

    Raises CredentialError for a credential that is forged, expired, used before, of
    another purpose or for another message.
    """
    if not credential.startswith("MUNGE:") or len(credential) > _MAX_LENGTH:
        raise CredentialError("there is no MUNGE credential")
    argv = ["unmunge", "--numeric", f"--keys={_KEYS}"]
    if socket:
        argv.append(f"--socket={socket}")
    done = _run(argv, credential.encode("ascii", errors="replace"), timeout_s, refusals=True)
    fields, payload = _parsed(done.stdout)
    if done.returncode != 0 or fields["STATUS"] != 0:
        why = _REFUSALS.get(done.returncode, "munged does not know it")
        raise CredentialError(f"the MUNGE credential is refused: {why}")
    if payload != _payload(message):
        raise CredentialError("the MUNGE credential is for another message or another purpose")
    # A sender may ask for a longer life than we give.
    if not 0 <= fields["TTL"] <= TTL_S or fields["DECODE_TIME"] - fields["ENCODE_TIME"] > TTL_S:
        raise CredentialError(f"the MUNGE credential is made to last longer than {TTL_S} s")
    return Sender(fields["UID"], fields["ENCODE_TIME"])


def _payload(message: bytes) -> bytes:
    return _PURPOSE + hashlib.sha256(message).hexdigest().encode()


def _run(
    argv: Sequence[str], data: bytes, timeout_s: float, *, refusals: bool = False
) -> subprocess.CompletedProcess[bytes]:
    try:
        done = subprocess.run(
            argv, input=data, capture_output=True, timeout=timeout_s, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise CredentialError(f"{argv[0]}: no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise CredentialError(f"{argv[0]} cannot be started: {error.strerror}") from None
    if done.returncode != 0 and not (refusals and done.returncode > 2):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise CredentialError(said[0][:200] if said else f"{argv[0]}: exit code {done.returncode}")
    return done


def _parsed(output: bytes) -> tuple[dict[str, int], bytes]:
    """The metadata, which comes first, and the payload behind its first empty line."""
    head, _, rest = output.partition(b"\n\n")
    fields = dict.fromkeys(_KEYS.split(","), -1)
    for line in head.decode("ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        word = value.strip()
        if name in fields and word.isascii() and word.isdigit():
            fields[name] = int(word)
    return fields, rest[: max(0, fields["LENGTH"])]
