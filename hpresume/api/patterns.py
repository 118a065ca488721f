"""Patterns of botocore's model, which are Java's, as Python patterns.

Java's ``matches`` is ``fullmatch``. What differs between the two languages is translated: Unicode
categories (``\\p{L}``), the dot, which in Java stops at five line ends; the classes ``\\d``,
``\\s``, ``\\w`` are ASCII in both (``re.ASCII``). What cannot be translated is refused, so that no
constraint is dropped in silence.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata

#: Java's line ends, which its dot does not match.
_DOT = "[^\\n\\r\\u0085\\u2028\\u2029]"

#: POSIX classes of Java, ASCII only.
_POSIX = {
    "Alnum": "a-zA-Z0-9",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": "\\x00-\\x7f",
}

#: Escapes that mean the same in both languages.
_SAME_LETTERS = frozenset("bBdDsSwWnrtfvxu")


class PatternError(ValueError):
    """A pattern uses what has no translation."""


@functools.lru_cache(maxsize=512)
def compiled(pattern: str) -> re.Pattern[str]:
    """The Python pattern of a Java pattern; use its ``fullmatch``."""
    try:
        return re.compile(_translate(pattern), re.ASCII)
    except re.error as error:
        raise PatternError(f"pattern {pattern!r}: {error}") from None


def _translate(pattern: str) -> str:
    out: list[str] = []
    in_class = False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            text, at = _escape(pattern, at, in_class)
            out.append(text)
            continue
        if in_class and (char == "[" or pattern.startswith("&&", at)):
            raise PatternError(f"pattern {pattern!r}: classes within classes are not translated")
        if char == "[":
            in_class = True
        elif char == "]":
            in_class = False
        out.append(_DOT if char == "." and not in_class else char)
        at += 1
    return "".join(out)


def _escape(pattern: str, at: int, in_class: bool) -> tuple[str, int]:
    letter = pattern[at + 1 : at + 2]
    if letter in ("p", "P"):
        found = re.compile(r"\{(\w+)\}|(\w)").match(pattern, at + 2)
        if not found:
            raise PatternError(f"pattern {pattern!r}: a category is missing after \\{letter}")
        ranges = _category(found[1] or found[2])
        if in_class and letter == "P":
            raise PatternError(f"pattern {pattern!r}: \\P in a class is not translated")
        negated = "^" if letter == "P" else ""
        return (ranges if in_class else f"[{negated}{ranges}]"), found.end()
    if letter.isalpha() and letter not in _SAME_LETTERS:
        raise PatternError(f"pattern {pattern!r}: \\{letter} is not translated")
    return pattern[at : at + 2], at + 2


@functools.lru_cache(maxsize=64)
def _category(name: str) -> str:
    """Members of a Unicode category such as ``L`` or ``Lu``, as the inside of a class."""
    if name in _POSIX:
        return _POSIX[name]
    wanted = name.removeprefix("Is")
    ranges: list[str] = []
    start: int | None = None
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and unicodedata.category(chr(code)).startswith(wanted)
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            ranges.append(f"\\U{start:08x}-\\U{code - 1:08x}")
            start = None
    if not ranges:
        raise PatternError(f"{name!r} is no category of Unicode")
    return "".join(ranges)
