"""botocore's own model of SageMaker: the operations that are served, and their shapes.

The model is data of the installed botocore, so members, limits and patterns are those of that
release. An operation that the release does not have yet cannot be validated, and is answered
as unknown (ListClusterOperations and DescribeClusterOperation need 1.44).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import botocore
from botocore.loaders import Loader
from botocore.model import ServiceModel

#: Operations of the HyperPod API that are served; True for those that change something.
SERVED = {
    "CreateCluster": True,
    "UpdateCluster": True,
    "DescribeCluster": False,
    "DeleteCluster": True,
    "ListClusters": False,
    "ListClusterNodes": False,
    "DescribeClusterNode": False,
    "BatchAddClusterNodes": True,
    "BatchDeleteClusterNodes": True,
    "BatchRebootClusterNodes": True,
    "BatchReplaceClusterNodes": True,
    "ListClusterEvents": False,
    "DescribeClusterEvent": False,
    "ListClusterOperations": False,
    "DescribeClusterOperation": False,
    "StartClusterHealthCheck": True,
    "UpdateClusterSoftware": True,
    "AddTags": True,
    "ListTags": False,
    "DeleteTags": True,
}


@dataclass(frozen=True)
class Operation:
    """One operation: shapes of botocore (None where there is none) and its declared errors."""

    name: str
    input_shape: Any
    output_shape: Any
    errors: frozenset[str]
    changes: bool


@dataclass(frozen=True)
class ApiModel:
    """The served part of the model."""

    operations: dict[str, Operation]
    known: frozenset[str]
    target_prefix: str
    signing_name: str
    json_version: str
    release: str

    @property
    def missing(self) -> tuple[str, ...]:
        """Operations that the installed botocore does not have yet."""
        return tuple(name for name in SERVED if name not in self.operations)


def load_model() -> ApiModel:
    """Read the model of the installed botocore (about 0.2 s; once a process)."""
    service = ServiceModel(Loader().load_service_model("sagemaker", "service-2"))
    known = frozenset(service.operation_names)
    operations = {}
    for name, changes in SERVED.items():
        if name in known:
            operation = service.operation_model(name)
            operations[name] = Operation(
                name=name,
                input_shape=operation.input_shape,
                output_shape=operation.output_shape,
                errors=frozenset(shape.name for shape in operation.error_shapes),
                changes=changes,
            )
    metadata = service.metadata
    return ApiModel(
        operations=operations,
        known=known,
        target_prefix=metadata["targetPrefix"],
        signing_name=metadata["signingName"],
        json_version=metadata["jsonVersion"],
        release=botocore.__version__,
    )
