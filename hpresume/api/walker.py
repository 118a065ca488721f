"""One walk over a value and its shape in botocore's model; everything that is wrong with it.

The same walk judges requests in the server and responses in the tests. Texts and paths are
those of SageMaker: members begin with a small letter, entries of lists are ``NAME.N.member``
with N from 1. A string's length is counted in code points, as Smithy defines it.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hpresume.api.errors import ApiError
from hpresume.api.patterns import compiled

#: Most violations that are looked for.
MAX_VIOLATIONS = 20

#: Longest echo of a value in a message.
_MAX_ECHO = 128

#: Bounds of a timestamp: what a date can hold, years 1 to 9999 (s).
_TIMES = (-62135596800.0, 253402300799.0)

_INTEGERS = {"integer": 2**31, "long": 2**63}

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "BOOLEAN_VALUE"),
    ((int, float), "NUMBER_VALUE"),
    (str, "STRING_VALUE"),
    (list, "a list"),
    (dict, "a structure"),
)


@dataclass(frozen=True)
class Violation:
    """One thing that is wrong; ``is_type`` where the JSON is of another type than the shape."""

    path: str
    text: str
    is_type: bool = False


@dataclass(frozen=True)
class Constraint:
    """One constraint of a scalar: the text for users, and whether a value satisfies it."""

    text: str
    holds: Callable[[Any], bool]


def violations(shape: Any, value: Any) -> list[Violation]:
    """The first ``MAX_VIOLATIONS`` things that are wrong with a value, in the model's order."""
    return list(islice(_walk(shape, value, ""), MAX_VIOLATIONS))


def check_request(shape: Any, value: dict[str, Any]) -> None:
    """Raise what SageMaker answers to such a request, or nothing.

    SerializationException for the first wrong type, else ValidationException with all.
    """
    found = violations(shape, value)
    if not found:
        return
    for violation in found:
        if violation.is_type:
            raise ApiError("SerializationException", violation.text)
    raise validation_error([violation.text for violation in found])


def validation_error(texts: list[str]) -> ApiError:
    """A ValidationException in SageMaker's form, from one text or several."""
    count = f"{len(texts)} validation error{'s' if len(texts) > 1 else ''} detected: "
    return ApiError("ValidationException", count + "; ".join(texts))


def _walk(shape: Any, value: Any, path: str) -> Iterator[Violation]:
    return _WALKERS.get(shape.type_name, _scalar)(shape, value, path)


def _structure(shape: Any, value: Any, path: str) -> Iterator[Violation]:
    if not isinstance(value, dict):
        yield _wrong_type(value, "a structure", path)
        return
    for name, member in shape.members.items():
        where = _join(path, name)
        if name in value:
            yield from _walk(member, value[name], where)
        elif name in shape.required_members:
            yield _constraint(None, where, "Member must not be null")
    for name in value:
        if name not in shape.members:
            yield _unknown(name, path)
    if shape.is_tagged_union and sum(name in shape.members for name in value) != 1:
        yield _constraint(
            value, path, f"Member must have exactly one of: [{', '.join(shape.members)}]"
        )


def _list(shape: Any, value: Any, path: str) -> Iterator[Violation]:
    if not isinstance(value, list):
        yield _wrong_type(value, "a list", path)
        return
    yield from _sizes(shape, value, path)
    if _is_nested(shape.member):
        for number, entry in enumerate(_bounded(shape, value), 1):
            yield from _walk(shape.member, entry, f"{path}.{number}.member")
        return
    yield from _entries(shape.member, _bounded(shape, value), value, path, "Member")


def _map(shape: Any, value: Any, path: str) -> Iterator[Violation]:
    if not isinstance(value, dict):
        yield _wrong_type(value, "a map", path)
        return
    yield from _sizes(shape, value, path)
    entries = dict(islice(value.items(), _most(shape)))
    yield from _entries(shape.key, list(entries), value, path, "Map keys")
    if _is_nested(shape.value):
        for key, entry in entries.items():
            yield from _walk(shape.value, entry, f"{path}.{_echo(key)}.member")
    else:
        yield from _entries(shape.value, list(entries.values()), value, path, "Map value")


def _entries(
    shape: Any, entries: list[Any], whole: Any, path: str, who: str
) -> Iterator[Violation]:
    """Scalars in a list or map: one violation for all of them, as SageMaker reports it."""
    broken = False
    for entry in entries:
        if entry is None:
            yield _constraint(whole, path, f"{who} must not be null")
            return
        wrong = _type_problem(shape, entry, path)
        if wrong:
            yield wrong
            return
        broken = broken or any(not c.holds(entry) for c in constraints(shape))
    if broken:
        texts = ", ".join(c.text for c in constraints(shape))
        yield _constraint(whole, path, f"{who} must satisfy constraint: [{texts}]")


def _scalar(shape: Any, value: Any, path: str) -> Iterator[Violation]:
    wrong = _type_problem(shape, value, path)
    if wrong:
        yield wrong
        return
    for constraint in constraints(shape):
        if not constraint.holds(value):
            yield _constraint(value, path, constraint.text)


