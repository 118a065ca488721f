"""A request's JSON, read so that no body can cost more than its size.

Bounded in depth, strict UTF-8, no lone surrogates, no member twice, no NaN, no numbers of
absurd length. Everything that is wrong here is the protocol's SerializationException.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from hpresume.api.errors import ApiError

#: Largest body in bytes. A CreateCluster with 100 full Slurm groups has about 200 KB,
#: a BatchDelete with 3,000 ids 70 KB.
MAX_BODY = 1024 * 1024

#: Deepest nesting. The deepest input of the served operations has 10 levels.
MAX_DEPTH = 32

#: Longest number in characters; the model's largest value has eight digits.
_MAX_NUMBER = 40


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; ``SerializationException`` if it is not one."""
    try:
        text = body.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_members,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise _malformed(f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise _malformed(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _malformed("the body has to be a JSON object")
    _check_tree(value)
    return value


def _malformed(what: str) -> ApiError:
    return ApiError("SerializationException", what)


def _too_deep() -> ApiError:
    return _malformed(f"the body is nested deeper than {MAX_DEPTH} levels")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"member {name[:64]!a} occurs twice")
            seen.add(name)
    return members


def _integer(text: str) -> int:
    if len(text) > _MAX_NUMBER:
        raise ValueError("a number is too long")
    return int(text)


def _number(text: str) -> float:
    value = float(text) if len(text) <= _MAX_NUMBER else float("inf")
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _check_tree(root: dict[str, Any]) -> None:
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                for name, member in value.items():
                    _check_text(name)
                    below.append(member)
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, str):
                _check_text(value)
        if not below:
            return
        level = below
    if any(isinstance(value, (dict, list)) for value in level):
        raise _too_deep()
    for value in level:
        if isinstance(value, str):
            _check_text(value)


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise _malformed("a string holds half of a surrogate pair") from None


def without_nulls(value: Any) -> Any:
    """The value without members that are null: the protocol takes them as absent."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value]
    return value
