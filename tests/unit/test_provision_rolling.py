"""UpdateClusterSoftware: the table of decisions."""

from __future__ import annotations

from typing import Any

import pytest
from provision_world import deployment_config as config

from hpresume.provision.rolling import EndBatch, Finish, Member, Replace, RollBack, Wait, decide
from hpresume.provision.software import Software, Stage, Update

NEW = "ami-0123456789abcdef0"
NOW = 1000.0


def update(stage: Stage = Stage.IN_PROGRESS, **more: Any) -> Update:
    return Update(Software(2, NEW), stage, **{"config": config(), **more})


def old(name: str, **more: Any) -> Member:
    return Member(name, 1, **more)


def new(name: str, **more: Any) -> Member:
    return Member(name, 2, **more)


ALARM = config(AutoRollbackConfiguration=[{"AlarmName": "errors"}])
BACK = Stage.ROLLBACK_IN_PROGRESS

CASES = {
    "the first batch": (update(), [old("a"), old("b")], Replace(("a",))),
    "a batch of two": (
        update(config=config(2)), [new("a"), old("b"), old("c"), old("d")], Replace(("b", "c")),
    ),
    "without a policy all at once": (
        update(config={}), [old("a"), old("b"), old("c")], Replace(("a", "b", "c")),
    ),
    "a batch is under way": (
        update(batching=True), [new("a", is_up=False, in_batch=True), old("b")], Wait(),
    ),
    "it has come back": (update(batching=True), [new("a"), old("b")], EndBatch(NOW)),
    "then the pause begins": (
        update(batching=True, config=config(1, 60)), [new("a"), old("b")], EndBatch(NOW + 60),
    ),
    "in the pause": (update(not_before=NOW + 1), [new("a"), old("b")], Wait()),
    "after the pause": (update(not_before=NOW), [new("a"), old("b")], Replace(("b",))),
    "all have the new software": (update(), [new("a"), new("b")], Finish(Stage.SUCCEEDED)),
    "a group without nodes": (update(), [], Finish(Stage.SUCCEEDED)),
    "no machine, no update": (
        update(), [new("a"), old("b", has_machine=False, is_up=False)], Finish(Stage.SUCCEEDED),
    ),
    "a node that is coming up is waited for": (update(), [new("a"), old("b", is_up=False)], Wait()),
    "node recovery has the node": (
        update(), [old("a", is_free=False), old("b")], Replace(("b",)),
    ),
    "and it alone is left": (update(), [old("a", is_free=False), new("b")], Wait()),
    "a node that died meanwhile has the new software already": (
        update(), [new("a", is_up=False), old("b")], Replace(("b",)),
    ),
    "the batch has failed": (
        update(broken="a: no", batching=True),
        [new("a", is_up=False, in_batch=True), old("b")],
        RollBack("a: no"),
    ),
    "an alarm rings": (
        update(config=ALARM), [new("a"), old("b")], RollBack("in alarm: errors"),
    ),
    "another one's alarm": (
        update(config=config(AutoRollbackConfiguration=[{"AlarmName": "other"}])),
        [new("a"), old("b")],
        Replace(("b",)),
    ),
    "back: the batch first": (
        update(BACK, batching=True), [new("a"), old("b", is_up=False, in_batch=True)], Wait(),
    ),
    "back: without a pause": (
        update(BACK, batching=True, config=config(1, 60)), [new("a"), old("b")], EndBatch(NOW),
    ),
    "back: one batch": (update(BACK), [new("a"), new("c"), old("b")], Replace(("a",))),
    "back: a batch size of its own": (
        update(BACK, config=config(1, back=2)), [new("a"), new("b"), new("c")],
        Replace(("a", "b")),
    ),
    "back: done": (update(BACK), [old("a"), old("b")], Finish(Stage.ROLLBACK_COMPLETE)),
    "back: does not come up either": (
        update(BACK, broken="a: no", batching=True),
        [old("a", is_up=False, in_batch=True)],
        Finish(Stage.FAILED, "a: no"),
    ),
    "back: alarms are not asked": (
        update(BACK, config=ALARM), [new("a"), old("b")], Replace(("a",)),
    ),
    "not begun": (update(Stage.PENDING), [old("a")], Wait()),
    "over": (update(Stage.SUCCEEDED), [old("a")], Wait()),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_next_step(case: str) -> None:
    present, members, step = CASES[case]
    assert decide(present, members, NOW, frozenset({"errors"})) == step


def test_without_news_of_its_alarms_no_batch_begins() -> None:
    members = [new("a"), old("b")]
    assert decide(update(config=ALARM), members, NOW, None) == Wait()
    assert decide(update(), members, NOW, None) == Replace(("b",))


@pytest.mark.parametrize(
    ("given", "nodes", "size"),
    [
        (config(3), 10, 3),
        (config(30), 10, 30),
        (config(25, percent=True), 10, 2),
        (config(1, percent=True), 10, 1),
        (config(100, percent=True), 10, 10),
        ({"WaitIntervalInSeconds": 5}, 10, 10),
        ({}, 0, 1),
    ],
)
def test_the_size_of_a_batch(given: dict[str, Any], nodes: int, size: int) -> None:
    assert update(config=given).batch(nodes) == size
    assert update(BACK, config=given).batch(nodes) == size
