"""resource_config.json: what a lifecycle script learns about its cluster.

HyperPod's members (``reference``: sagemaker-hyperpod-lifecycle-best-practices), with the
fields that newer nodes also carry. A script finds itself by CustomerIpAddress.
"""

from __future__ import annotations

import json
from typing import Any

from hpresume.provision.model import NodeType, State

DEFAULT_PATH = "/opt/ml/config/resource_config.json"


def resource_config(state: State) -> str:
    """Text of the file: all machines of the cluster that have an address now."""
    groups: list[dict[str, Any]] = []
    controllers: list[str] = []
    for group in state.groups.values():
        nodes = sorted(
            (n for n in state.nodes.values() if n.group == group.name and n.machine_id),
            key=lambda node: node.index,
        )
        if group.node_type is NodeType.CONTROLLER:
            controllers += [node.address for node in nodes if node.address]
        groups.append(
            {
                "Name": group.name,
                "InstanceType": group.instance_type,
                "Instances": [
                    {
                        "InstanceName": f"{group.name}-{node.index}",
                        "AgentIpAddress": node.address,
                        "CustomerIpAddress": node.address,
                        "InstanceId": node.instance_id,
                    }
                    for node in nodes
                ],
            }
        )
    document = {
        "ClusterConfig": {
            "ClusterArn": state.cluster.arn,
            "ClusterName": state.cluster.name,
            "ClusterType": "Slurm",
        },
        "InstanceGroups": groups,
        "SlurmConfig": {
            "PrimaryControllerIp": controllers[0] if controllers else "",
            "SecondaryControllerIps": controllers[1:],
        },
    }
    return json.dumps(document, indent=2) + "\n"
