"""Packages that only some sub-commands need, and that ``pip install .`` does not bring."""

from __future__ import annotations

import importlib

from hpresume.errors import MissingDependencyError


def require_sqlalchemy() -> None:
    """Raise MissingDependencyError where the controller's database cannot be used."""
    try:
        importlib.import_module("sqlalchemy")
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "the controller's database needs the Python package sqlalchemy: "
            "in hpresume's checkout, pip install '.[controller]'"
        ) from None
