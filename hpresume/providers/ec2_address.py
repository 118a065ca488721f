"""Keeping a node's private address when its machine is replaced.

The old machine is terminated first: its address is free once its network interface is gone,
which takes EC2 some seconds to minutes. What happens until then, and where the address is
somebody else's or not of the subnet, is the policy:

* ``keep``: this address or none. A launch says "try again" while it is taken;
* ``prefer``: "try again" while it is taken by a machine that is on its way out; another
  address where it is taken by anything else or is not of the subnet;
* ``any``: an address that EC2 chooses.

The choice is made before RunInstances and never by a second call with the same
client token: a first call whose answer was lost would have made a machine already.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from hpresume.errors import ProviderTransientError

_ON_ITS_WAY_OUT = ("shutting-down", "terminated")


class AddressPolicy(StrEnum):
    """How much the same address is worth."""

    KEEP = "keep"
    PREFER = "prefer"
    ANY = "any"


def placement(
    client: Any, policy: AddressPolicy, template: Mapping[str, str], subnet: str, address: str
) -> dict[str, Any]:
    """Parameters of RunInstances that say where in the network the machine goes.

    A template that lists network interfaces (as for EFA) takes subnet and address there only:
    its list is sent again with them in the first one. Raises ProviderTransientError
    where the address will be free later, and boto3's errors.
    """
    wanted = address if policy is not AddressPolicy.ANY else ""
    if not wanted and not subnet:
        return {}
    interfaces, template_subnet = _of_template(client, template)
    place = subnet or template_subnet
    if wanted and not _is_usable(client, policy, place, wanted):
        wanted = ""
    chosen = {"SubnetId": subnet} if subnet else {}
    chosen |= {"PrivateIpAddress": wanted} if wanted else {}
    if not interfaces or not chosen:
        return chosen
    first = min(interfaces, key=_position)
    return {"NetworkInterfaces": [{**i, **chosen} if i is first else i for i in interfaces]}


def _of_template(client: Any, template: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
    """The network interfaces of a launch template, and its subnet (empty: the default one)."""
    key = "LaunchTemplateId" if "LaunchTemplateId" in template else "LaunchTemplateName"
    answer = client.describe_launch_template_versions(
        **{key: template[key]}, Versions=[template["Version"]]
    )
    data = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    interfaces: list[dict[str, Any]] = data.get("NetworkInterfaces", [])
    subnet = min(interfaces, key=_position).get("SubnetId", "") if interfaces else ""
    return interfaces, subnet


def _position(interface: Mapping[str, Any]) -> tuple[int, int]:
    return interface.get("NetworkCardIndex", 0), interface.get("DeviceIndex", 0)


def _is_usable(client: Any, policy: AddressPolicy, subnet: str, address: str) -> bool:
    """Whether the address is to be asked for."""
    if policy is AddressPolicy.KEEP:
        return True  # EC2 itself says what is wrong with it
    if not subnet:
        return False
    found = client.describe_subnets(SubnetIds=[subnet])["Subnets"][0]
    if ipaddress.ip_address(address) not in ipaddress.ip_network(found["CidrBlock"]):
        return False
    holders = client.describe_network_interfaces(
        Filters=[
            {"Name": "subnet-id", "Values": [subnet]},
            {"Name": "addresses.private-ip-address", "Values": [address]},
        ]
    )["NetworkInterfaces"]
    if not holders:
        return True
    instance = holders[0].get("Attachment", {}).get("InstanceId", "")
    if instance and _state_of(client, instance) in _ON_ITS_WAY_OUT:
        raise ProviderTransientError(
            f"address {address} is still that of {instance}, which is being terminated"
        )
    return False


def _state_of(client: Any, instance: str) -> str:
    answer = client.describe_instances(InstanceIds=[instance])
    states = [i["State"]["Name"] for r in answer["Reservations"] for i in r["Instances"]]
    return states[0] if states else "terminated"
