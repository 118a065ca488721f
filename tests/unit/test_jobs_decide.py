"""What the controller does for auto-resume jobs, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from hpresume.jobs.decide import decide
from hpresume.jobs.model import (
    Action,
    Begin,
    Check,
    Close,
    Effect,
    Forget,
    Guarded,
    Halt,
    Phase,
    Policy,
    Pulse,
    Report,
    Return,
    SetNode,
    Snapshot,
    Step,
    Unreserve,
)
from hpresume.recovery.model import Call, JobOn, Outcome, Trouble
from hpresume.slurm.models import Job, JobState, Node

T = TypeVar("T")

NOW = 1000.0
NAMES = ("n1", "n2", "n3", "n4", "n5", "n6")
NODES = {name: Node(name, frozenset({"ALLOCATED"})) for name in NAMES}
ASKED = frozenset(NAMES)
JOB = Job(
    7, JobState.RUNNING, user_id=500, nodes=("n1", "n2", "n3"), num_nodes=3, batch=True,
    batch_host="n1", requeue=True, restarts=1,
)  # fmt: skip
GUARDED = Guarded(7, 500, 1, "n1", ("n1", "n2", "n3"), 3, NOW - 100)
DEAD = Pulse(NOW - 3, 3)
POLICY = Policy()
SCENE = Snapshot(
    guarded=(GUARDED,), asked=ASKED, silent={"n1": DEAD}, nodes=NODES, jobs={7: JOB}
)  # fmt: skip
WAY = Return(7, 500, 1, 3, ("n1",), (), ("n2", "n3"), "n1", Phase.KEEPING, NOW)
REPORT = Report("r", 7, 500, "n4", "unhealthy", "ECC errors", NOW - 10)
LOOK = Snapshot(reports=(REPORT,), asked=ASKED, nodes=NODES)


def of(kind: type[T], actions: tuple[Action, ...]) -> list[T]:
    return [a for a in actions if isinstance(a, kind)]


def changed(name: str, *states: str) -> dict[str, Node]:
    return {**NODES, name: Node(name, frozenset(states))}


def test_a_lost_batch_host_is_left_in_one_pass() -> None:
    actions = decide(SCENE, POLICY, NOW)
    (begun,) = of(Begin, actions)
    assert begun.new == WAY
    steps = of(Step, actions)
    assert [(s.effect, s.after.phase) for s in steps] == [
        (Effect.KEEP, Phase.LEAVING),
        (Effect.DOWN, Phase.QUEUED),
    ]
    assert steps[-1].after.kept


@pytest.mark.parametrize(
    "scene",
    [
        replace(SCENE, silent={}),
        replace(SCENE, silent={"n1": Pulse(NOW - 3, 2)}),
        replace(SCENE, silent={"n1": Pulse(NOW - 1, 3)}),
        replace(SCENE, nodes=changed("n1", "IDLE", "POWERING_DOWN")),
        replace(SCENE, nodes=changed("n1", "ALLOCATED", "MAINT")),
        replace(SCENE, nodes={}),
        replace(SCENE, jobs={7: None}),
        replace(SCENE, jobs={7: replace(JOB, requeue=False)}),
        replace(SCENE, jobs={7: replace(JOB, user_id=501)}),
        # It runs elsewhere by now.
        replace(SCENE, jobs={7: replace(JOB, restarts=2)}),
        replace(SCENE, jobs={7: replace(JOB, batch_host="n2")}),
        replace(SCENE, jobs={7: replace(JOB, state=JobState.COMPLETED)}),
        replace(SCENE, returns=(replace(WAY, phase=Phase.DONE),)),
    ],
    ids=[
        "answers", "asked twice", "for a second", "powering down", "maintenance", "unknown node",
        "unknown job", "no requeue", "another owner", "another run", "another host", "over",
        "was dealt with",
    ],
)  # fmt: skip
def test_nothing_is_done_about(scene: Snapshot) -> None:
    assert decide(scene, POLICY, NOW) == ()


def test_many_silent_nodes_are_a_cut_network() -> None:
    cut = replace(SCENE, silent=dict.fromkeys(("n1", "n2", "n3"), DEAD))
    (halt,) = decide(cut, POLICY, NOW)
    assert isinstance(halt, Halt)
    assert halt.on
    assert "3 of 6" in halt.message
    assert decide(replace(cut, halted=True), POLICY, NOW) == ()
    again = replace(SCENE, silent={}, halted=True)
    assert decide(again, POLICY, NOW) == (Halt(False),)
    # What is under way is not set DOWN either.
    leaving = replace(cut, halted=True, returns=(replace(WAY, phase=Phase.LEAVING),))
    assert decide(leaving, POLICY, NOW) == ()


def test_a_host_that_was_given_up_wrongly_may_be_lost_later() -> None:
    done = replace(WAY, phase=Phase.DONE, began=NOW - 100)
    assert of(Begin, decide(replace(SCENE, returns=(done,)), POLICY, NOW))


def test_slurm_was_faster() -> None:
    down = replace(SCENE, silent={}, nodes=changed("n1", "DOWN"))
    pending = replace(JOB, state=JobState.PENDING, restarts=2, nodes=(), batch_host="")
    actions = decide(replace(down, jobs={7: pending}), POLICY, NOW)
    (begun,) = of(Begin, actions)
    assert begun.new.keep == ("n2", "n3")
    assert Effect.DOWN not in [s.effect for s in of(Step, actions)]


def test_another_reservation_of_the_job_is_left_to_it() -> None:
    actions = decide(replace(SCENE, jobs={7: replace(JOB, reservation="team")}), POLICY, NOW)
    assert of(Begin, actions)[0].new.keep == ()
    assert Effect.KEEP not in [s.effect for s in of(Step, actions)]


def way_of(phase: Phase, job: Job | None, **fields: object) -> Snapshot:
    way = replace(WAY, phase=phase, kept=True, **fields)  # type: ignore[arg-type]
    return replace(SCENE, returns=(way,), jobs={7: job})


PENDING = replace(JOB, state=JobState.PENDING, restarts=2, nodes=())


@pytest.mark.parametrize(
    ("scene", "now", "expected"),
    [
        (way_of(Phase.LEAVING, JOB), NOW, (Effect.DOWN, Phase.QUEUED)),
        (replace(way_of(Phase.LEAVING, JOB), silent={}), NOW, (Effect.RELEASE, Phase.DONE)),
        (
            replace(way_of(Phase.LEAVING, JOB), holders={"n1": (JobOn(9, waits=True),)}),
            NOW,
            (Effect.RELEASE, Phase.DONE),
        ),
        (way_of(Phase.QUEUED, PENDING), NOW + 12, (Effect.BRING_BACK, Phase.STARTING)),
        # Right behind the end of the old run.
        (way_of(Phase.QUEUED, PENDING), NOW + 1, (Effect.NONE, Phase.QUEUED)),
        (way_of(Phase.QUEUED, PENDING, lost=""), NOW + 12, (Effect.NONE, Phase.QUEUED)),
        # The clock was set back by hours behind the last look.
        (
            way_of(Phase.QUEUED, PENDING, ready_at=NOW - 1, look_at=NOW + 7200),
            NOW,
            (Effect.BRING_BACK, Phase.STARTING),
        ),
        (way_of(Phase.STARTING, PENDING), NOW + 301, (Effect.RELEASE, Phase.STARTING)),
        (way_of(Phase.STARTING, None), NOW, (Effect.RELEASE, Phase.DONE)),
        (
            way_of(Phase.STARTING, replace(PENDING, state=JobState.CANCELLED)),
            NOW,
            (Effect.RELEASE, Phase.DONE),
        ),
        (way_of(Phase.QUEUED, replace(JOB, restarts=2)), NOW, (Effect.RELEASE, Phase.DONE)),
        (way_of(Phase.QUEUED, JOB, lost=""), NOW + 1801, (Effect.RELEASE, Phase.DONE)),
        (way_of(Phase.QUEUED, JOB), NOW + 5, (Effect.RELEASE, Phase.DONE)),
    ],
    ids=[
        "set down", "answers again", "somebody waits for it", "brought back", "not at once",
        "announced: not at once", "the clock was set", "kept long enough", "gone",
        "cancelled", "runs again", "too late", "was given back",
    ],
)  # fmt: skip
def test_the_way_back(scene: Snapshot, now: float, expected: tuple[Effect, Phase]) -> None:
    (step,) = of(Step, decide(scene, POLICY, now))
    assert (step.effect, step.after.phase) == expected


@pytest.mark.parametrize("completing", [True, False])
def test_a_job_that_is_completing_is_not_touched(completing: bool) -> None:
    flags = frozenset({"COMPLETING"}) if completing else frozenset()
    job = replace(PENDING, flags=flags) if completing else JOB
    assert decide(way_of(Phase.QUEUED, job, lost=""), POLICY, NOW + 20) == ()


def test_reservations_of_nobody_are_deleted() -> None:
    names = frozenset({"hpresume-keep-7", "hpresume-keep-8", "hpresume-keep-me"})
    scene = replace(way_of(Phase.STARTING, PENDING), reservations=names)
    assert decide(scene, POLICY, NOW) == (Unreserve("hpresume-keep-8"),)


def test_jobs_that_are_over_are_forgotten_unless_on_their_way_back() -> None:
    over = replace(SCENE, silent={}, running=frozenset({1}))
    assert decide(over, POLICY, NOW) == (Forget(frozenset({7})),)
    assert decide(replace(over, returns=(WAY,), jobs={}), POLICY, NOW) == ()


FAULT = Outcome(Call.CHECK, Trouble.FAULT, "3 of 4 GPUs")


@pytest.mark.parametrize(
    ("scene", "kinds"),
    [
        (LOOK, [Check]),
        (replace(LOOK, holders={"n4": (JobOn(8),)}), []),
        (replace(LOOK, checking=frozenset({"n4"})), []),
        (replace(LOOK, checking=frozenset({"n1", "n2"})), []),
        (replace(LOOK, outcomes={"n4": FAULT}), [SetNode, Close]),
        (replace(LOOK, outcomes={"n4": Outcome(Call.CHECK, words="good")}), [Close]),
        (replace(LOOK, outcomes={"n4": replace(FAULT, trouble=Trouble.TRANSIENT)}), [Close]),
        (replace(LOOK, checked={"n4": NOW - 60}), [Close]),
        (replace(LOOK, nodes=changed("n4", "IDLE", "DRAIN")), [Close]),
        (replace(LOOK, nodes={}), [Close]),
        (replace(LOOK, reports=(replace(REPORT, sign="lost"),)), [Close]),
        (replace(LOOK, silent={"n4": Pulse(NOW, 1)}), []),
        (replace(LOOK, silent={"n4": DEAD}), [SetNode, Close]),
        (replace(LOOK, silent={"n4": DEAD}, holders={"n4": (JobOn(8),)}), []),
        (replace(LOOK, silent={"n4": DEAD}, holders={"n4": (JobOn(8, waits=True),)}), [Close]),
        (replace(LOOK, asked=frozenset()), []),
        (
            replace(
                LOOK, holders={"n4": (JobOn(8),)}, reports=(replace(REPORT, at=NOW - 601),)
            ),
            [Close],
        ),
    ],
    ids=[
        "is checked", "not while a job has it", "not twice", "not many", "fault", "healthy",
        "no verdict", "not again soon", "is drained", "unknown", "well, and said to be lost",
        "silent once", "dead", "dead, and held", "dead, and waited for", "not asked yet",
        "never free",
    ],
)  # fmt: skip
def test_a_report(scene: Snapshot, kinds: list[type]) -> None:
    actions = decide(scene, POLICY, NOW)
    assert [type(a) for a in actions] == kinds


def test_what_a_report_comes_to_is_an_order_that_recovery_reads() -> None:
    fault, _ = decide(replace(LOOK, outcomes={"n4": FAULT}), POLICY, NOW)
    assert fault == SetNode("n4", "FAIL", "Action:Replace [hpresume report] 3 of 4 GPUs")
    dead, _ = decide(replace(LOOK, silent={"n4": DEAD}), POLICY, NOW)
    assert isinstance(dead, SetNode)
    assert dead.state == "DOWN"
    assert dead.reason.startswith("Not responding")


def test_nodes_that_the_configuration_protects_are_left_alone() -> None:
    policy = replace(POLICY, denied=frozenset({"n4"}))
    (close,) = decide(replace(LOOK, silent={"n4": DEAD}), policy, NOW)
    assert isinstance(close, Close)
    assert "configuration" in close.message
