"""Asking a node's kernel: a TCP connection to slurmd's port, not waited for."""

from __future__ import annotations

import errno
import os
import resource
import socket
from dataclasses import dataclass

from hpresume.resume.detect import PROBE_TIMEOUT_S, Probe

#: Errors of this host, which say nothing about the node that was to be asked.
_OWN_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EADDRNOTAVAIL}
)
_OWN_LOOKUP_ERRORS = frozenset({socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM})

_MOST_AT_ONCE = 256


def most_at_once() -> int:
    """How many probes may be under way: file descriptors are needed for other things too."""
    return max(4, min(_MOST_AT_ONCE, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


@dataclass
class ProbeAttempt:
    """One connection attempt; ``sock`` becomes writable when it is decided."""

    node: str
    began: float
    sock: socket.socket | None
    outcome: Probe = Probe.PENDING
    text: str = ""

    def settle(self, now: float) -> bool:
        """Look whether it is decided; True once ``outcome`` is final."""
        if self.outcome is not Probe.PENDING or self.sock is None:
            return True
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error == errno.ECONNREFUSED:
            self._end(Probe.REFUSED, os.strerror(error))
        elif error:
            self._end(Probe.FAILED, os.strerror(error))
        elif _is_connected(self.sock):
            self._end(Probe.ANSWERED, "answers")
        elif now - self.began >= PROBE_TIMEOUT_S:
            self._end(Probe.FAILED, "no answer")
        return self.outcome is not Probe.PENDING

    def _end(self, outcome: Probe, text: str) -> None:
        self.outcome, self.text = outcome, text
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def lookup(address: str) -> str:
    """The address in numbers, which no name server has to be asked for; empty if it has none."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0]
    except (OSError, UnicodeError):
        return ""
    return str(found)


def begin(node: str, address: str, port: int, now: float) -> ProbeAttempt:
    """Start a connection to ``address``:``port``.

    A name that does not exist, or a network that cannot be reached, is a failed
    probe, not an error. What fails on this host, for want of file descriptors or
    of an answering name server, is no probe at all (``Probe.NONE``).
    """
    try:
        info = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(info[0], info[1] | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    except socket.gaierror as error:
        own = error.errno in _OWN_LOOKUP_ERRORS
        return _without_socket(node, now, own=own, text=str(error.strerror or error))
    except OSError as error:
        own = error.errno in _OWN_ERRORS
        return _without_socket(node, now, own=own, text=str(error.strerror or error))
    except UnicodeError:  # what the idna codec says of n..1
        return ProbeAttempt(node, now, None, Probe.FAILED, f"{address} is no host name")
    code = sock.connect_ex(info[4])
    if code in (0, errno.EINPROGRESS):
        return ProbeAttempt(node, now, sock)
    sock.close()
    if code == errno.ECONNREFUSED:
        return ProbeAttempt(node, now, None, Probe.REFUSED, os.strerror(code))
    return _without_socket(node, now, own=code in _OWN_ERRORS, text=os.strerror(code))


def _without_socket(node: str, now: float, *, own: bool, text: str) -> ProbeAttempt:
    return ProbeAttempt(node, now, None, Probe.NONE if own else Probe.FAILED, text)
