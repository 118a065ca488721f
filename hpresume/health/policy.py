"""The policy: what is checked, against which limits, and what a fault justifies.

``policy.toml`` next to this module is the default and says of every limit what
it may be and who says so; ``/etc/hpresume/health.toml`` overrides values, one
table a check. Anything unknown or out of range there is an error that names
the file, the key and what is allowed: a typing error must not switch off a
check in silence.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

from hpresume.errors import ConfigError
from hpresume.health.model import Action

#: The administrator's file.
SYSTEM_FILE = "/etc/hpresume/health.toml"
SHIPPED_FILE = os.path.join(os.path.dirname(__file__), "policy.toml")

PROFILES = ("quick", "prolog", "deep")

#: Check, limit, and the check whose limit it is: one table for both.
_BORROWED = (("dcgm-policy", "codes", "kernel-xid"),)

#: What an XID code can be taken for.
XID_CLASSES = ("replace", "reboot", "evidence", "application", "ignore")


@dataclass(frozen=True)
class Limit:
    """A value of the policy, with who says so."""

    value: Any
    source: str
    unit: str = ""

    @property
    def shown(self) -> str:
        """The value for people."""
        return f"{self.value} {self.unit}".strip()


@dataclass(frozen=True)
class CheckPolicy:
    """What the policy says about one check."""

    name: str
    about: str = ""
    source: str = ""
    profiles: tuple[str, ...] = PROFILES
    enabled: bool = True
    action: Action = Action.NONE
    hold: bool = False
    timeout_s: float = 4.0
    strikes: int = 1
    limits: Mapping[str, Limit] = field(default_factory=dict)

    def number(self, name: str) -> float:
        """A numeric limit."""
        return float(self.limits[name].value)

    def table(self, name: str) -> dict[str, Any]:
        """A limit that is a table."""
        return cast("dict[str, Any]", self.limits[name].value)

    def items(self, name: str) -> list[Any]:
        """A limit that is a list."""
        return cast("list[Any]", self.limits[name].value)


@dataclass(frozen=True)
class Policy:
    """The policy of a node."""

    checks: Mapping[str, CheckPolicy]

    def check(self, name: str) -> CheckPolicy:
        """What it says about a check."""
        return self.checks[name]

    def at_once(self) -> Policy:
        """The same, where every fault counts without further strikes."""
        return Policy({name: replace(check, strikes=1) for name, check in self.checks.items()})


def load_policy(path: str | None = None) -> Policy:
    """The shipped policy with the overrides of ``path`` (default: the system's, if there).

    Raises ConfigError.
    """
    shipped = _shipped()
    file = SYSTEM_FILE if path is None else path
    overrides = _document(file, required=path is not None)
    checks = {name: _check(name, table) for name, table in shipped.items()}
    for name, table in overrides.items():
        if name not in checks:
            raise ConfigError(f"{file}: unknown check {name}; {_near(name, checks)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {name} must be a table: [{name}]")
        checks[name] = _overridden(checks[name], shipped[name], table, file)
    for name, limit, owner in _BORROWED:
        limits = {**checks[name].limits, limit: checks[owner].limits[limit]}
        checks[name] = replace(checks[name], limits=limits)
    return Policy(checks)


@cache
def _shipped() -> dict[str, Any]:
    return _document(SHIPPED_FILE, required=True)


def _document(path: str, *, required: bool) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path}: no such file") from None
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _check(name: str, table: dict[str, Any]) -> CheckPolicy:
    limits = {
        key: Limit(spec["value"], spec.get("source", table["source"]), spec.get("unit", ""))
        for key, spec in table.get("limits", {}).items()
    }
    general = {
        key: _GENERAL[key](value)
        for key, value in table.items()
        if key not in ("limits", "about", "source")
    }
    return CheckPolicy(name, table["about"], table["source"], limits=limits, **general)


def _overridden(
    policy: CheckPolicy, shipped: dict[str, Any], table: dict[str, Any], file: str
) -> CheckPolicy:
    specs = shipped.get("limits", {})
    general: dict[str, Any] = {}
    limits = dict(policy.limits)
    for key, value in table.items():
        where = f"{file}: {policy.name}.{key}"
        if key not in specs and key not in _GENERAL:
            raise ConfigError(f"{where}: unknown setting; {_near(key, [*specs, *_GENERAL])}")
        try:
            if key in specs:
                limits[key] = Limit(_parsed(specs[key], value), file, limits[key].unit)
            else:
                general[key] = _GENERAL[key](value)
        except ValueError as error:
            raise ConfigError(f"{where} is {_shown(value)}; allowed is {error}") from None
    return replace(policy, limits=limits, **general)


def _parsed(spec: Mapping[str, Any], value: Any) -> Any:
    """``value`` checked against what the shipped policy says of the limit."""
    default = spec["value"]
    if isinstance(default, bool):
        return _switch(value)
    if isinstance(default, int | float):
        return _number(spec["min"], spec["max"], whole=isinstance(default, int))(value)
    if isinstance(default, list):
        kind, words = (int, "whole numbers") if spec.get("of") == "int" else (str, "texts")
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise ValueError(f"a list of {words}")
        if spec.get("of") == "path" and any(not item.startswith("/") for item in value):
            raise ValueError("a list of absolute paths")
        return value
    if isinstance(default, dict):
        return {**default, **_table(spec, value)}
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _table(spec: Mapping[str, Any], value: Any) -> dict[str, Any]:
    if spec["of"] == "xid":
        words = "a table from XID codes to " + ", ".join(XID_CLASSES)
        good = isinstance(value, dict) and all(
            key.isascii() and key.isdigit() and item in XID_CLASSES for key, item in value.items()
        )
    else:
        words = "a table from instance types to whole numbers from 0 to 1024"
        good = isinstance(value, dict) and all(
            type(item) is int and 0 <= item <= 1024 for item in value.values()
        )
    if not good:
        raise ValueError(words)
    return cast("dict[str, Any]", value)


def _number(low: float, high: float, *, whole: bool = False) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        kinds = (int,) if whole else (int, float)
        # `not (low <= …)` rather than its opposite: nan is no number to compare with.
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            raise ValueError(f"a {'whole ' if whole else ''}number from {low:g} to {high:g}")
        return value

    return parse


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _one_action(value: Any) -> Action:
    if value not in tuple(Action):
        raise ValueError(", ".join(Action))
    return Action(value)


def _profiles(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or any(name not in PROFILES for name in value):
        raise ValueError("a list of " + ", ".join(PROFILES))
    return tuple(name for name in PROFILES if name in value)


_GENERAL: dict[str, Callable[[Any], Any]] = {
    "enabled": _switch,
    "action": _one_action,
    "hold": _switch,
    "profiles": _profiles,
    "timeout_s": _number(0.1, 14_400),
    "strikes": _number(1, 100, whole=True),
}


def _near(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else "known are: " + ", ".join(known)


def _shown(value: Any) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # TOML's hexadecimal integers know no limit, Python's decimals do
        return "a number too long to show"
