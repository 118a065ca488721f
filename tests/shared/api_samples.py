"""Valid values for shapes of botocore's model, made from the model itself."""

from __future__ import annotations

from typing import Any

#: One value for each shape that has a pattern.
PATTERNS = {
    "AlarmName": "alarm",
    "BatchAddClusterNodesRequestClientTokenString": "token-1",
    "ClusterAccountingDatabaseEndpoint": "db.example.org",
    "ClusterAccountingDatabaseName": "slurm_acct_db",
    "ClusterAccountingDatabaseSecretArn": (
        "arn:aws:secretsmanager:us-west-2:111122223333:secret:x"
    ),
    "ClusterArn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12",
    "ClusterAvailabilityZone": "us-west-2a",
    "ClusterAvailabilityZoneId": "usw2-az1",
    "ClusterDnsName": "fs-0123456789abcdef0.fsx.example",
    "ClusterFsxMountPath": "/fsx",
    "ClusterInstanceGroupName": "group-1",
    "ClusterKubernetesLabelKey": "key",
    "ClusterKubernetesLabelValue": "value",
    "ClusterKubernetesTaintKey": "key",
    "ClusterKubernetesTaintValue": "value",
    "ClusterLifeCycleConfigFileName": "on_create.sh",
    "ClusterMountName": "fsx",
    "ClusterName": "my-cluster",
    "ClusterNameOrArn": "my-cluster",
    "ClusterNodeId": "i-0123456789abcdef0",
    "ClusterNodeLogicalId": "node-1",
    "ClusterOperationId": "01234567-89ab-cdef-0123-456789abcdef",
    "ClusterPartitionName": "gpu",
    "ClusterPrivateDnsHostname": "ip-10-0-0-1.internal",
    "ClusterPrivatePrimaryIp": "10.0.0.1",
    "EksClusterArn": "arn:aws:eks:us-west-2:111122223333:cluster/x",
    "EventId": "01234567-89ab-cdef-0123-456789abcdef",
    "ImageId": "ami-0123456789abcdef0",
    "ImageReleaseVersion": "1.2.3",
    "InstanceGroupName": "group-1",
    "KmsKeyId": "key-1",
    "NameContains": "my",
    "NextToken": "token",
    "ResourceArn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12",
    "RoleArn": "arn:aws:iam::111122223333:role/iam-role-for-cluster",
    "S3Uri": "s3://bucket/prefix/",
    "SecurityGroupId": "sg-12345678",
    "SubnetId": "subnet-12345678",
    "TagKey": "key",
    "TagValue": "value",
    "TrainingPlanArn": ("arn:aws:sagemaker:us-west-2:111122223333:training-plan/a-plan"),
}


def sample(shape: Any, trail: tuple[str, ...] = ()) -> Any:
    """A valid value with every member of the shape; unions have their first one."""
    metadata = shape.metadata
    if shape.type_name == "structure":
        members = list(shape.members.items())
        if shape.is_tagged_union:
            members = members[:1]
        return {
            name: sample(member, (*trail, shape.name))
            for name, member in members
            if member.name not in trail
        }
    if shape.type_name == "list":
        return [sample(shape.member, trail)] * max(1, metadata.get("min", 1))
    if shape.type_name == "map":
        return {sample(shape.key, trail): sample(shape.value, trail)}
    if shape.type_name == "string":
        if metadata.get("enum"):
            return metadata["enum"][0]
        if metadata.get("pattern"):
            return PATTERNS[shape.name]
        return "x" * max(1, metadata.get("min", 1))
    if shape.type_name in ("integer", "long"):
        return max(1, metadata.get("min", 1))
    return {"boolean": True, "timestamp": 1717262425.5, "float": 1.5, "double": 1.5}[
        shape.type_name
    ]
