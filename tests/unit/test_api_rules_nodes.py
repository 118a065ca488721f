"""What is added to a group, which nodes are left alone; checks and tags."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from api_clusters import CLUSTER, COMPUTE, CONTROLLER, with_group

from hpresume.api import rules
from hpresume.api.errors import ApiError
from hpresume.api.rules.maintenance import merged_checks
from hpresume.api.rules.nodes import addition_problem, node_problem
from hpresume.api.rules.tags import added
from hpresume.provision.service import GroupSpec, NodeRecord


@pytest.mark.parametrize(
    ("name", "entry", "state", "code"),
    [
        ("group_to_add_to_exists", {"InstanceGroupName": "x"}, None, "InstanceGroupNotFound"),
        ("group_can_grow", {}, {"status": "Deleting"}, "InvalidInstanceGroupStatus"),
        ("group_can_grow", {}, {"awaits_min_count": True}, "InvalidInstanceGroupStatus"),
        (
            "group_can_grow",
            {},
            {"spec": GroupSpec(CONTROLLER)},
            "InvalidInstanceGroupStatus",
        ),
        (
            "added_types_are_the_groups",
            {"InstanceTypes": ["ml.t3.large"]},
            {},
            "IncompatibleInstanceTypes",
        ),
        (
            "zones_are_not_chosen",
            {"AvailabilityZones": ["us-west-2a"]},
            {},
            "IncompatibleAvailabilityZones",
        ),
    ],
)
def test_what_is_not_added(
    name: str, entry: dict[str, Any], state: dict[str, Any] | None, code: str
) -> None:
    known = None if state is None else replace(CLUSTER.groups[2], **state)
    problem = addition_problem(entry, known)
    assert problem is not None
    assert problem.code == code
    assert next(r for r in rules.all_rules() if r.name == name).check(entry, known) == problem


def test_what_is_added() -> None:
    entry = {"InstanceGroupName": COMPUTE, "InstanceTypes": ["ml.p5.48xlarge"]}
    assert addition_problem(entry, CLUSTER.groups[2]) is None


NODE = NodeRecord("n", "w1", COMPUTE, "ml.p5.48xlarge", "Running", 1.0, instance_id="i-12345678")


@pytest.mark.parametrize(
    ("name", "operation", "node", "group_changes", "refusal"),
    [
        (
            "controller_node_stays",
            "BatchDeleteClusterNodes",
            {"group": "controller-group"},
            {},
            "in use",
        ),
        (
            "controller_node_stays",
            "BatchReplaceClusterNodes",
            {"group": "controller-group"},
            {},
            "in use",
        ),
        (
            "min_count_comes_first",
            "BatchDeleteClusterNodes",
            {},
            {"awaits_min_count": True},
            "status",
        ),
        (
            "node_is_not_leaving",
            "BatchDeleteClusterNodes",
            {"status": "ShuttingDown"},
            {},
            "status",
        ),
        (
            "node_is_not_leaving",
            "BatchRebootClusterNodes",
            {"status": "ShuttingDown"},
            {},
            "status",
        ),
        ("node_has_settled", "BatchRebootClusterNodes", {"status": "Pending"}, {}, "status"),
        (
            "node_has_settled",
            "BatchRebootClusterNodes",
            {"status": "DeepHealthCheckInProgress"},
            {},
            "status",
        ),
        ("node_has_settled", "BatchReplaceClusterNodes", {"instance_id": ""}, {}, "status"),
        (
            "node_has_settled",
            "BatchReplaceClusterNodes",
            {"status": "SystemUpdating"},
            {},
            "status",
        ),
        (None, "BatchRebootClusterNodes", {"group": "controller-group"}, {}, None),
        (None, "BatchDeleteClusterNodes", {"status": "Pending", "instance_id": ""}, {}, None),
        (None, "BatchReplaceClusterNodes", {"status": "Failure"}, {}, None),
        (None, "BatchReplaceClusterNodes", {}, {"awaits_min_count": True}, None),
    ],
)
def test_which_nodes_are_left_alone(
    name: str | None,
    operation: str,
    node: dict[str, Any],
    group_changes: dict[str, Any],
    refusal: str | None,
) -> None:
    state, record = with_group(**group_changes), replace(NODE, **node)
    problem = node_problem(operation, state, record)
    assert (problem.refusal if problem else None) == refusal
    if name:
        assert next(r for r in rules.all_rules() if r.name == name).check(state, record) == problem


def test_overlapping_checks_are_one() -> None:
    def entry(name: str, checks: list[str], *ids: str) -> dict[str, Any]:
        chosen = {"InstanceIds": list(ids)} if ids else {}
        return {"InstanceGroupName": name, **chosen, "DeepHealthChecks": checks}

    stress, links = ["InstanceStress"], ["InstanceConnectivity"]
    assert merged_checks(
        (entry("a", stress, "1", "2"), entry("b", links, "3"), entry("a", links, "2", "4"))
    ) == (entry("a", stress + links, "1", "2", "4"), entry("b", links, "3"))
    assert merged_checks((entry("a", stress, "1"), entry("a", stress))) == (entry("a", stress),)


def test_tags_are_at_most_fifty() -> None:
    full = {str(n): "" for n in range(50)}
    assert added(full, {"0": "new"})["0"] == "new"
    with pytest.raises(ApiError, match="at most 50 tags"):
        added(full, {"more": ""})
