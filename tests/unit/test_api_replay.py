"""A signature changes something once: retries, other calls, replays."""

from __future__ import annotations

import asyncio

import pytest

from hpresume.api import replay
from hpresume.api.errors import ApiError
from hpresume.api.replay import Answer, ReplayTable, repeat

NOW = 1_000_000.0
DONE = Answer(200, b"{}")


def test_a_retry_gets_the_first_answer() -> None:
    table = ReplayTable()
    assert table.begin("s", "call-1", NOW + 900, NOW) is None
    table.finish("s", DONE)
    entry = table.begin("s", "call-1", NOW + 900, NOW + 1)
    assert entry is not None
    assert asyncio.run(repeat(entry, "call-1")) == DONE


def test_a_retry_waits_for_the_first_one() -> None:
    async def run() -> Answer | None:
        table = ReplayTable()
        table.begin("s", "call-1", NOW + 900, NOW)
        entry = table.begin("s", "call-1", NOW + 900, NOW)
        assert entry is not None
        waiting = asyncio.create_task(repeat(entry, "call-1"))
        await asyncio.sleep(0)
        assert not waiting.done()
        table.finish("s", DONE)
        return await waiting

    assert asyncio.run(run()) == DONE


@pytest.mark.parametrize("invocation", ["call-2", ""])
def test_another_call_is_told_to_come_again(
    invocation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SECOND", 0.0)
    table = ReplayTable()
    table.begin("s", invocation and "call-1", NOW + 900, NOW)
    table.finish("s", DONE)
    entry = table.begin("s", invocation, NOW + 900, NOW)
    assert entry is not None
    with pytest.raises(ApiError) as caught:
        asyncio.run(repeat(entry, invocation))
    assert caught.value.code == "ThrottlingException"


def test_what_came_to_nothing_may_be_tried_again() -> None:
    table = ReplayTable()
    table.begin("s", "call-1", NOW + 900, NOW)
    entry = table.begin("s", "call-1", NOW + 900, NOW)
    table.finish("s", None)
    assert entry is not None
    assert asyncio.run(repeat(entry, "call-1")) is None
    assert table.begin("s", "call-1", NOW + 900, NOW) is None


def test_a_full_table_throttles_and_forgets_only_what_has_expired() -> None:
    table = ReplayTable(max_entries=2)
    table.begin("a", "1", NOW + 10, NOW)
    table.begin("b", "1", NOW + 900, NOW)
    with pytest.raises(ApiError) as caught:
        table.begin("c", "1", NOW + 900, NOW + 9)
    assert caught.value.code == "ThrottlingException"
    assert table.begin("c", "1", NOW + 900, NOW + 10) is None
    assert table.begin("b", "1", NOW + 900, NOW + 10) is not None
    assert len(table) == 2


def test_the_bytes_of_answers_are_bounded_too() -> None:
    table = ReplayTable(max_bytes=10)
    table.begin("a", "1", NOW + 10, NOW)
    table.finish("a", Answer(200, b"x" * 10))
    with pytest.raises(ApiError):
        table.begin("b", "1", NOW + 900, NOW)
    assert table.begin("b", "1", NOW + 900, NOW + 11) is None
