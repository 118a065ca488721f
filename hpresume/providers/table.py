"""Reading a provider's table of the configuration, strictly.

What is asked for is what is allowed: a key that nobody asked for is an error, as
is a value of another kind. Every error is one line with the file, the key and
what may stand there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpresume.errors import ConfigError

#: Longest value that is repeated in an error.
_SHOWN = 120


class Table:
    """The table ``values``; ``where`` names it in errors, as ``FILE: [provider]``."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._asked: list[str] = []

    def text(self, key: str, default: str | None = None) -> str:
        """A text; one without a default has to be there and must not be empty."""
        value = self._get(key, default)
        if not isinstance(value, str) or "\0" in value or (default is None and not value):
            raise self.error(key, "write a text")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """One of ``allowed``."""
        value = self._get(key, default)
        if value not in allowed:
            raise self.error(key, "choose " + " or ".join(f'"{word}"' for word in allowed))
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "write true or false")
        return value

    def seconds(self, key: str, default: float, low: float, high: float) -> float:
        """A time in seconds from ``low`` to ``high``."""
        value = self._get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise self.error(key, f"write a number of seconds from {low:g} to {high:g}")
        return float(value)

    def count(self, key: str, default: int, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"write a whole number from {low} to {high}")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts, the first of which is not empty."""
        value = self._get(key, None)
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(word, str) and "\0" not in word for word in value)
            or not value[0]
        ):
            raise self.error(key, 'write a list of texts, such as ["/opt/site/launch", "--fast"]')
        return tuple(value)

    def texts(self, key: str) -> dict[str, str]:
        """A table of texts; empty where it is not there."""
        value = self._get(key, {})
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self.error(key, 'write a table of texts, such as { team = "research" }')
        return dict(value)

    def has(self, key: str) -> bool:
        """Whether a key is there that may be left out."""
        return self._get(key, None) is not None

    def finish(self) -> None:
        """Raise ConfigError where there is a key that was not asked for."""
        for key in self._values:
            if key not in self._asked:
                raise ConfigError(
                    f"{self._where}: unknown key {key!r}: use {', '.join(sorted(self._asked))}"
                )

    def error(self, key: str, advice: str) -> ConfigError:
        """The error for a value that cannot be."""
        if key not in self._values:
            return ConfigError(f"{self._where}: {key} is missing: {advice}")
        shown = repr(self._values[key])
        shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
        return ConfigError(f"{self._where}: {key} = {shown}: {advice}")

    def _get(self, key: str, default: Any) -> Any:
        if key not in self._asked:
            self._asked.append(key)
        return self._values.get(key, default)
