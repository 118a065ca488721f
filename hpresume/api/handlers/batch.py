"""BatchAdd, BatchDelete, BatchReboot and BatchReplaceClusterNodes."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpresume.api.handlers.call import Call
from hpresume.api.rules.nodes import NodeProblem, Refusal, addition_problem, node_problem
from hpresume.provision.service import (
    Addition,
    AdditionVerdict,
    ClientToken,
    ClusterRecord,
    Document,
    NodeAction,
    NodeRecord,
)

#: Lifetime of a ClientToken (s): botocore's model, text of ClientToken: 8 hours.
TOKEN_LIFETIME = 8 * 3600.0


def add(call: Call) -> dict[str, Any]:
    """Add nodes to groups; each one that fails is told apart."""
    entries = call.request["NodesToAdd"]
    additions = tuple(
        Addition(entry["InstanceGroupName"], entry["IncrementTargetCountBy"], entry)
        for entry in entries
    )

    def guard(cluster: ClusterRecord) -> AdditionVerdict:
        call.guard(cluster)
        accepted: list[Addition] = []
        failed: list[Document] = []
        for addition in additions:
            problem = addition_problem(addition.document, cluster.group(addition.group))
            if problem is None:
                accepted.append(addition)
            else:
                failed.append(
                    {
                        "InstanceGroupName": addition.group,
                        "ErrorCode": problem.code,
                        "FailedCount": addition.count,
                        "Message": problem.message,
                        **_placement(addition.document),
                    }
                )
        return AdditionVerdict(tuple(accepted), tuple(failed))

    added = call.service.add_nodes(call.cluster_ref, additions, _token(call), guard)
    successful = [
        {
            "NodeLogicalId": node.logical_id,
            "InstanceGroupName": node.group,
            "Status": node.status,
            "InstanceTypes": [node.instance_type],
        }
        for node in added.nodes
    ]
    return {"Successful": successful, "Failed": [dict(entry) for entry in added.failed]}


def _token(call: Call) -> ClientToken:
    parameters = json.dumps(call.request["NodesToAdd"], sort_keys=True)
    return ClientToken(
        value=call.text("ClientToken") or str(uuid.uuid4()),
        digest=hashlib.sha256(parameters.encode()).hexdigest(),
        lifetime_s=TOKEN_LIFETIME,
    )


def _placement(entry: Document) -> dict[str, Any]:
    return {k: entry[k] for k in ("AvailabilityZones", "InstanceTypes") if entry.get(k)}


@dataclass(frozen=True)
class _Words:
    """How an operation calls what was refused: its member for the code, and its codes."""

    member: str
    codes: Mapping[Refusal, str]


_DELETE = _Words(
    "Code",
    {
        Refusal.MISSING: "NodeIdNotFound",
        Refusal.STATUS: "InvalidNodeStatus",
        Refusal.IN_USE: "NodeIdInUse",
    },
)
_RECOVER = _Words(
    "ErrorCode",
    {
        Refusal.MISSING: "InstanceIdNotFound",
        Refusal.STATUS: "InvalidInstanceStatus",
        Refusal.IN_USE: "InstanceIdInUse",
    },
)


def delete(call: Call) -> dict[str, Any]:
    """Delete nodes; their groups shrink."""
    return _act(call, NodeAction.DELETE, _DELETE)


def reboot(call: Call) -> dict[str, Any]:
    """Reboot nodes."""
    return _act(call, NodeAction.REBOOT, _RECOVER)


def replace(call: Call) -> dict[str, Any]:
    """Replace the machines of nodes."""
    return _act(call, NodeAction.REPLACE, _RECOVER)


class _Judge:
    """Judges the nodes of a request, and keeps what it found for the answer."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.by_instance: dict[str, NodeProblem | None] = {}
        self.by_logical: dict[str, NodeProblem | None] = {}

    def __call__(self, cluster: ClusterRecord, nodes: Mapping[str, NodeRecord]) -> tuple[str, ...]:
        self._call.guard(cluster)
        operation, request = self._call.operation, self._call.request
        instances = {n.instance_id: n for n in nodes.values() if n.instance_id}
        problems = {
            logical: node_problem(operation, cluster, node) for logical, node in nodes.items()
        }
        missing = NodeProblem(Refusal.MISSING, f"Cluster {cluster.name} has no such node")
        accepted: dict[str, None] = {}
        self.by_instance, self.by_logical = {}, {}
        for answers, ids, known in (
            (self.by_instance, request.get("NodeIds", ()), instances),
            (self.by_logical, request.get("NodeLogicalIds", ()), nodes),
        ):
            for identifier in ids:
                node = known.get(identifier)
                answers[identifier] = missing if node is None else problems[node.logical_id]
                if node is not None and answers[identifier] is None:
                    accepted[node.logical_id] = None
        return tuple(accepted)


def _act(call: Call, action: NodeAction, words: _Words) -> dict[str, Any]:
    judge = _Judge(call)
    call.service.act_on_nodes(
        call.cluster_ref,
        action,
        instance_ids=tuple(dict.fromkeys(call.request.get("NodeIds", ()))),
        logical_ids=tuple(dict.fromkeys(call.request.get("NodeLogicalIds", ()))),
        judge=judge,
    )
    answer: dict[str, Any] = {}
    for answers, id_member, suffix in (
        (judge.by_instance, "NodeId", ""),
        (judge.by_logical, "NodeLogicalId", "NodeLogicalIds"),
    ):
        done = [identifier for identifier, problem in answers.items() if problem is None]
        failed = [
            {words.member: words.codes[p.refusal], "Message": p.message, id_member: identifier}
            for identifier, p in answers.items()
            if p is not None
        ]
        # The model's lists have at least one entry: an empty one is left out.
        if done:
            answer[f"Successful{suffix}"] = done
        if failed:
            answer[f"Failed{suffix}"] = failed
    return answer
