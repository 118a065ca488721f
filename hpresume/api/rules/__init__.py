"""Rules between the members of a request, and between a request and the cluster as it is.

One pure function each; its docstring ends with the source of the rule. ``all_rules`` lists
them for the table in docs/api.md, which a test compares with it.
"""

from hpresume.api.rules import cluster, groups, maintenance, nodes, tags, update
from hpresume.api.rules.registry import Rule, all_rules, check_cluster, check_request

__all__ = [
    "Rule",
    "all_rules",
    "check_cluster",
    "check_request",
    "cluster",
    "groups",
    "maintenance",
    "nodes",
    "tags",
    "update",
]
