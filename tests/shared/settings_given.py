"""Settings as the tests give them, without the file of the machine that runs the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from hpresume import settings as sources
from hpresume.config import ResumeSettings
from hpresume.settings import read_settings


def system_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The administrator's file of the machine that runs the tests stays out of them."""
    path = tmp_path / "etc.toml"
    monkeypatch.setattr(sources, "SYSTEM_FILE", str(path))
    return path


def load_settings(
    environ: Mapping[str, str], flags: Iterable[tuple[str, str]] = ()
) -> tuple[ResumeSettings, tuple[str, ...]]:
    """As the supervisor does it: read before the first attempt, made one object behind it."""
    values, warnings = read_settings(environ, flags)
    return ResumeSettings(**values), warnings


def load(environ: Mapping[str, str] | None = None, *flags: tuple[str, str]) -> ResumeSettings:
    return load_settings(environ or {}, flags)[0]


def from_toml(tmp_path: Path, text: str) -> ResumeSettings:
    path = tmp_path / "given.toml"
    path.write_text(text)
    return load({"HPRESUME_CONFIG": str(path)})
