"""Which nodes a deep check takes, what it shows on them, and what its report says."""

from __future__ import annotations

import json

import pytest
from health_node import policy_of
from hypothesis import given
from hypothesis import strategies as st

from hpresume.errors import UsageError
from hpresume.health.deep import report
from hpresume.health.deep.choice import (
    FEATURE,
    Choice,
    choose,
    common_partition,
    is_idle,
    reserved,
    stale,
    with_feature,
    without_feature,
)
from hpresume.health.deep.matrix import Finding, Sample, find, judge
from hpresume.health.deep.reach import SILENT_S, Silence
from hpresume.health.deep.report import NodeReport, Report, pair_result
from hpresume.health.deep.steps import Profile
from hpresume.health.model import Action, Result, Status
from hpresume.health.policy import load_policy
from hpresume.slurm import reservations
from hpresume.slurm.gres import gres_count
from hpresume.slurm.models import Node


def node(states: str = "IDLE", name: str = "n1", **fields: object) -> Node:
    return Node(name, frozenset(states.split()), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("states", "where"),
    [
        ("IDLE", "free"),
        ("IDLE CLOUD", "free"),
        ("ALLOCATED", "busy"),
        ("MIXED", "busy"),
        ("IDLE COMPLETING", "busy"),
        ("IDLE RESERVED", "left_out"),
        ("IDLE MAINT", "left_out"),
        ("IDLE DRAIN", "left_out"),
        ("IDLE FAIL", "left_out"),
        ("ALLOCATED DRAIN", "left_out"),
        ("DOWN", "left_out"),
        ("IDLE NOT_RESPONDING", "left_out"),
        ("IDLE POWERED_DOWN", "left_out"),
    ],
)
def test_which_nodes_are_taken(states: str, where: str) -> None:
    chosen = choose([node(states, reason="bad fan")])
    assert [name for name in ("free", "busy", "left_out") if getattr(chosen, name)] == [where]


def test_why_a_node_is_left_out() -> None:
    assert choose([node("IDLE DRAIN", reason="bad fan"), node("IDLE RESERVED", "n2")]) == Choice(
        left_out=(("n1", "it is drain+idle: bad fan"), ("n2", "it is in a reservation"))
    )


def test_a_reservation_that_begins_soon_keeps_its_nodes() -> None:
    text = (
        "ReservationName=now StartTime=1700000000 Nodes=n1 State=ACTIVE\n"
        "ReservationName=soon StartTime=1700000120 Nodes=n[2-3] State=INACTIVE\n"
        "ReservationName=weekly StartTime=1700600000 Nodes=n[1-4] State=INACTIVE\n"
        "ReservationName=strange StartTime=Sonntag Nodes=n5 State=INACTIVE\n"
    )
    until = 1_700_000_480.0
    taken = reserved(reservations.parse(text).values(), until)
    assert taken == {"n1": "now", "n2": "soon", "n3": "soon", "n5": "strange"}
    chosen = choose([node("IDLE", "n2"), node("IDLE", "n4")], taken)
    why = "reservation soon has it before the check would end"
    assert chosen == Choice(free=("n4",), left_out=(("n2", why),))


def test_idle_in_a_reservation_of_our_own() -> None:
    assert is_idle(node("IDLE RESERVED"))
    assert not any(is_idle(node(s)) for s in ("ALLOCATED", "IDLE COMPLETING", "DOWN", "IDLE FAIL"))


def test_one_partition_for_all() -> None:
    nodes = [node(partitions=("a", "all")), node(partitions=("all", "b"))]
    assert common_partition(nodes) == "all"
    with pytest.raises(UsageError, match="no partition has all of n1, n2"):
        common_partition([node(partitions=("a",)), node(name="n2", partitions=("b",))])


WORDS = st.lists(st.sampled_from(["a100", "old", "rack-7", FEATURE]), unique=True, max_size=4)


@given(WORDS, WORDS)
def test_features_of_others_are_kept_exactly(available: list[str], active: list[str]) -> None:
    before = node(features=tuple(active), available_features=tuple(available))
    shown = with_feature(before)
    for key, names in (("AvailableFeatures", available), ("ActiveFeatures", active)):
        assert shown[key].split(",") == [n for n in names if n != FEATURE] + [FEATURE]
    during = node(
        features=tuple(shown["ActiveFeatures"].split(",")),
        available_features=tuple(shown["AvailableFeatures"].split(",")),
    )
    assert without_feature(during) == {
        "AvailableFeatures": ",".join(n for n in available if n != FEATURE),
        "ActiveFeatures": ",".join(n for n in active if n != FEATURE),
    }


def test_features_that_were_left_behind() -> None:
    marked = {"features": (FEATURE,), "available_features": (FEATURE,)}
    nodes = {"n1": node(**marked), "n2": node(), "n3": node(name="n3", **marked)}
    assert without_feature(nodes["n2"]) is None
    assert stale(nodes, ["n3"]) == ("n1",)


