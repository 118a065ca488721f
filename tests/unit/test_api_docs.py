"""The tables in docs/api.md say what is there: made of the code, with a test for each line.

Run this file to write them anew.
"""

from __future__ import annotations

from pathlib import Path

from hpresume.api.handlers import HANDLERS
from hpresume.api.model import SERVED
from hpresume.api.rules import all_rules

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs/api.md"
TESTS = ROOT / "tests"

#: The test that holds each operation; files without "test_" and ".py".
OPERATIONS = {
    "CreateCluster": "api_operations: create_answers_at_once_and_describe_tells_it_all",
    "UpdateCluster": "api_operations: update_changes_the_named_groups_and_leaves_the_others",
    "DescribeCluster": "api_operations: create_answers_at_once_and_describe_tells_it_all",
    "DeleteCluster": "api_operations: delete_may_be_asked_twice",
    "ListClusters": "api_operations: clusters_are_filtered_sorted_and_paged",
    "ListClusterNodes": "api_operations: nodes_are_listed_by_page_with_and_without_machines",
    "DescribeClusterNode": "api_operations: a_node_is_described_by_either_id",
    "BatchAddClusterNodes": "api_operations: adding_nodes_is_idempotent_by_token",
    "BatchDeleteClusterNodes": "api_operations: deletion_answers_for_each_node",
    "BatchRebootClusterNodes": "api_operations: reboot_and_replace_answer_for_each_node",
    "BatchReplaceClusterNodes": "api_operations: reboot_and_replace_answer_for_each_node",
    "ListClusterEvents": "api_operations: events_are_filtered_paged_and_newest_first",
    "DescribeClusterEvent": "api_operations: events_are_filtered_paged_and_newest_first",
    "ListClusterOperations": "api_operations: operations_are_filtered_and_described",
    "DescribeClusterOperation": "api_operations: operations_are_filtered_and_described",
    "StartClusterHealthCheck": "api_provisioner: the_health_of_nodes_is_checked",
    "UpdateClusterSoftware": "api_provisioner: the_software_of_a_cluster_is_updated",
    "AddTags": "api_operations: tags_are_added_overwritten_and_deleted",
    "ListTags": "api_operations: tags_are_added_overwritten_and_deleted",
    "DeleteTags": "api_operations: tags_are_added_overwritten_and_deleted",
}

#: What holds for every operation.
PROTOCOL = {
    "required, type, length, value, enum, pattern, union, list and map sizes, unknown members": (
        "api_walker: each_constraint_of_each_member_is_enforced"
    ),
    "patterns of Java": "api_patterns: a_pattern_means_what_it_means_in_java",
    "answers validate against the model": "api_operations: all_operations_were_seen",
    "boto3's exceptions": "api_operations: modelled_exceptions_are_boto3s",
    "the seed's two commands": "api_cli: the_second_command_runs_word_for_word",
    "signature, key, region, clock, body, headers": "api_sigv4: each_fault_has_its_error",
    "a retry is done once": "api_boto3: a_retry_with_the_same_signature_is_done_once",
    "a replay changes nothing": "api_http: a_replay_changes_nothing",
    "NextToken: one list, not to be altered": "api_tokens: an_altered_token_is_refused",
    "pages: every entry once": "api_tokens: pages_give_every_entry_once_in_order",
    "ClientToken: 8 hours, same parameters": "api_operations: adding_nodes_is_idempotent_by_token",
    "JSON: size, depth, doubled members, Unicode": (
        "api_body: a_bad_body_is_refused_with_its_reason"
    ),
    "never a 5xx, never a change": "api_fuzz: a_good_request_with_one_thing_wrong",
    "memory is bounded": "api_fuzz: huge_and_deep_bodies_stay_within_bounds",
    "unknown operations": "api_boto3: what_is_not_served_is_an_unknown_operation",
    "loopback without TLS": "api_http: another_address_than_loopback_needs_tls",
    "TLS": "api_http: boto3_speaks_tls_with_the_server",
    "with the real engine, on SQLite and PostgreSQL": (
        "api_provisioner: the_life_of_the_seeds_cluster"
    ),
    "with the EC2 provider, on moto": "api_ec2: a_clusters_life_on_ec2",
}

_RULE_TESTS = {
    "request": "api_rules: a_broken_rule_of_a_request",
    "cluster": "api_rules_state: a_broken_rule_of_the_state",
    "group": "api_rules_nodes: what_is_not_added",
    "node": "api_rules_nodes: which_nodes_are_left_alone",
}


def _rows(*rows: tuple[str, ...]) -> str:
    head, *rest = rows
    line = "| " + " | ".join("---" for _ in head) + " |"
    return "\n".join(
        ["| " + " | ".join(head) + " |", line, *(f"| {' | '.join(r)} |" for r in rest)]
    )


def tables() -> dict[str, str]:
    """The tables by their names in the document."""
    rules = [
        (
            f"`{rule.name}`",
            rule.summary,
            ", ".join(rule.operations),
            rule.error,
            rule.source,
            _RULE_TESTS[rule.kind],
        )
        for rule in all_rules()
    ]
    return {
        "operations": _rows(
            ("operation", "held by"), *((name, OPERATIONS[name]) for name in SERVED)
        ),
        "protocol": _rows(("what", "held by"), *PROTOCOL.items()),
        "rules": _rows(("rule", "what", "operations", "error", "source", "held by"), *rules),
    }


def _replaced(text: str) -> str:
    for name, table in tables().items():
        head, begin, rest = text.partition(f"<!-- table {name} -->")
        _, end, tail = rest.partition(f"<!-- end {name} -->")
        assert begin, name
        assert end, name
        text = f"{head}{begin}\n\n{table}\n\n{end}{tail}"
    return text


def test_the_tables_are_up_to_date() -> None:
    text = DOCS.read_text()
    assert text == _replaced(text), "run python tests/unit/test_api_docs.py"


def test_every_test_of_the_tables_is_there() -> None:
    for held_by in {*OPERATIONS.values(), *PROTOCOL.values(), *_RULE_TESTS.values()}:
        file, _, name = held_by.partition(": ")
        (path,) = TESTS.glob(f"*/test_{file}.py")
        assert f"def test_{name}(" in path.read_text(), held_by


def test_every_operation_is_in_the_table_and_has_its_handler() -> None:
    assert set(OPERATIONS) == set(SERVED) == set(HANDLERS)


if __name__ == "__main__":
    DOCS.write_text(_replaced(DOCS.read_text()))
