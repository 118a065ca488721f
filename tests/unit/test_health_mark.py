"""What HealthCheckProgram does to its node: plain values in, an action out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpresume.health.mark import (
    MAX_REASON,
    ClearNode,
    LeaveNode,
    MarkAction,
    SetNode,
    decide,
    execute,
    own_mark,
)
from hpresume.health.model import Action, Result, Status
from hpresume.slurm.models import Node


def node(states: str = "IDLE", reason: str = "") -> Node:
    return Node("n1", frozenset(states.split()), reason=reason)


def fail(name: str, action: Action = Action.NONE, hold: bool = False, text: str = "bad") -> Result:
    return Result(name, Status.FAIL, text, action=action, hold=hold)


def good(name: str, status: Status = Status.PASS) -> Result:
    return Result(name, status, "fine")


XID = fail("kernel-xid", Action.REBOOT, text='XID 79 on GPU 0 "x"')
ECC = fail("gpu-ecc", Action.REPLACE, text="2 uncorrected ECC errors")
DISK = fail("disk-space", hold=True, text="/: 0.1 % free")
WARM = fail("gpu-temperature")
REBOOT = "Action:Reboot [hpresume kernel-xid] XID 79 on GPU 0 'x'"
REPLACE = "Action:Replace [hpresume gpu-ecc] 2 uncorrected ECC errors"
HELD = "[hpresume disk-space] /: 0.1 % free"

CASES: list[tuple[str, Node, list[Result], MarkAction | type]] = [
    ("all good", node(), [good("disk-space")], LeaveNode),
    ("a warning that holds nothing", node(), [WARM], LeaveNode),
    ("reboot", node(), [XID, good("gpu-ecc")], SetNode("FAIL", REBOOT)),
    ("replace beats reboot", node("ALLOCATED"), [XID, ECC], SetNode("FAIL", REPLACE)),
    ("hold", node(), [DISK, WARM], SetNode("DRAIN", HELD)),
    ("an action beats a hold", node(), [DISK, XID], SetNode("FAIL", REBOOT)),
    ("marked already", node("IDLE FAIL", REBOOT), [XID], LeaveNode),
    ("from reboot to replace", node("IDLE FAIL", REBOOT), [XID, ECC], SetNode("FAIL", REPLACE)),
    ("never from replace to reboot", node("IDLE FAIL", REPLACE), [XID], LeaveNode),
    ("from hold to reboot", node("IDLE DRAIN", HELD), [XID], SetNode("FAIL", REBOOT)),
    (
        "an action's mark is not taken back",
        node("IDLE FAIL", REBOOT),
        [good("kernel-xid")],
        LeaveNode,
    ),
    ("back in service with its old mark, bad again", node("IDLE", REBOOT), [XID], SetNode),
    ("held already", node("IDLE DRAIN", HELD), [DISK], LeaveNode),
    (
        "held for something else",
        node("IDLE DRAIN", HELD),
        [fail("mounts", hold=True, text="gone")],
        SetNode("DRAIN", "[hpresume mounts] gone"),
    ),
    ("the warning is gone", node("IDLE DRAIN", HELD), [good("disk-space")], ClearNode),
    (
        "its check is now switched off",
        node("IDLE DRAIN", HELD),
        [good("disk-space", Status.SKIPPED)],
        ClearNode,
    ),
    (
        "not known to be gone",
        node("IDLE DRAIN", HELD),
        [good("disk-space", Status.UNKNOWN)],
        LeaveNode,
    ),
    ("its check did not run", node("IDLE DRAIN", HELD), [good("clock")], LeaveNode),
    ("below its strikes is not gone", node("IDLE DRAIN", HELD), [fail("disk-space")], LeaveNode),
    ("somebody else's reason", node("IDLE DRAIN", "bad fan, call Bob"), [ECC], LeaveNode),
    ("somebody else's order", node("IDLE FAIL", "Action:Replace"), [ECC], LeaveNode),
    ("somebody else's note on a node in service", node("IDLE", "see ticket 7"), [ECC], LeaveNode),
    (
        "Slurm's own words left behind",
        node("IDLE", "Not responding"),
        [XID],
        SetNode("FAIL", REBOOT),
    ),
    ("Slurm's own words that still hold", node("DOWN", "Not responding"), [XID], LeaveNode),
    ("in maintenance", node("IDLE MAINTENANCE"), [XID], LeaveNode),
    ("drained without a reason", node("IDLE DRAIN"), [DISK], LeaveNode),
    ("drained without a reason, with a fault", node("IDLE DRAIN"), [ECC], SetNode("FAIL", REPLACE)),
]


@pytest.mark.parametrize(
    ("of", "results", "wanted"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_decide(of: Node, results: list[Result], wanted: object) -> None:
    action = decide(of, results)
    if isinstance(wanted, type):
        assert isinstance(action, wanted)
    else:
        assert action == wanted


def test_execute(mocker: object) -> None:
    gateway = mocker.Mock()  # type: ignore[attr-defined]
    execute(SetNode("FAIL", REBOOT), "n1", gateway)
    gateway.update_node.assert_called_once_with("n1", State="FAIL", Reason=REBOOT)
    execute(ClearNode("x"), "n1", gateway)
    gateway.update_node.assert_called_with("n1", State="RESUME")
    execute(LeaveNode("x"), "n1", gateway)
    assert gateway.update_node.call_count == 2


RESULTS = st.builds(
    Result,
    st.sampled_from(["kernel-xid", "disk-space", "mounts"]),
    st.sampled_from(Status),
    st.text(max_size=300),
    action=st.sampled_from(Action),
    hold=st.booleans(),
)
REASONS = st.sampled_from(["", HELD, REBOOT, REPLACE, "Action:Replace", "Not responding", "Bob"])
STATES = st.sampled_from(["IDLE", "ALLOCATED", "IDLE DRAIN", "IDLE FAIL", "DOWN", "IDLE MAINT"])


@settings(max_examples=150, deadline=None)
@given(st.lists(RESULTS, max_size=4), REASONS, STATES)
def test_what_always_holds(results: list[Result], reason: str, states: str) -> None:
    of = node(states, reason)
    action = decide(of, results)
    if reason and own_mark(reason) is None and not of.is_usable:
        assert isinstance(action, LeaveNode)
    if isinstance(action, ClearNode):
        assert reason == HELD
    if isinstance(action, SetNode):
        assert len(action.reason) <= MAX_REASON
        assert action.reason.isprintable()
        assert '"' not in action.reason
        mark = own_mark(action.reason)
        assert mark is not None
        assert (action.state == "FAIL") == (mark.action is not Action.NONE)
        # The same results again change nothing.
        after = node("IDLE " + action.state, action.reason)
        assert isinstance(decide(after, results), LeaveNode)
