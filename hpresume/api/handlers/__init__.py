"""What each operation does: from a valid request to the service, and its records as an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpresume.api.handlers import batch, clusters, maintenance, nodes, records, tags
from hpresume.api.handlers.call import Call

Handler = Callable[[Call], dict[str, Any]]

#: Handlers by operation.
HANDLERS: dict[str, Handler] = {
    "CreateCluster": clusters.create,
    "UpdateCluster": clusters.update,
    "DescribeCluster": clusters.describe,
    "DeleteCluster": clusters.delete,
    "ListClusters": clusters.list_all,
    "ListClusterNodes": nodes.list_all,
    "DescribeClusterNode": nodes.describe,
    "BatchAddClusterNodes": batch.add,
    "BatchDeleteClusterNodes": batch.delete,
    "BatchRebootClusterNodes": batch.reboot,
    "BatchReplaceClusterNodes": batch.replace,
    "ListClusterEvents": records.list_events,
    "DescribeClusterEvent": records.describe_event,
    "ListClusterOperations": records.list_operations,
    "DescribeClusterOperation": records.describe_operation,
    "StartClusterHealthCheck": maintenance.check_health,
    "UpdateClusterSoftware": maintenance.update_software,
    "AddTags": tags.add,
    "ListTags": tags.list_all,
    "DeleteTags": tags.delete,
}

__all__ = ["HANDLERS", "Call", "Handler"]