def test_silence() -> None:
    silence = Silence(6818)
    assert silence.counted({"n1": False, "n2": True}, 100.0) == ()
    assert silence.counted({"n1": True, "n2": False}, 105.0) == ()
    assert silence.counted({"n1": False, "n2": False}, 106.0) == ()
    assert silence.counted({"n1": False, "n2": False}, 105.0 + SILENT_S) == ("n2",)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:4", 4),
        ("gpu:a100:8(S:0-1)", 8),
        ("gpu:a100:4(S:0,1),gpu:v100:2,nvme:3", 6),
        ("gpu", 1),
        ("gpu:a100", 1),
        ("nvme:3", 0),
        ("", 0),
        ("gpu:2K", 2048),
        ("mygpu:3", 0),
    ],
)
def test_gpus_of_a_node(text: str, count: int) -> None:
    assert gres_count(text, "gpu") == count


@given(st.text(max_size=40))
def test_any_gres(text: str) -> None:
    assert gres_count(text, "gpu") >= 0


def test_reservations() -> None:
    text = (
        "ReservationName=hpresume-deep-ctl-7 StartTime=1 EndTime=2 Duration=00:10:00 Nodes=n[1-3] "
        "NodeCnt=3 Features=(null) PartitionName=(null) Flags=IGNORE_JOBS,SPEC_NODES Users=root "
        "Groups=(null) Accounts=(null) State=ACTIVE\n"
        "ReservationName=lic Nodes=(null) Flags=LICENSE_ONLY Users=(null) State=INACTIVE\n"
    )
    found = reservations.parse(text)
    assert found["hpresume-deep-ctl-7"].nodes == ("n1", "n2", "n3")
    assert found["hpresume-deep-ctl-7"].users == ("root",)
    assert found["hpresume-deep-ctl-7"].flags == {"IGNORE_JOBS", "SPEC_NODES"}
    assert (found["lic"].nodes, found["lic"].users) == ((), ())
    assert reservations.parse("No reservations in the system\n") == {}


def test_the_time_a_profile_may_take() -> None:
    policy = load_policy("/dev/null")
    whole = Profile(policy).limit_s
    assert whole > sum(policy.check(n).timeout_s for n in ("cpu-stress", "dcgm-diag"))
    assert Profile(policy, skip=("dcgm-diag",)).limit_s == whole - 1802
    assert Profile(policy, only=("pair-network",)).checks == ()


PAIRS = judge(
    [
        Sample(("n1", "n2"), "tcp", 100.0, 0.1),
        Sample(("n1", "n3"), "tcp", error="no route"),
        Sample(("n2", "n3"), "tcp", error="no route"),
    ],
    policy_of("pair-network"),
)
FINDING = find(PAIRS, policy_of("pair-network"))


def pair_of(name: str, pairs: object = PAIRS, finding: Finding = FINDING) -> Result:
    return pair_result(name, pairs, finding, policy_of("pair-network"))  # type: ignore[arg-type]


def test_results_of_the_pairs() -> None:
    bad = pair_of("n3")
    assert (bad.status, bad.action) == (Status.FAIL, Action.REBOOT)
    assert bad.measured == "2 of 2 pairs bad"
    assert pair_of("n1").evidence == "1 of 2 pairs good (tcp); bad: n3"
    assert pair_of("n1").status is Status.PASS
    assert pair_of("n9").status is Status.SKIPPED


def test_a_bad_link_orders_nothing() -> None:
    pairs = judge([Sample(("n1", "n2"), "tcp", error="no route")], policy_of("pair-network"))
    finding = find(pairs, policy_of("pair-network"))
    for name in ("n1", "n2"):
        found = pair_of(name, pairs, finding)
        assert (found.status, found.action, found.hold) == (Status.FAIL, Action.NONE, False)
    found_all = Report((NodeReport("n1", (found,)),), (), pairs, finding)
    assert (report.exit_code(found_all), report.exit_code(found_all, strict=True)) == (0, 1)
    assert "bad link between n1 and n2: no route" in report.lines(found_all)


def test_nothing_measured_is_not_a_pass() -> None:
    pairs = judge([Sample(("n1", "n2"), "tcp", doubt="no Python")], policy_of("pair-network"))
    assert pair_of("n1", pairs, find(pairs, policy_of("pair-network"))).status is Status.UNKNOWN
    broken = judge(
        [Sample(p.sample.pair, "tcp", error="x") for p in PAIRS], policy_of("pair-network")
    )
    assert pair_of("n1", broken, find(broken, policy_of("pair-network"))).status is Status.UNKNOWN


def test_report_for_people_and_programs() -> None:
    good = Result("clock", Status.PASS, "fine")
    found = Report(
        (NodeReport("n1", (good, pair_of("n1"))), NodeReport("n3", (pair_of("n3"),), "mark: x")),
        (("n4", "it is allocated, and left to its jobs"),),
        PAIRS,
        FINDING,
    )
    lines = report.lines(found)
    assert lines[0] == "n1: 2 pass"
    assert lines[1] == "n3: 1 fail"
    assert lines[2].startswith("  fail     pair-network         2 of 2 pairs bad: with n1 no route")
    assert lines[3:] == [
        "  mark: x",
        "pairs: 1 good, 2 failed",
        "left out: n4: it is allocated, and left to its jobs",
    ]
    told = json.loads(json.dumps(report.document(found, time=1.0)))
    assert told["bad_nodes"] == ["n3"]
    assert told["left_out"]["n4"].startswith("it is allocated")
    assert told["pairs"][0]["status"] == "good"
    assert report.exit_code(found) == 1
    fine = Report((NodeReport("n1", (good,)),), found.left_out)
    assert (report.exit_code(fine), report.exit_code(fine, strict=True)) == (0, 3)
