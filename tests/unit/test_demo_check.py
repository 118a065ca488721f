"""The demo's own judgement: it must not call a run good that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from script_modules import load

check = load("demo_check")

FIRST = [
    (100.0, "rank 0 of 3 up on n1 attempt 1"),
    (100.1, "rank 2 of 3 up on n3 attempt 1"),
    (100.2, "rank 1 of 3 up on n2 attempt 1"),
    (101.0, "epoch=1 loss=2.1 nodes=3 attempt=1"),
    (102.0, "epoch=2 loss=1.1 nodes=3 attempt=1"),
]
SECOND = [
    (105.0, "rank 0 of 3 up on n1 attempt 2"),
    (105.2, "rank 2 of 3 up on n4 attempt 2"),
    (105.1, "rank 1 of 3 up on n2 attempt 2"),
    (105.3, "resumed after epoch=2 from digits-1.npz"),
    (106.0, "epoch=3 loss=0.9 nodes=3 attempt=2"),
    (107.0, "epoch=4 loss=0.8 nodes=3 attempt=2"),
    (107.1, "done epochs=4 accuracy=0.9 attempt=2"),
]
JOURNAL = (
    {"event": "attempt", "t": 101.0, "attempt": 1},
    {"event": "fault", "t": 104.6, "nodes": ["n3"], "seen_at": 104.5, "evidence": ["n3 is lost"]},
    {"event": "action", "t": 104.7, "what": "starting again on n1,n2,n4"},
)


def training(lines):
    seen = check.Training()
    for at, line in lines:
        seen.read(line, at)
    return seen


def run(first=FIRST, second=SECOND, **changes):
    return replace(
        check.Run(
            crashed="n3",
            crashed_at=102.5,
            epochs=4,
            nodes=3,
            job_state="COMPLETED",
            exit_code=0,
            training=training([*first, (103.0, "[Auto Resume] whatever"), *second]),
            journal=JOURNAL,
        ),
        **changes,
    )


def without(lines, part):
    return [(at, line) for at, line in lines if part not in line]


def changed(lines, old, new):
    return [(at, line.replace(old, new)) for at, line in lines]


def test_a_good_run():
    assert run().problems() == []
    assert run().result() == {
        "crashed": "n3",
        "detected_s": 2.0,
        "resumed_s": 2.7,
        "attempts": 2,
        "exit_code": 0,
        "epochs": 4,
    }


def test_an_epoch_that_was_saved_and_not_printed_is_not_lost():
    second = without(changed(SECOND, "after epoch=2", "after epoch=3"), "epoch=3 loss")
    assert run(second=second).problems() == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (run(job_state="FAILED", exit_code=1), "ended FAILED with exit code 1"),
        (run(second=[]), "1 attempts were made"),
        (run(second=changed(SECOND, "attempt 2", "attempt 3")), "3 attempts were made"),
        (run(second=without(SECOND, "done")), "the training ended after epoch None"),
        (run(journal=()), "does not say that n3 was lost"),
        (run(journal=({"event": "fault", "t": 103.0, "nodes": ["n2"]},)), "n3 was lost"),
        (run(second=without(SECOND, "rank 2")), "not all ranks of attempt 2"),
        (run(second=changed(SECOND, "on n4", "on n3")), "attempt 2 ran on n1, n2, n3"),
        (run(second=without(SECOND, "resumed")), "no checkpoint was resumed from"),
        (run(second=changed(SECOND, "after epoch=2", "after epoch=1")), "the checkpoint had 1"),
        (run(second=without(SECOND, "epoch=3 loss")), "and completed [4]"),
        (run(first=without(FIRST, "epoch=1 ")), "attempt 1 completed the epochs [2]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_way_to_go_wrong_is_named(bad, words):
    assert words in "; ".join(bad.problems())


def test_the_timeline_begins_with_the_crash():
    assert run().timeline() == [
        (0.0, "n3 loses power in epoch 3"),
        (2.0, "seen: n3 is lost"),
        (2.2, "starting again on n1,n2,n4"),
        (2.7, "all ranks are up on n1, n2, n4"),
        (3.5, "epoch 3 is complete"),
        (4.6, "epoch 4: done, accuracy 0.9"),
    ]


def test_a_run_that_never_got_anywhere_still_gives_a_result():
    empty = run(first=[], second=[], journal=())
    assert empty.result()["resumed_s"] is None
    assert empty.problems()
