"""What a body may be, and what it may cost."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from hpresume.api.body import MAX_BODY, MAX_DEPTH, parse, without_nulls
from hpresume.api.errors import ApiError


def _deep(levels: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    return (opening * levels + "1" + closing * levels).encode()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not JSON"),
        (b"[]", "has to be a JSON object"),
        (b"null", "has to be a JSON object"),
        (b'"x"', "has to be a JSON object"),
        (b'{"a":1', "not JSON"),
        (b'{"a":1}x', "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'{"a":1,"a":2}', "member 'a' occurs twice"),
        (b'{"x":[{"b":1,"b":1}]}', "member 'b' occurs twice"),
        (b'{"a":NaN}', "NaN is no number"),
        (b'{"a":-Infinity}', "Infinity is no number"),
        (b'{"a":1e999}', "a number is too large"),
        (b'{"a":' + b"1" * 41 + b"}", "a number is too long"),
        (b'{"a":' + b"1" * 100_000 + b"}", "a number is too long"),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (rb'{"a":"\ud800"}', "half of a surrogate pair"),
        (rb'{"\udfff":1}', "half of a surrogate pair"),
        (b'{"a":"\n"}', "not JSON"),
        (_deep(MAX_DEPTH + 1), "nested deeper"),
        (_deep(200_000), "nested deeper"),
        (b'{"a":' + _deep(200_000, "[", "]") + b"}", "nested deeper"),
        (b'{"a":' + b"[" * 500_000, "nested deeper"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_bad_body_is_refused_with_its_reason(body: bytes, text: str) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        parse(body)
    assert caught.value.code == "SerializationException"
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"{}", {}),
        (' {"ä":"日本\\ud83d\\ude00"} '.encode(), {"ä": "日本\U0001f600"}),
        (_deep(MAX_DEPTH), json.loads(_deep(MAX_DEPTH))),
        (b'{"a":[1,-2.5,true,null,""]}', {"a": [1, -2.5, True, None, ""]}),
        (b'{"a":0,"A":1}', {"a": 0, "A": 1}),
    ],
)
def test_a_good_body_is_read(body: bytes, value: object) -> None:
    assert parse(body) == value


def test_the_costliest_body_costs_a_bounded_multiple_of_its_size() -> None:
    body = b'{"a":[' + b"{}," * ((MAX_BODY - 20) // 3) + b"{}]}"
    assert len(body) <= MAX_BODY
    tracemalloc.start()
    parse(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * MAX_BODY


def test_null_is_absent_in_structures_only() -> None:
    assert without_nulls({"a": None, "b": {"c": None}, "d": [None, {"e": None}]}) == {
        "b": {},
        "d": [None, {}],
    }
