"""The cluster's network: a bridge in the cluster's init, one cable to each host."""

from __future__ import annotations

import zlib
from contextlib import suppress

from hpresume.devcluster.addresses import PREFIX_LENGTH, mac_of
from hpresume.devcluster.namespaces import enter_network
from hpresume.devcluster.processes import ProcessId, run
from hpresume.errors import DevClusterError

_BRIDGE = "br0"
_INTERFACE = "eth0"
_LONGEST_NAME = 12


def create_bridge(cluster: ProcessId) -> None:
    """Make the switch that connects all hosts."""
    _ip(
        cluster,
        "link set lo up",
        f"link add {_BRIDGE} type bridge forward_delay 0 mcast_snooping 0",
        f"link set {_BRIDGE} addrgenmode none",
        f"link set {_BRIDGE} up",
    )


def connect_host(cluster: ProcessId, host: ProcessId, name: str, address: str) -> None:
    """Give a freshly started host its interface and address, link up."""
    port = _port(name)
    _ip(
        cluster,
        f"link add {port} type veth peer name {_INTERFACE} address {mac_of(address)} "
        f"netns {host.pid}",
        f"link set {port} addrgenmode none",
        f"link set {port} master {_BRIDGE}",
        f"link set {port} up",
    )
    _ip(
        host,
        "link set lo up",
        f"link set {_INTERFACE} addrgenmode none",
        f"addr add {address}/{PREFIX_LENGTH} brd + dev {_INTERFACE}",
        f"link set {_INTERFACE} up",
    )


def set_link(cluster: ProcessId, name: str, *, up: bool) -> None:
    """Plug a host's cable in, or pull it: nothing passes then, not even a reset."""
    _ip(cluster, f"link set {_port(name)} {'up' if up else 'down'}")


def remove_port(cluster: ProcessId, name: str) -> None:
    """Remove what is left of a host's cable; the kernel may be doing the same just now."""
    with suppress(DevClusterError):
        _ip(cluster, f"link delete {_port(name)}")


def _port(name: str) -> str:
    """Name of the switch's end of a host's cable: the kernel allows 15 characters."""
    short = name if len(name) <= _LONGEST_NAME else f"{zlib.crc32(name.encode()):08x}"
    return f"to-{short}"


def _ip(process: ProcessId, *commands: str) -> None:
    batch = "".join(f"{command}\n" for command in commands)
    run([*enter_network(process), "ip", "-batch", "-"], stdin=batch)
