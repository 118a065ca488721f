"""StartClusterHealthCheck and UpdateClusterSoftware."""

from __future__ import annotations

from typing import Any

from hpresume.api.handlers.call import Call
from hpresume.api.rules.maintenance import merged_checks


def check_health(call: Call) -> dict[str, Any]:
    """Start deep health checks."""
    configurations = merged_checks(tuple(call.request["DeepHealthCheckConfigurations"]))
    return {
        "ClusterArn": call.service.start_health_check(call.cluster_ref, configurations, call.guard)
    }


def update_software(call: Call) -> dict[str, Any]:
    """Start an update of the machines' images."""
    document = {name: value for name, value in call.request.items() if name != "ClusterName"}
    return {"ClusterArn": call.service.update_software(call.cluster_ref, document, call.guard)}
