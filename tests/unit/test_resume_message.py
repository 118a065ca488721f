"""Messages between supervisors and the controller."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpresume.errors import MessageError
from hpresume.resume.message import Blames, Message, Protects, Requeues, decode, encode

NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
IDS = st.integers(1, 2**31)
LISTS = st.lists(NAMES, max_size=5).map(tuple)
MESSAGES = st.one_of(
    st.builds(Protects, IDS),
    st.builds(Blames, IDS, NAMES, st.sampled_from(["lost", "unhealthy"]), st.just("ECC error")),
    st.builds(Requeues, IDS, st.integers(0, 99), st.integers(1, 9999), LISTS, LISTS),
)


@given(MESSAGES)
def test_what_is_sent_is_what_comes(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_rubbish_is_no_message(body: bytes) -> None:
    with pytest.raises(MessageError):
        decode(body)


VALID = json.loads(encode(Requeues(7, 0, 3, ("n1",), ())))


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"version": 2}, "version 1"),
        ({"kind": "orders"}, "kind"),
        ({"job": "7"}, "job"),
        ({"job": True}, "job"),
        ({"job": 0}, "job"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": 1 << 21}, "nodes"),
        ({"exclude": "n1"}, "exclude"),
        ({"exclude": ["n1 StartTime=now"]}, "host name"),
        ({"exclude": ["n[1-3]"]}, "host name"),
        ({"requested": [7]}, "host name"),
        ({"run": -1}, "run"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, object], about: str) -> None:
    with pytest.raises(MessageError, match=about):
        decode(json.dumps({**VALID, **change}).encode())


def test_evidence_is_one_line_of_printable_characters() -> None:
    body = json.dumps({"version": 1, "kind": "blames", "job": 1, "node": "n1", "sign": "lost",
                       "evidence": "a\x1b[2J\nb\u202e"})  # fmt: skip
    message = decode(body.encode())
    assert isinstance(message, Blames)
    assert message.evidence == "a [2J b"
