"""Asking kernels quietly: an ICMP echo first, slurmd's port only where none comes back.

slurmd writes an error into its log for every connection that says nothing, and the
hosts of jobs are asked every second for weeks. Where ICMP is filtered, or a node has
no IPv4 address, its slurmd is asked as ever.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence

from hpresume.resume.evidence import look_once
from hpresume.resume.model import NodeFault
from hpresume.resume.observe import slurmd_address
from hpresume.resume.probe import lookup
from hpresume.slurm.models import ClusterConfig, Node

#: Longest wait for answers (s): a kernel of the cluster's network takes well under a
#: millisecond, and slurmd's port is asked next. How long a looked-up address is good for (s).
_WAIT_S = 0.1
_ADDRESS_S = 60.0

_REQUEST, _REPLY = 8, 0
_HEADER = struct.Struct("!BBHHH")
_MOST = 65_000


class QuietLook:
    """``look_once`` with a knock at the kernel before; needs root for ICMP."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._since = float("-inf")

    def __call__(
        self,
        names: Sequence[str],
        nodes: Mapping[str, Node],
        config: ClusterConfig,
        *,
        lone: bool = False,
    ) -> tuple[NodeFault, ...]:
        """Nodes whose kernel answers neither; as ``look_once`` does."""
        if time.monotonic() - self._since > _ADDRESS_S:
            self._addresses, self._since = {}, time.monotonic()
        wanted = {name: self._address(slurmd_address(name, nodes, config)[0]) for name in names}
        answered = echoes(set(filter(None, wanted.values())))
        rest = [name for name in names if wanted[name] not in answered]
        # Others answer: this host is not the one that is cut off.
        return look_once(rest, nodes, config, lone=lone or bool(answered)) if rest else ()

    def _address(self, address: str) -> str:
        if address not in self._addresses:
            self._addresses[address] = lookup(address)
        return self._addresses[address]


def echoes(addresses: set[str], wait_s: float = _WAIT_S) -> frozenset[str]:
    """Which of some IPv4 addresses answer to an ICMP echo; none where that cannot be asked."""
    targets = sorted(a for a in addresses if ":" not in a)[:_MOST]
    number = int.from_bytes(os.urandom(2))
    try:
        asking = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except OSError:
        return frozenset()
    with asking:
        asking.setblocking(False)
        sent = set()
        for sequence, address in enumerate(targets):
            try:
                asking.sendto(request(number, sequence), (address, 0))
            except OSError:
                continue  # no route, or no room now: its slurmd is asked
            sent.add(address)
        return _answers(asking, number, sent, time.monotonic() + wait_s)


def _answers(asking: socket.socket, number: int, sent: set[str], deadline: float) -> frozenset[str]:
    found: set[str] = set()
    while len(found) < len(sent) and (left := deadline - time.monotonic()) > 0:
        if not select.select([asking], [], [], left)[0]:
            break
        try:
            packet, (address, *_) = asking.recvfrom(2048)
        except OSError:
            continue
        # The socket hears every ICMP message of this host.
        if address in sent and is_reply(packet, number):
            found.add(address)
    return frozenset(found)


def request(number: int, sequence: int) -> bytes:
    """An echo request (RFC 792). Pure."""
    total = (_REQUEST << 8) + number + sequence
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return _HEADER.pack(_REQUEST, 0, ~total & 0xFFFF, number, sequence)


def is_reply(packet: bytes, number: int) -> bool:
    """Whether an IPv4 packet is an answer to a request with ``number``. Pure."""
    start = (packet[0] & 0x0F) * 4 if packet else 0
    if len(packet) < start + _HEADER.size:
        return False
    kind, _, _, found, _ = _HEADER.unpack_from(packet, start)
    return bool(kind == _REPLY and found == number)