_WALKERS: dict[str, Callable[[Any, Any, str], Iterator[Violation]]] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
}


def _is_nested(shape: Any) -> bool:
    return shape.type_name in _WALKERS


def _most(shape: Any) -> int:
    return int(shape.metadata.get("max", 10_000))


def _bounded(shape: Any, value: list[Any]) -> list[Any]:
    """As many entries as the model allows: a list that is too long costs no more than that."""
    return value[: _most(shape)]


def _sizes(shape: Any, value: Any, path: str) -> Iterator[Violation]:
    most, least = shape.metadata.get("max"), shape.metadata.get("min")
    if most is not None and len(value) > most:
        yield _constraint(value, path, f"Member must have length less than or equal to {most}")
    if least is not None and len(value) < least:
        yield _constraint(value, path, f"Member must have length greater than or equal to {least}")


def _type_problem(shape: Any, value: Any, path: str) -> Violation | None:
    kind = shape.type_name
    if kind in _INTEGERS:
        if isinstance(value, bool) or not isinstance(value, int):
            return _wrong_type(value, "an Integer", path)
        if not -_INTEGERS[kind] <= value < _INTEGERS[kind]:
            return _type(f"{_where(path)}: the number is out of range", path)
        return None
    expected = {
        "string": (str, "a String"),
        "character": (str, "a String"),
        "boolean": (bool, "a Boolean"),
        "float": ((int, float), "a Float"),
        "double": ((int, float), "a Double"),
        "timestamp": ((int, float), "milliseconds since epoch"),
        "blob": (str, "a Blob"),
    }.get(kind)
    if expected is None:
        raise TypeError(f"shape {shape.name} has the type {kind}, which the walker does not know")
    types, name = expected
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "boolean"):  # type: ignore[arg-type]
        return _wrong_type(value, name, path)
    if kind == "timestamp" and not (math.isfinite(value) and _TIMES[0] <= value <= _TIMES[1]):
        return _type(
            f"{_where(path)}: a time in seconds since the epoch has to lie in the years 1 to 9999",
            path,
        )
    if kind == "blob":
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return _type(f"{_where(path)}: the value is not base64", path)
    return None


@functools.lru_cache(maxsize=4096)
def constraints(shape: Any) -> tuple[Constraint, ...]:
    """Constraints of a scalar shape, in the order in which SageMaker names them."""
    metadata, kind = shape.metadata, shape.type_name
    found: list[Constraint] = []
    measure: Callable[[Any], float] = float
    what = "value"
    if kind in ("string", "blob"):
        measure = len if kind == "string" else (lambda text: len(base64.b64decode(text)))
        what = "length"
    most, least = metadata.get("max"), metadata.get("min")
    if most is not None:
        found.append(
            Constraint(
                f"Member must have {what} less than or equal to {most}",
                lambda value: measure(value) <= most,
            )
        )
    if least is not None:
        found.append(
            Constraint(
                f"Member must have {what} greater than or equal to {least}",
                lambda value: measure(value) >= least,
            )
        )
    if metadata.get("pattern"):
        found.append(_pattern(metadata["pattern"], most))
    if metadata.get("enum"):
        allowed = frozenset(metadata["enum"])
        found.append(
            Constraint(
                f"Member must satisfy enum value set: [{', '.join(metadata['enum'])}]",
                lambda value: value in allowed,
            )
        )
    return tuple(found)


def _pattern(pattern: str, most: int | None) -> Constraint:
    expression = compiled(pattern)

    def holds(value: str) -> bool:
        # A value that is too long is refused for that; the search stays bounded.
        return (most is not None and len(value) > most) or bool(expression.fullmatch(value))

    return Constraint(f"Member must satisfy regular expression pattern: {pattern}", holds)


def _join(path: str, name: str) -> str:
    name = name[:1].lower() + name[1:]
    return f"{path}.{name}" if path else name


def _where(path: str) -> str:
    return f"'{path}'" if path else "the request"


def _echo(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        value = "[" + ", ".join(_echo(entry) for entry in value[:5]) + "]"
    elif isinstance(value, dict):
        inside = ", ".join(f"{_echo(k)}={_echo(v)}" for k, v in islice(value.items(), 5))
        value = "{" + inside + "}"
    text = str(value)
    return text if len(text) <= _MAX_ECHO else text[: _MAX_ECHO - 1] + "…"


def _constraint(value: Any, path: str, text: str) -> Violation:
    shown = "null" if value is None else f"'{_echo(value)}'"
    return Violation(path, f"Value {shown} at '{path}' failed to satisfy constraint: {text}")


def _unknown(name: str, path: str) -> Violation:
    where = f" at '{path}'" if path else ""
    return Violation(
        path, f"Member '{_echo(name)}'{where} is not known to this server's release of the API"
    )


def _wrong_type(value: Any, expected: str, path: str) -> Violation:
    kind = next((name for types, name in _KINDS if isinstance(value, types)), "null")
    return _type(f"{_where(path)}: {kind} can not be converted to {expected}", path)


def _type(text: str, path: str) -> Violation:
    return Violation(path, text, is_type=True)
