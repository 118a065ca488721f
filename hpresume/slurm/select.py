"""Choosing who answers: Slurm's tools, or pyslurm where it fits."""

from __future__ import annotations

import re
from types import ModuleType

from hpresume.errors import MissingDependencyError, UsageError
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.gateway import SlurmGateway

#: Values of the setting ``slurm_backend`` (HPRESUME_SLURM_BACKEND).
BACKENDS = ("auto", "cli", "pyslurm")


def open_gateway(prefer: str | None = None) -> SlurmGateway:
    """The gateway for the backend ``prefer``; None means Slurm's tools.

    ``auto`` takes pyslurm if it is installed for the running Slurm and the
    tools otherwise; ``pyslurm`` raises ``MissingDependencyError`` where it is
    not. pyslurm is imported for these two only.
    """
    if prefer not in (None, *BACKENDS):
        raise UsageError(f"slurm_backend {prefer!r}: use one of {', '.join(BACKENDS)}")
    cli = CliGateway()
    if prefer in (None, "cli"):
        return cli
    # First, since pyslurm ends the process if Slurm cannot be reached at all.
    running = cli.config().version
    try:
        pyslurm = _matching_pyslurm(running)
    except MissingDependencyError:
        if prefer == "pyslurm":
            raise
        return cli
    from hpresume.slurm.pyslurm_backend import PyslurmGateway

    return PyslurmGateway(pyslurm, cli)


def _matching_pyslurm(running: tuple[int, int, int]) -> ModuleType:
    """pyslurm, imported; it works only with the major.minor it was built for."""
    from importlib import import_module, metadata

    wanted = f"{running[0]}.{running[1]}"
    try:
        version = metadata.version("pyslurm")
    except metadata.PackageNotFoundError as error:
        raise MissingDependencyError(
            f"slurm_backend = pyslurm: pyslurm is not installed (Slurm here is {wanted})"
        ) from error
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) != running[:2]:
        raise MissingDependencyError(
            f"slurm_backend = pyslurm: pyslurm {version} does not fit Slurm {wanted}, "
            f"install pyslurm {wanted}.*"
        )
    try:
        return import_module("pyslurm")
    except ImportError as error:
        raise MissingDependencyError(
            f"slurm_backend = pyslurm: pyslurm {version} cannot be loaded: {error}"
        ) from error
