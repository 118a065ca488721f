"""Lines of slurm.conf and gres.conf as Slurm reads them, edited without touching the rest.

Slurm's reader (``parse_config.c``, read in 22.05 and 24.11): a line that ends with a
backslash goes on in the next one, and only then a ``#`` begins a comment (``\\#`` does
not); a pair is ``key=value``, with blanks around the equals sign allowed and the value
in double quotes or without blanks; keys are compared without case. Text is
kept as it is, byte for byte, except for the values that are set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# In ASCII: what Unicode calls a blank is none to Slurm.
_PAIR = re.compile(r'(?<!\S)([A-Za-z0-9_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|$)', re.ASCII)
_PARTS = re.compile(r"[^\n]*\n|[^\n]+")
_COMMENT = re.compile(r"(?<!\\)(?:\\\\)*(#)")
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*(\\)[^\S\n]*\n\Z", re.ASCII)


@dataclass(frozen=True)
class Pair:
    """A key and where its value stands in the joined line, quotes included."""

    key: str
    value: str
    start: int
    end: int


@dataclass(frozen=True)
class Line:
    """One logical line: ``raw`` is its text with the line ends, over several lines or one."""

    raw: str

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Its pairs, in order; none in a comment."""
        text = self._text
        return tuple(
            Pair(
                match[1],
                match[3] if match[2] is None else match[2],
                match.start(3) if match[2] is None else match.start(2) - 1,
                match.end(3) if match[2] is None else match.end(2) + 1,
            )
            for match in _PAIR.finditer(text)
        )

    @property
    def comment(self) -> str:
        """What stands behind the ``#``; empty without one."""
        joined = self._joined
        return joined[len(self._text) + 1 :].strip()

    def get(self, key: str) -> str | None:
        """The value of a key; the last one counts."""
        found = [pair.value for pair in self.pairs if pair.key.lower() == key.lower()]
        return found[-1] if found else None

    def is_about(self, key: str) -> bool:
        """Whether the line is an entry of this kind: ``key`` comes first."""
        pairs = self.pairs
        return bool(pairs) and pairs[0].key.lower() == key.lower()

    def with_value(self, key: str, value: str) -> Line:
        """The line with another value of a key, or with the key at its end."""
        shown = value if value and not re.search(r"\s", value) else f'"{value}"'
        positions = self._positions
        for pair in reversed(self.pairs):
            if pair.key.lower() == key.lower():
                start, end = positions[pair.start], positions[pair.end - 1] + 1
                return Line(self.raw[:start] + shown + self.raw[end:])
        last = self.pairs[-1]
        end = positions[last.end - 1] + 1
        return Line(f"{self.raw[:end]} {key}={shown}{self.raw[end:]}")

    @property
    def _positions(self) -> list[int]:
        """Where each character of the joined line stands in ``raw``."""
        positions: list[int] = []
        offset = 0
        for part in _PARTS.findall(self.raw):
            kept = _CONTINUED.search(part)
            length = kept.start(1) if kept else len(part)
            positions += range(offset, offset + length)
            offset += len(part)
        return positions

    @property
    def _joined(self) -> str:
        return "".join(self.raw[position] for position in self._positions)

    @property
    def _text(self) -> str:
        joined = self._joined
        match = _COMMENT.search(joined)
        return joined[: match.start(1)] if match else joined


def goes_on(line: Line) -> bool:
    """Whether the next line would be read as a part of this one."""
    last = line.raw if line.raw.endswith("\n") else f"{line.raw}\n"
    return bool(_CONTINUED.search(last))


def lines(text: str) -> Iterator[Line]:
    """The logical lines of a file; their raw texts put together are the file."""
    begun = ""
    for part in _PARTS.findall(text):
        begun += part
        if not _CONTINUED.search(part):
            yield Line(begun)
            begun = ""
    if begun:
        yield Line(begun)
