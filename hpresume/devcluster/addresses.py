"""Addresses inside a cluster's own network, and the hosts file that names them.

The network is private to the cluster, so every cluster uses the same plan:
10.77.0.1 is the controller, 10.77.(1+g).i is node ``n<i>``, where g counts the
times the node came back with another address. Hosts with other names have a number
of their own for i.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from hpresume.devcluster.spec import CONTROLLER
from hpresume.errors import UsageError

NETWORK = ipaddress.ip_network("10.77.0.0/16")
PREFIX_LENGTH = NETWORK.prefixlen
MAX_GENERATION = 253
NUMBERS = range(1, 255)
"""What i can be."""

_ADDRESS_WIDTH = len("255.255.255.255")


def address_of(host: str, generation: int = 0, number: int | None = None) -> str:
    """IPv4 address of ``host`` after ``generation`` changes of address.

    ``number`` is its place in the plan; by default that of its name. Raises UsageError
    where the plan has no address left for the host.
    """
    if not 0 <= generation <= MAX_GENERATION:
        raise UsageError(f"{host} has no unused address left; take the cluster down and up again")
    if host == CONTROLLER:
        return str(NETWORK[1 + generation])
    place = int(host.removeprefix("n")) if number is None else number
    return str(NETWORK[256 * (1 + generation) + place])


def generation_of(address: str, number: int) -> int | None:
    """The generation in which a host with this number has ``address``, or None."""
    try:
        offset = int(ipaddress.IPv4Address(address)) - int(NETWORK.network_address)
    except ValueError:
        return None
    generation, place = divmod(offset, 256)
    in_plan = place == number and 0 <= generation - 1 <= MAX_GENERATION
    return generation - 1 if in_plan else None


def mac_of(address: str) -> str:
    """Locally administered MAC address that belongs to ``address``.

    A machine that boots again keeps its address and so its MAC: the other hosts'
    ARP entries stay right, as they do for a real reboot.
    """
    return "02:48:" + ":".join(f"{octet:02x}" for octet in ipaddress.ip_address(address).packed)


def hosts_file(addresses: Mapping[str, str]) -> str:
    """Text of /etc/hosts for ``addresses`` (host name to address).

    Its length does not depend on the addresses, so that it can be rewritten in
    place while programs read it.
    """
    lines = ["127.0.0.1".ljust(_ADDRESS_WIDTH) + " localhost"]
    lines += [f"{address.ljust(_ADDRESS_WIDTH)} {host}" for host, address in addresses.items()]
    return "".join(f"{line}\n" for line in lines)
