"""The rights and programs that a development cluster needs from the machine."""

from __future__ import annotations

import os
import platform
import shutil

from hpresume.errors import MissingDependencyError

_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "sinfo": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
}

_ACCOUNTING_PACKAGES = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}

TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where the tools are looked for, whatever the caller's PATH."""


def require_root() -> None:
    """Raise MissingDependencyError unless this process is root."""
    if os.geteuid() != 0:
        raise MissingDependencyError(
            "a development cluster needs root (namespaces and a network of its own): use sudo"
        )


def require_tools(*, accounting: bool = False) -> None:
    """Raise MissingDependencyError naming all missing programs and their packages.

    ``accounting`` asks for those of a cluster with slurmdbd too.
    """
    wanted = _PACKAGES | (_ACCOUNTING_PACKAGES if accounting else {})
    missing = [tool for tool in wanted if shutil.which(tool, path=TOOL_PATH) is None]
    if missing:
        packages = sorted({_package(wanted[tool]) for tool in missing})
        raise MissingDependencyError(
            f"not found: {', '.join(missing)}; install with: apt-get install {' '.join(packages)}"
        )


def _package(name: str) -> str:
    """What the package is called here: Ubuntu 22.04 has the version in MariaDB's name."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    old = name == "mariadb-server-core" and release.get("VERSION_CODENAME") == "jammy"
    return f"{name}-10.6" if old else name
