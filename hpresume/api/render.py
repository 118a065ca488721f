"""Records of the service in the shapes of the API."""

from __future__ import annotations

import ipaddress
from typing import Any

from hpresume.api.patterns import compiled
from hpresume.provision.service import (
    ClusterRecord,
    EventRecord,
    GroupRecord,
    NodeRecord,
    OperationRecord,
)

#: Members of a group that are described as they were asked for.
_GROUP_MEMBERS = (
    "InstanceGroupName",
    "InstanceType",
    "LifeCycleConfig",
    "ExecutionRole",
    "ThreadsPerCore",
    "InstanceStorageConfigs",
    "OnStartDeepHealthChecks",
    "TrainingPlanArn",
    "OverrideVpcConfig",
    "SlurmConfig",
    "CapacityRequirements",
    "NetworkInterface",
)

_CLUSTER_MEMBERS = (
    "VpcConfig",
    "Orchestrator",
    "NodeRecovery",
    "NodeProvisioningMode",
    "ClusterRole",
)

_NODE_MEMBERS = (
    "LifeCycleConfig",
    "OverrideVpcConfig",
    "ThreadsPerCore",
    "InstanceStorageConfigs",
    "NetworkInterface",
)

#: The model's ClusterPrivateDnsHostname: names of other sites are left out.
_HOSTNAME = compiled(r"ip-((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)-?\b){4}\..*")


def cluster(record: ClusterRecord) -> dict[str, Any]:
    """DescribeClusterResponse."""
    answer = {
        "ClusterArn": record.arn,
        "ClusterName": record.name,
        "ClusterStatus": record.status,
        "CreationTime": _time(record.created_at),
        "InstanceGroups": [group(entry) for entry in record.groups],
        **_chosen(record.document, _CLUSTER_MEMBERS),
    }
    if record.failure_message:
        answer["FailureMessage"] = record.failure_message
    return answer


def group(record: GroupRecord) -> dict[str, Any]:
    """ClusterInstanceGroupDetails."""
    answer = {
        **_chosen(record.spec.document, _GROUP_MEMBERS),
        "CurrentCount": record.current_count,
        "TargetCount": record.target_count,
        "MinCount": record.min_count,
        "Status": record.status,
        **record.details,
    }
    requirements = record.spec.document.get("InstanceRequirements")
    if requirements and "InstanceRequirements" not in answer:
        types = list(requirements["InstanceTypes"])
        answer["InstanceRequirements"] = {
            "CurrentInstanceTypes": types,
            "DesiredInstanceTypes": types,
        }
    if record.scaling_operations:
        answer["ActiveOperations"] = {"Scaling": record.scaling_operations}
    return answer


def cluster_summary(record: ClusterRecord) -> dict[str, Any]:
    """ClusterSummary."""
    answer = {
        "ClusterArn": record.arn,
        "ClusterName": record.name,
        "CreationTime": _time(record.created_at),
        "ClusterStatus": record.status,
    }
    plans = [g.spec.document.get("TrainingPlanArn") for g in record.groups]
    if any(plans):
        answer["TrainingPlanArns"] = list(dict.fromkeys(plan for plan in plans if plan))
    return answer


def node_summary(record: NodeRecord, *, with_logical_id: bool) -> dict[str, Any]:
    """ClusterNodeSummary.

    The model requires InstanceId and LaunchTime: a node without a machine has an empty id and
    the time at which it was asked for.
    """
    answer = {
        "InstanceGroupName": record.group,
        "InstanceId": record.instance_id,
        "InstanceType": record.instance_type,
        "LaunchTime": _time(record.launched_at or record.created_at),
        "InstanceStatus": _status(record),
        **_names(record),
    }
    answer |= _chosen(record.details, ("CurrentImageReleaseVersion",))
    if with_logical_id:
        answer["NodeLogicalId"] = record.logical_id
    if record.updated_at:
        answer["LastSoftwareUpdateTime"] = _time(record.updated_at)
    return answer


def node_details(record: NodeRecord, owner: GroupRecord | None) -> dict[str, Any]:
    """ClusterNodeDetails; what is not known is left out."""
    answer = {
        **(_chosen(owner.spec.document, _NODE_MEMBERS) if owner else {}),
        "InstanceGroupName": record.group,
        "NodeLogicalId": record.logical_id,
        "InstanceStatus": _status(record),
        "InstanceType": record.instance_type,
        **_names(record),
        **_address(record.address),
        **record.details,
    }
    if record.instance_id:
        answer["InstanceId"] = record.instance_id
    if record.launched_at:
        answer["LaunchTime"] = _time(record.launched_at)
    if record.updated_at:
        answer["LastSoftwareUpdateTime"] = _time(record.updated_at)
    return answer


def event(owner: ClusterRecord, record: EventRecord) -> dict[str, Any]:
    """ClusterEventSummary."""
    answer = {
        "EventId": record.event_id,
        "ClusterArn": owner.arn,
        "ClusterName": owner.name,
        "ResourceType": record.resource_type,
        "EventTime": _time(record.time),
        "EventLevel": record.level,
        "Description": record.description,
    }
    for name, value in (
        ("InstanceGroupName", record.group),
        ("InstanceId", record.instance_id),
        ("OperationId", record.operation_id),
    ):
        if value:
            answer[name] = value
    return answer


def event_details(owner: ClusterRecord, record: EventRecord) -> dict[str, Any]:
    """ClusterEventDetail; in the answer its own ``EventDetails`` holds the metadata."""
    answer = event(owner, record)
    if record.metadata:
        answer["EventDetails"] = {"EventMetadata": dict(record.metadata)}
    return answer


def operation(arn: str, record: OperationRecord) -> dict[str, Any]:
    """ClusterOperationSummary."""
    return {
        "OperationId": record.operation_id,
        "ClusterArn": arn,
        "Type": record.type,
        "Status": record.status,
        "CreationTime": _time(record.created_at),
    }


def _status(record: NodeRecord) -> dict[str, str]:
    status = {"Status": record.status}
    if record.message:
        status["Message"] = record.message
    return status


def _names(record: NodeRecord) -> dict[str, str]:
    if _HOSTNAME.fullmatch(record.hostname):
        return {"PrivateDnsHostname": record.hostname}
    return {}


def _address(text: str) -> dict[str, str]:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return {}
    return {"PrivatePrimaryIp" if address.version == 4 else "PrivatePrimaryIpv6": text}


def _chosen(document: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: document[name] for name in names if name in document}


def _time(seconds: float) -> float:
    """Times of the protocol: seconds since the epoch, to the millisecond."""
    return round(seconds, 3)
