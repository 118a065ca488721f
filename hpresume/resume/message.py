"""What a supervisor tells the controller. Both sides take it from here.

A message is one JSON object: ``version``, ``kind``, ``job``, and what its kind
needs. Nothing in it is believed but what slurmctld says too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpresume.errors import MessageError

PATH = "/v1/reports"
_VERSION = 1

#: Longest message (bytes), most nodes in it, and longest text.
MAX_BODY = 256 << 10
_MAX_NODES = 10_000
_MAX_TEXT = 500

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Protects:
    """A step of the job is protected: watch over the host of its batch script."""

    job_id: int


@dataclass(frozen=True)
class Blames:
    """The step leaves a node, because of ``sign`` (a value of ``Sign``)."""

    job_id: int
    node: str
    sign: str
    evidence: str


@dataclass(frozen=True)
class Requeues:
    """The job is about to be requeued in its run ``run``: keep its places, bring it back.

    ``exclude`` are nodes to keep off, ``requested`` those of the user's own list that
    are left.
    """

    job_id: int
    run: int
    num_nodes: int
    exclude: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()


Message = Protects | Blames | Requeues


def encode(message: Message) -> bytes:
    """The message as it is sent."""
    content: dict[str, Any] = {"version": _VERSION, "job": message.job_id}
    match message:
        case Protects():
            content |= {"kind": "protects"}
        case Blames(node=node, sign=sign, evidence=evidence):
            content |= {"kind": "blames", "node": node, "sign": sign}
            content |= {"evidence": evidence[:_MAX_TEXT]}
        case Requeues():
            content |= {"kind": "requeues", "run": message.run, "nodes": message.num_nodes}
            content |= {"exclude": message.exclude, "requested": message.requested}
    return json.dumps(content).encode()


def decode(body: bytes) -> Message:
    """The message in ``body``. Raises MessageError, which says what is wrong with it."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise MessageError("the message is not JSON") from None
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise MessageError(f"this controller understands messages of version {_VERSION}")
    kind, job_id = content.get("kind"), _count(content, "job", 1, 2**32)
    if kind == "protects":
        return Protects(job_id)
    if kind == "blames":
        sign, evidence = _text(content, "sign"), _text(content, "evidence")
        return Blames(job_id, _node(content.get("node")), sign, evidence)
    if kind == "requeues":
        return Requeues(
            job_id,
            _count(content, "run", 0, 2**32),
            _count(content, "nodes", 1, 2**20),
            _nodes(content, "exclude"),
            _nodes(content, "requested"),
        )
    raise MessageError("kind has to be protects, blames or requeues")


def _count(content: Mapping[str, Any], key: str, low: int, high: int) -> int:
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
        raise MessageError(f"{key} has to be a whole number from {low}")
    return value


def _text(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise MessageError(f"{key} has to be a text of at most {_MAX_TEXT} characters")
    # It is shown in logs and reasons: one line of what can be printed.
    return " ".join("".join(c if c.isprintable() else " " for c in value).split())


def _nodes(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = content.get(key)
    if not isinstance(value, list) or len(value) > _MAX_NODES:
        raise MessageError(f"{key} has to be a list of nodes")
    return tuple(_node(name) for name in value)


def _node(value: Any) -> str:
    if not isinstance(value, str) or not _NODE.fullmatch(value):
        raise MessageError("a node has to be a host name")
    return value
