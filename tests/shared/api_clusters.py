"""The seed's cluster as it stands, for the rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from api_requests import group, request

from hpresume.api.handlers.clusters import _groups
from hpresume.provision.service import ClusterRecord, GroupRecord

COMPUTE = "worker-gpu-a"
CONTROLLER = group("c", 1, "Controller")
LUSTRE = {"FsxLustreConfig": {"DnsName": "fs-0123456789abcdef0.fsx", "MountName": "x"}}

CLUSTER = ClusterRecord(
    arn="arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12",
    name="c",
    status="InService",
    created_at=1.0,
    groups=tuple(
        GroupRecord(spec, "InService", spec.count, spec.count, spec.min_count)
        for spec in _groups(request())
    ),
    document={"NodeProvisioningMode": "Continuous"},
)


def cluster(**changes: Any) -> ClusterRecord:
    return replace(CLUSTER, **changes)


def with_group(name: str = COMPUTE, **changes: Any) -> ClusterRecord:
    return cluster(
        groups=tuple(replace(g, **changes) if g.spec.name == name else g for g in CLUSTER.groups)
    )
