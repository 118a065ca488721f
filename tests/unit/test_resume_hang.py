"""When silent ranks are a hang, and which of them is to blame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpresume.resume.hang import Hang, Touch, judge

LIMIT, GRACE = 10.0, 30.0


def touches(**at: float) -> dict[int, Touch]:
    """``r0=5.0``: rank 0 touched its file at 5.0, on node n0."""
    return {int(name[1:]): Touch(t, f"n{name[1:]}") for name, t in at.items()}


CASES = [
    ("all touch", touches(r0=99, r1=98, r2=97), 100.0, None),
    ("one is late, within the limit", touches(r0=99, r1=90, r2=99), 100.0, None),
    ("one is silent", touches(r0=99, r1=89, r2=99), 100.0, Hang((1,), ("n1",), 11.0)),
    (
        "the others wait for the first: it alone is to blame",
        touches(r0=85, r1=70, r2=86),
        100.0,
        Hang((1,), ("n1",), 30.0),
    ),
    (
        "two that fell silent together",
        touches(r0=80, r1=80.5, r2=99),
        100.0,
        Hang((0, 1), ("n0", "n1"), 20.0),
    ),
    ("nobody yet, within the grace", {}, 29.0, None),
    ("nobody yet, after it", {}, 31.0, Hang((), (), 31.0)),
    ("one has not begun, within the grace", touches(r0=28, r1=28), 29.0, None),
    ("one has never begun", touches(r0=30, r1=30), 31.0, Hang((2,), (), 31.0)),
]


@pytest.mark.parametrize(
    ("seen", "now", "wanted"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_cases(seen: dict[int, Touch], now: float, wanted: Hang | None) -> None:
    assert judge(seen, 3, 0.0, now, LIMIT, GRACE) == wanted


ENDED, MUTE = frozenset({2}), frozenset({"n1"})

APART = [
    ("a rank that has ended owes nothing", touches(r0=99, r1=99, r2=50), ENDED, {}, None),
    ("nor does one that ended before it touched", touches(r0=99, r1=99), ENDED, {}, None),
    ("the others still do", touches(r0=99, r1=80, r2=50), ENDED, {}, Hang((1,), ("n1",), 20.0)),
    ("of a mute node's rank nobody knows", touches(r0=99, r1=50, r2=99), {}, MUTE, None),
    ("those that wait for it", touches(r0=85, r1=50, r2=99), {}, MUTE, Hang((0,), ("n0",), 15.0)),
    ("it is all that is left", touches(r0=20, r1=50), {0, 2}, MUTE, Hang((1,), ("n1",), 50.0)),
    ("who never touched may be there", touches(r0=99), {}, MUTE, None),
    ("nobody ever touched", {}, {}, MUTE, Hang((), (), 100.0)),
]


@pytest.mark.parametrize(
    ("seen", "ended", "mute", "wanted"), [c[1:] for c in APART], ids=[c[0] for c in APART]
)
def test_ranks_that_ended_and_mute_nodes(
    seen: dict[int, Touch], ended: set[int], mute: set[str], wanted: Hang | None
) -> None:
    found = judge(seen, 3, 0.0, 100.0, LIMIT, GRACE, frozenset(ended), frozenset(mute))
    assert found == wanted


def test_words() -> None:
    assert Hang((1,), ("n2",), 61.4).text == "rank 1 on n2 silent for 61 s"
    assert Hang((1, 4), (), 61.4).text == "ranks 1, 4 silent for 61 s"
    assert Hang((), (), 900.0).text == "no rank has touched its heartbeat file for 900 s"
    assert "(20 ranks)" in Hang(tuple(range(20)), (), 1.0).text


@given(
    st.dictionaries(st.integers(0, 7), st.floats(0, 1000), max_size=8),
    st.floats(0, 1100),
    st.floats(1, 100),
    st.floats(0, 100),
)
def test_properties(at: dict[int, float], now: float, limit: float, grace: float) -> None:
    seen = {rank: Touch(t, "n") for rank, t in at.items()}
    found = judge(seen, 8, 0.0, now, limit, grace)
    if found is None:
        assert all(now - t <= limit for t in at.values())
        return
    # Never before the limit, never a rank that has just touched its file.
    assert found.silent_s > limit or now > max(grace, limit)
    for rank in found.ranks:
        assert rank not in at or now - at[rank] > limit
