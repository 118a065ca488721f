"""What is decided about a node: tables of cases, plain values, no mocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpresume.providers.model import Machine, MachineState
from hpresume.recovery import reasons
from hpresume.recovery.decide import decide
from hpresume.recovery.model import (
    Begin,
    Call,
    Change,
    Hold,
    JobOn,
    Make,
    Origin,
    Outcome,
    Phase,
    Policy,
    Recovery,
    Resume,
    Say,
    SetAddress,
    SetQuarantine,
    Snapshot,
    Trouble,
    Unsay,
)  # fmt: skip
from hpresume.recovery.reasons import Kind
from hpresume.slurm.models import Node

NOW = 100_000.0
MARK = "Action:Replace [hpresume x] e"
POLICY = Policy(sweep_every_s=1e12, down_grace_s=60.0, halt_share=0.5)
HOLD = reasons.hold(Kind.REPLACE, "x")


def node(states="IDLE", reason="", **fields):
    fields = {"partitions": ("main",), "slurmd_start_time": 5.0, "address": "n1", **fields}
    given = {"reason_time": NOW - 100.0} if reason else {}
    name = fields.pop("name", "n1")
    return Node(name, frozenset(states.split("+")), reason=reason, **{**given, **fields})


def recovery(phase=Phase.WAITING, **fields):
    given = {
        "uid": "ab", "node": "n1", "kind": Kind.REPLACE, "origin": Origin.ORDER,
        "reason": "Action:Replace", "phase": phase, "since": NOW - 10.0, "began": NOW - 20.0,
        "slurmd_start": 5.0,
    }  # fmt: skip
    return Recovery(**{**given, **fields})


def others(count=9):
    return {f"o{i}": node(name=f"o{i}") for i in range(count)}


def snapshot(one, *active, **fields):
    return Snapshot(nodes={"n1": one, **others()}, active=active, **fields)


def actions(*args, policy=POLICY, **fields):
    return decide(snapshot(*args, **fields), policy, NOW)


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (node("IDLE+FAIL", "Action:Replace"), (Kind.REPLACE, Origin.ORDER)),
        (node("DOWN", "Action:Reboot"), (Kind.REBOOT, Origin.ORDER)),
        (node("IDLE+DRAIN", "Action:Replace"), None),
        (node("IDLE", "Action:Replace"), None),
        (node("IDLE+FAIL", "fan is loud"), None),
        (node("DOWN", "fan is loud"), None),
        (node("IDLE+DRAIN", "Not responding"), None),
        (node("DOWN+NOT_RESPONDING", "Not responding"), (Kind.REBOOT, Origin.DOWN)),
        (node("DOWN", "hpresume: the lifecycle scripts run"), (Kind.REBOOT, Origin.DOWN)),
        (node("IDLE+DRAIN", "hpresume: the lifecycle scripts run"), None),
        (node("DOWN+NOT_RESPONDING", ""), (Kind.REBOOT, Origin.DOWN)),
        (node("DOWN+DRAIN", "Not responding"), None),
        (node("DOWN+POWERED_DOWN", "Not responding"), None),
        (node("DOWN+REBOOT_ISSUED", "Not responding"), None),
        (node("DOWN", "Node unexpectedly rebooted"), (Kind.CHECK, Origin.DOWN)),
        (node("IDLE+FAIL", MARK), (Kind.REPLACE, Origin.HEALTH)),
        # The node has booted since it was marked.
        (node("IDLE+FAIL", MARK, boot_time=NOW), (Kind.CHECK, Origin.HEALTH)),
        (node("IDLE+FAIL", "Action:Reboot", boot_time=NOW), (Kind.CHECK, Origin.ORDER)),
        (node("IDLE+FAIL", "Action:Replace", boot_time=NOW), (Kind.REPLACE, Origin.ORDER)),
        # What the store has lost, or what failed, is no person's order.
        (node("IDLE+FAIL", HOLD), (Kind.REPLACE, Origin.HEALTH)),
        (node("IDLE"), None),
    ],
)  # fmt: skip
def test_what_a_node_wants(one, wanted):
    begun = [a for a in actions(one) if isinstance(a, Begin)]
    assert [(b.kind, b.origin) for b in begun] == ([wanted] if wanted else [])


@pytest.mark.parametrize(
    ("one", "policy", "begins"),
    [
        (node("DOWN", "Not responding"), replace(POLICY, automatic=False), False),
        (node("IDLE+FAIL", MARK), replace(POLICY, automatic=False), False),
        (node("IDLE+FAIL", "Action:Replace"), replace(POLICY, automatic=False), True),
        (node("IDLE+FAIL", "Action:Replace"), replace(POLICY, allowed=frozenset({"n2"})), False),
        (node("IDLE+FAIL", "Action:Replace"), replace(POLICY, denied=frozenset({"n1"})), False),
    ],
    ids=["down-none", "health-none", "order-none", "not-allowed", "own-host"],
)  # fmt: skip
def test_what_the_configuration_allows(one, policy, begins):
    assert any(isinstance(a, Begin) for a in actions(one, policy=policy)) is begins


def waits(one, *jobs, **fields):
    """The note of a recovery that has to wait, or None."""
    kind = fields.pop("kind", Kind.REPLACE)
    origin = fields.pop("origin", Origin.ORDER)
    began = fields.pop("began", NOW - 20.0)
    this = recovery(kind=kind, origin=origin, reason=one.reason, began=began)
    found = actions(one, this, jobs={"n1": jobs} if jobs else {}, **fields)
    changes = [a.after for a in found if isinstance(a, Change)]
    return changes[0].note if changes and changes[0].phase is Phase.WAITING else None


FAIL = node("ALLOCATED+FAIL", "Action:Replace")
DOWN = node("DOWN", "Action:Replace")


@pytest.mark.parametrize(
    ("one", "jobs", "note"),
    [
        (FAIL, [JobOn(7)], "job 7 is running"),
        (FAIL, [JobOn(7), JobOn(8, waits=True)], "job 7 is running"),
        (FAIL, [JobOn(7, completing=True)], "job 7 is ending"),
        (FAIL, [JobOn(7, waits=True)], None),
        (FAIL, [], None),
        (node("IDLE+FAIL+COMPLETING", "Action:Replace"), [], "a job is ending"),
        (DOWN, [JobOn(7, completing=True)], "job 7 is still ending"),
        (DOWN, [], None),
    ],
)
def test_running_jobs_are_waited_for(one, jobs, note):
    assert waits(one, *jobs) == note


def test_the_end_of_jobs_on_a_node_that_is_down_is_not_waited_for_for_ever():
    assert waits(DOWN, JobOn(7, completing=True), began=NOW - POLICY.completing_s) is None


def test_maintenance_is_left_alone():
    assert waits(FAIL, maintenance=frozenset({"n1"})) == "a maintenance reservation has the node"


def test_a_node_that_went_down_has_its_grace():
    fresh = node("DOWN", "Not responding", reason_time=NOW - 20.0)
    note = waits(fresh, kind=Kind.REBOOT, origin=Origin.DOWN)
    assert note == "down by itself: grace for another 40 s"
    late = node("DOWN", "Not responding", reason_time=NOW - 61.0)
    assert waits(late, kind=Kind.REBOOT, origin=Origin.DOWN) is None


def test_first_out_of_service_then_looked_at_again_then_the_machine():
    (hold,) = actions(FAIL, recovery())
    assert isinstance(hold, Hold)
    assert reasons.is_hold(hold.reason)
    held = node("IDLE+FAIL", hold.reason)
    (act,) = actions(held, recovery())
    assert act.after.phase is Phase.TERMINATING
    assert act.after.acted_at == NOW
    assert waits(held, JobOn(9)) == "job 9 is running"


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (node("IDLE"), "taken back"),
        (node("IDLE+FAIL", "fan is loud"), "taken back"),
        (node("IDLE+FAIL", MARK), "another order"),
    ],
)
def test_an_order_that_was_taken_back_is_cancelled(one, word):
    (change,) = [a for a in actions(one, recovery()) if isinstance(a, Change)]
    assert change.after.phase is Phase.CANCELLED
    assert word in change.after.note


def test_silent_nodes_that_only_waiting_jobs_hold_are_replaced_before_slurm_notices():
    fields = {"jobs": {"n1": (JobOn(7, waits=True),)}}
    busy = node("ALLOCATED")
    assert not actions(busy, silent={"n1": NOW - 1.0}, **fields)
    (begin,) = actions(busy, silent={"n1": NOW - 5.0}, **fields)
    assert (begin.kind, begin.origin) == (Kind.REBOOT, Origin.SILENT)
    unwilling = {"jobs": {"n1": (JobOn(7, waits=True), JobOn(8))}}
    assert not actions(busy, silent={"n1": NOW - 99.0}, **unwilling)


def test_a_silent_node_that_answers_again_is_given_back():
    held = node("ALLOCATED+FAIL", HOLD)
    this = recovery(origin=Origin.SILENT)
    assert actions(held, this) == (Resume(this),)
    (change,) = actions(node("ALLOCATED"), this)
    assert change.after.phase is Phase.CANCELLED


HELD = node("IDLE+FAIL", HOLD)
NEW = Machine("m2", "n1", "hpr-ab-1", MachineState.RUNNING, "10.0.0.9")


def after(phase, outcome=None, one=HELD, **fields):
    this = recovery(phase, **fields)
    outcomes = {"ab": outcome} if outcome else {}
    (action,) = actions(one, this, outcomes=outcomes)
    return action


@pytest.mark.parametrize(
    ("phase", "outcome", "then"),
    [
        (Phase.TERMINATING, Outcome(Call.CLEAR), Phase.LAUNCHING),
        (Phase.TERMINATING, Outcome(Call.CLEAR, Trouble.REFUSED, "no"), Phase.QUARANTINING),
        (Phase.LAUNCHING, Outcome(Call.LAUNCH, machine=NEW), Phase.BOOTING),
        (Phase.LAUNCHING, Outcome(Call.LAUNCH, Trouble.CAPACITY, "none"), Phase.LAUNCHING),
        (Phase.LAUNCHING, Outcome(Call.LAUNCH, Trouble.REFUSED, "no"), Phase.ABANDONING),
        (Phase.REBOOTING, Outcome(Call.REBOOT, machine=NEW), Phase.BOOTING),
        (Phase.REBOOTING, Outcome(Call.REBOOT, Trouble.REFUSED, "gone"), Phase.TERMINATING),
        (Phase.CHECKING, Outcome(Call.CHECK), Phase.RETURNING),
        (Phase.CHECKING, Outcome(Call.CHECK, Trouble.FAULT, "7 of 8 GPUs"), Phase.TERMINATING),
        (Phase.CHECKING, Outcome(Call.CHECK, Trouble.TRANSIENT, "no srun"), Phase.CHECKING),
        (Phase.BOOTING, Outcome(Call.DESCRIBE, machine=None), Phase.TERMINATING),
        (Phase.ABANDONING, Outcome(Call.CLEAR), Phase.QUARANTINING),
    ],
)
def test_what_follows_a_call(phase, outcome, then):
    change = after(phase, outcome)
    assert change.after.phase is then
    assert change.after.times.get(then.value) == (NOW if then is not phase else None)


@pytest.mark.parametrize(
    ("phase", "call", "limit", "then"),
    [
        (Phase.TERMINATING, Call.CLEAR, POLICY.terminate_s, Phase.QUARANTINING),
        (Phase.LAUNCHING, Call.LAUNCH, POLICY.launch_s, Phase.TERMINATING),
        (Phase.REBOOTING, Call.REBOOT, POLICY.reboot_s, Phase.TERMINATING),
        (Phase.CHECKING, Call.CHECK, POLICY.check_s, Phase.QUARANTINING),
        (Phase.ABANDONING, Call.CLEAR, POLICY.terminate_s, Phase.QUARANTINING),
    ],
)
def test_every_phase_has_a_deadline_and_a_last_try_behind_it(phase, call, limit, then):
    late = {"since": NOW - limit, "retry_at": NOW + 60.0, "tries": 4}
    # A controller that was not there, or saw nothing, has not tried yet.
    (make,) = actions(HELD, recovery(phase, **late))
    assert (type(make), make.call) == (Make, call)
    failed = Outcome(call, Trouble.TRANSIENT, "no")
    assert after(phase, failed, **late).after.phase is then


def test_a_boot_has_a_deadline():
    assert after(Phase.BOOTING, since=NOW - POLICY.boot_s).after.phase is Phase.TERMINATING


def test_time_in_which_nothing_was_seen_is_not_counted():
    late = recovery(Phase.BOOTING, since=NOW - 5 * POLICY.boot_s)
    (make,) = actions(HELD, late, watched_since=NOW - POLICY.boot_s + 1.0)
    assert make.call is Call.DESCRIBE
    (change,) = actions(HELD, late, watched_since=NOW - POLICY.boot_s)
    assert change.after.phase is Phase.TERMINATING


def test_a_clock_that_is_set_back_holds_nothing_up():
    ahead = {"since": NOW + 7200.0, "retry_at": NOW + 7200.0, "began": NOW + 7200.0}
    (make,) = actions(HELD, recovery(Phase.LAUNCHING, **ahead))
    assert make.call is Call.LAUNCH
    seen = {"watched_since": NOW - POLICY.boot_s}
    (change,) = actions(HELD, recovery(Phase.BOOTING, **ahead), **seen)
    assert change.after.phase is Phase.TERMINATING
    down = node("DOWN", "Not responding", reason_time=NOW + 7200.0)
    waits = recovery(origin=Origin.DOWN, kind=Kind.REBOOT, **ahead)
    (hold,) = actions(down, waits, watched_since=NOW - POLICY.down_grace_s)
    assert isinstance(hold, Hold)


def test_a_call_under_way_is_waited_for_even_past_the_deadline():
    late = recovery(Phase.LAUNCHING, since=0.0)
    assert actions(HELD, late, in_flight={"ab": Call.LAUNCH}) == ()


def test_each_attempt_has_a_token_of_its_own_and_keeps_it():
    first = recovery(Phase.LAUNCHING)
    again = after(Phase.LAUNCHING, Outcome(Call.LAUNCH, Trouble.TRANSIENT, "lost"))
    assert again.after.token == first.token
    next_one = after(Phase.CHECKING, Outcome(Call.CHECK, Trouble.FAULT, "bad"))
    assert next_one.after.token != first.token


@pytest.mark.parametrize(
    ("phase", "outcome", "then"),
    [
        (Phase.CHECKING, Outcome(Call.CHECK, Trouble.FAULT, "7 of 8 GPUs"), Phase.QUARANTINING),
        (Phase.BOOTING, Outcome(Call.DESCRIBE, machine=None), Phase.ABANDONING),
    ],
)
def test_the_last_attempt(phase, outcome, then):
    assert after(phase, outcome, attempt=POLICY.max_attempts).after.phase is then


def test_booting_goes_by_what_slurm_hears_from_the_new_slurmd():
    this = {"machine_id": "m2", "address": "10.0.0.9", "slurmd_start": 5.0}
    assert after(Phase.BOOTING, **this) == SetAddress(recovery(Phase.BOOTING, **this), "10.0.0.9")
    told = replace(HELD, address="10.0.0.9")
    assert isinstance(after(Phase.BOOTING, one=told, **this), Make)
    # slurmctld keeps another one: it is told again, but not in every pass.
    lately = {**this, "times": {"addressed": NOW - 1.0}}
    assert isinstance(after(Phase.BOOTING, **lately), Make)
    before = {**this, "times": {"addressed": NOW - 11.0}}
    assert isinstance(after(Phase.BOOTING, **before), SetAddress)
    up = replace(told, slurmd_start_time=6.0)
    assert after(Phase.BOOTING, one=up, **this).after.phase is Phase.CHECKING
    small = replace(up, states=up.states | {"INVAL"})
    assert isinstance(after(Phase.BOOTING, one=small, **this), Make)


def test_somebody_who_gives_the_node_back_too_early_is_corrected():
    assert isinstance(after(Phase.LAUNCHING, one=node("IDLE")), Hold)


def test_the_end():
    this = recovery(Phase.RETURNING)
    assert actions(HELD, this) == (Resume(this),)
    # What slurmctld makes of a node that was DOWN (22.05): a second RESUME is "Invalid node state".
    assert actions(node("IDLE+NOT_RESPONDING"), this) == ()
    late = replace(this, since=NOW - 9999.0)
    assert actions(node("IDLE+NOT_RESPONDING"), late)[0].after.phase is Phase.FAILED
    assert actions(node("IDLE"), this)[0].after.phase is Phase.RETURNED
    foreign = actions(node("IDLE+DRAIN", "fan is loud"), this)[0]
    assert foreign.after.phase is Phase.RETURNED
    assert "fan is loud" in foreign.message


def test_an_order_that_slurmctld_has_brought_back_is_not_followed_twice():
    """It was killed, and has the reason from before ours again; another order is another one."""
    this = recovery(Phase.RETURNING)
    for reason in ("Action:Replace", "Action:Replace : Not responding"):
        saved = node("IDLE+FAIL", reason, reason_time=this.began - 1.0)
        assert actions(saved, this) == (Resume(this),)
    for one in (
        node("IDLE+FAIL", "Action:Replace", reason_time=this.began + 1.0),
        node("IDLE+FAIL", "Action:Reboot", reason_time=this.began - 1.0),
    ):
        (action,) = actions(one, this)
        assert action.after.phase is Phase.RETURNED
        assert "left as it is" in action.message


def test_quarantine_tells_the_story():
    this = recovery(Phase.QUARANTINING, note="3 attempts, the last one (replace): 7 of 8 GPUs")
    (action,) = actions(HELD, this)
    assert action == SetQuarantine(
        this, "Quarantined by hpresume: 3 attempts, the last one (replace): 7 of 8 GPUs"
    )
    done = node("IDLE+DRAIN", action.reason)
    assert actions(done, this)[0].after.phase is Phase.QUARANTINED
    assert actions(done) == ()


def ended(phase=Phase.RETURNED, **fields):
    return recovery(phase, **{"acted_at": NOW - 9999.0, "ended_at": NOW - 9000.0,
                              "origin": Origin.DOWN, **fields})  # fmt: skip


def test_a_flapping_node_is_quarantined_unless_a_person_orders():
    past = (ended(), ended(), ended())
    dead = node("DOWN", "Not responding")
    this = recovery(origin=Origin.DOWN, kind=Kind.REPLACE, reason=dead.reason)
    (change,) = actions(dead, this, past=past)
    assert change.after.phase is Phase.QUARANTINING
    assert "3 recoveries within 24 h did not last" in change.after.note
    assert isinstance(actions(FAIL, recovery(), past=past)[0], Hold)
    reset = (*past, ended(Phase.QUARANTINED))
    this = replace(this, kind=Kind.REBOOT)
    assert isinstance(actions(dead, this, past=reset)[0], Hold)


def test_what_did_not_last_is_followed_by_the_stronger_remedy():
    dead = node("DOWN", "Not responding")
    assert actions(dead)[0].kind is Kind.REBOOT
    assert actions(dead, past=(ended(kind=Kind.REBOOT),))[0].kind is Kind.REPLACE
    mark = node("IDLE+FAIL", "Action:Reboot [hpresume kernel-xid] XID 79")
    twice = (ended(kind=Kind.REBOOT), ended(kind=Kind.REBOOT))
    assert actions(mark, past=twice[:1])[0].kind is Kind.REBOOT
    assert actions(mark, past=twice)[0].kind is Kind.REPLACE


def test_mass_failure_halts_what_is_automatic_and_says_so_once():
    dead = {f"o{i}": node("DOWN", "Not responding", name=f"o{i}") for i in range(6)}
    known = {"n1": node("DOWN", "Not responding"), **others(), **dead}
    this = recovery(origin=Origin.DOWN, kind=Kind.REBOOT, reason="Not responding")
    seen = Snapshot(known, active=(this,))
    found = decide(seen, POLICY, NOW)
    assert not [a for a in found if isinstance(a, Hold)]
    (said,) = [a for a in found if isinstance(a, Say)]
    assert "7 of 10 nodes of partition main are bad" in said.message
    again = decide(replace(seen, notices=frozenset({"halt:main"})), POLICY, NOW)
    assert not [a for a in again if isinstance(a, Say)]
    order = replace(seen, active=(recovery(),), nodes={**known, "n1": FAIL})
    assert [a for a in decide(order, POLICY, NOW) if isinstance(a, Hold)]
    better = actions(node("IDLE"), notices=frozenset({"halt:main"}))
    assert better == (Unsay("halt:main"),)


def test_so_many_at_once_and_so_many_an_hour():
    working = tuple(recovery(Phase.LAUNCHING, uid=f"w{i}", node=f"o{i}") for i in range(2))
    held = {f"o{i}": node("IDLE+FAIL", HOLD, name=f"o{i}") for i in range(2)}
    seen = Snapshot({"n1": FAIL, **others(), **held}, active=(*working, recovery()))
    notes = [a.after.note for a in decide(seen, POLICY, NOW) if isinstance(a, Change)]
    assert notes == ["2 other nodes are being recovered"]
    hour = tuple(ended(uid=f"p{i}", node=f"o{i}", acted_at=NOW - 60.0) for i in range(10))
    found = actions(FAIL, recovery(), past=hour)
    assert [a.after.note for a in found if isinstance(a, Change)] == [
        "10 actions were begun within the hour"
    ]
    assert [a.key for a in found if isinstance(a, Say)] == ["limit:hour"]


def test_near_misses_are_reported_once_and_forgotten_when_they_are_gone():
    miss = node("IDLE+FAIL", "action:replace")
    (said,) = actions(miss)
    assert said.event == "near-miss"
    assert said.comment.startswith("hpresume: not obeyed")
    told = {"notices": frozenset({said.key})}
    assert actions(miss, **told) == ()
    # Slurm 24.11 keeps the reason of a node that is resumed.
    resumed = node("IDLE", reason="action:replace")
    assert actions(resumed, **told) == (Unsay(said.key, "n1"),)
    assert actions(node("IDLE"), **told) == (Unsay(said.key, "n1"),)
    # Another one is told too, and its comment is not taken with the first one's.
    forgotten, again = actions(node("IDLE+FAIL", "Action: Replace"), **told)
    assert forgotten == Unsay(said.key, "n1")
    assert "'Action: Replace'" in again.comment
