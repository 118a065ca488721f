"""States of nodes and jobs."""

import pytest

from hpresume.slurm.models import JobState
from hpresume.slurm.states import job_state, node_states


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("IDLE", {"IDLE"}),
        ("IDLE+DRAIN", {"IDLE", "DRAIN"}),
        ("DOWN*+DRAIN", {"DOWN", "NOT_RESPONDING", "DRAIN"}),
        ("MIXED+CLOUD+NOT_RESPONDING", {"MIXED", "CLOUD", "NOT_RESPONDING"}),
        ("idle~", {"IDLE", "POWERED_DOWN"}),
        ("alloc#", {"ALLOC", "POWERING_UP"}),
        ("IDLE!", {"IDLE", "POWER_DOWN"}),
        ("IDLE%", {"IDLE", "POWERING_DOWN"}),
        ("IDLE$", {"IDLE", "MAINTENANCE"}),
        ("DOWN@", {"DOWN", "REBOOT_REQUESTED"}),
        ("REBOOT^", {"REBOOT", "REBOOT_ISSUED"}),
        ("MIXED-", {"MIXED", "PLANNED"}),
        ("ALLOCATED+FAIL", {"ALLOCATED", "FAIL"}),
        ("IDLE+INVALID_REG", {"IDLE", "INVALID_REG"}),
    ],
)
def test_node_states(text: str, states: set[str]) -> None:
    assert node_states(text) == states


_OVER = {"RunTime": "00:00:53", "StartTime": "1795972359", "EndTime": "1795972412"}


@pytest.mark.parametrize(
    ("word", "values", "state", "flags"),
    [
        ("RUNNING", {}, JobState.RUNNING, set()),
        ("NODE_FAIL", {}, JobState.NODE_FAIL, set()),
        ("CONFIGURING", {}, JobState.RUNNING, {"CONFIGURING"}),
        ("RESIZING", {}, JobState.RUNNING, {"RESIZING"}),
        ("REQUEUED", {}, JobState.PENDING, {"REQUEUED"}),
        ("REQUEUE_HOLD", {}, JobState.PENDING, {"REQUEUE_HOLD"}),
        ("SPECIAL_EXIT", {}, JobState.PENDING, {"SPECIAL_EXIT"}),
        ("STAGE_OUT", {}, JobState.OTHER, {"STAGE_OUT"}),
        ("SOMETHING_NEW", {}, JobState.OTHER, {"SOMETHING_NEW"}),
        # a requeued job that a node has not let go yet (recorded)
        (
            "COMPLETING",
            {"RunTime": "00:00:00", "StartTime": "1795972782", "EndTime": "Unknown"},
            JobState.PENDING,
            {"COMPLETING"},
        ),
        (
            "COMPLETING",
            {"RunTime": "00:00:00", "StartTime": "1795972782", "EndTime": "1795976382"},
            JobState.PENDING,
            {"COMPLETING"},
        ),
        ("COMPLETING", _OVER | {"ExitCode": "0:15"}, JobState.CANCELLED, {"COMPLETING"}),
        ("COMPLETING", _OVER | {"ExitCode": "0:0"}, JobState.COMPLETED, {"COMPLETING"}),
        ("COMPLETING", _OVER | {"ExitCode": "1:0"}, JobState.FAILED, {"COMPLETING"}),
        ("COMPLETING", _OVER | {"Reason": "NodeDown"}, JobState.NODE_FAIL, {"COMPLETING"}),
        ("COMPLETING", _OVER | {"Reason": "TimeLimit"}, JobState.TIMEOUT, {"COMPLETING"}),
        ("COMPLETING", _OVER | {"PreemptTime": "1795972400"}, JobState.PREEMPTED, {"COMPLETING"}),
        (
            "COMPLETING",
            {"RunTime": "00:00:00", "StartTime": "1795972359", "EndTime": "1795972359"}
            | {"ExitCode": "0:0"},
            JobState.COMPLETED,
            {"COMPLETING"},
        ),
    ],
)
def test_job_states(word: str, values: dict[str, str], state: JobState, flags: set[str]) -> None:
    assert job_state(word, values) == (state, flags)
