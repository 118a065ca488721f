"""Opening the provider that the configuration names.

    [provider]
    type = "command"
    launch = ["/opt/site/machines", "launch"]
    …

``type`` says which one; the other keys are its own, described in docs/providers.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from hpresume.errors import MissingDependencyError
from hpresume.providers.model import Provider
from hpresume.providers.table import Table

#: Modules with ``from_table(name, table) -> Provider``, imported when they are chosen:
#: boto3 takes longer to import than a pass of the controller to run.
_TYPES = {
    "command": "hpresume.providers.command",
    "devcluster": "hpresume.providers.devcluster",
    "ec2": "hpresume.providers.ec2",
    "power": "hpresume.providers.power",
}


def open_provider(
    name: str, table: Mapping[str, Any], source: str = "controller.toml: [provider]"
) -> Provider:
    """The provider that ``table`` describes; ``name`` is what events and errors call it.

    ``source`` names the table in errors. Raises ConfigError for an unknown key or a
    value that cannot be, MissingDependencyError where a package is not installed.
    """
    settings = Table(table, source)
    module = _TYPES[settings.choice("type", tuple(_TYPES))]
    try:
        opener = importlib.import_module(module).from_table
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{source}: type {table['type']!r} needs the Python package {error.name}: "
            f"in hpresume's checkout, pip install '.[{table['type']}]'"
        ) from error
    provider: Provider = opener(name, settings)
    settings.finish()
    return provider
