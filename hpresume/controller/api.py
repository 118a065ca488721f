"""The cluster API as the controller's file describes it.

[api]
address = "10.0.0.5"
certificate = "/etc/hpresume/api.pem"
certificate_key = "/etc/hpresume/api.key"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpresume.errors import MissingDependencyError
from hpresume.providers.table import Table
from hpresume.provision.service import ClusterService

if TYPE_CHECKING:
    from hpresume.api.server import ApiServer, ApiSettings

KEYS_FILE = "/etc/hpresume/api-keys"
SECRET_FILE = "/var/lib/hpresume/api-secret"  # noqa: S105 (a file's name)


def parse(values: Mapping[str, Any], where: str, region: str) -> ApiSettings:
    """Read the table strictly. Raises ConfigError; MissingDependencyError without the packages."""
    try:
        from hpresume.api.server import ApiSettings
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{where}: the API needs the Python package {error.name}: "
            "in hpresume's checkout, pip install '.[api]'"
        ) from error
    table = Table(values, where)
    certificate = table.text("certificate", "")
    key = table.text("certificate_key", "")
    settings = ApiSettings(
        keys=Path(table.text("keys", KEYS_FILE)),
        secret=Path(table.text("secret", SECRET_FILE)),
        region=region,
        host=table.text("address", "127.0.0.1"),
        port=table.count("port", 8600, 0, 65535),
        cert=Path(certificate) if certificate else None,
        key=Path(key) if key else None,
        insecure=table.flag("insecure", False),
    )
    table.finish()
    if bool(certificate) != bool(key):
        missing = "certificate_key" if certificate else "certificate"
        raise table.error(missing, "TLS needs both: the certificate and its key")
    return settings


def open_api(settings: ApiSettings, service: ClusterService) -> ApiServer:
    """The server with its port open. Raises ConfigError."""
    from hpresume.api.server import ApiServer

    return ApiServer(settings, service)
