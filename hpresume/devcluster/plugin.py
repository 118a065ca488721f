"""Which SPANK plugin and which supervisor a cluster gets when none are named."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import hpresume
from hpresume.devcluster.slurm_conf import Version, parse_version


def default_plugin(version: Version, package: Path = Path(hpresume.__file__).parent) -> Path | None:
    """The compiled plugin of the checkout around ``package``, or in it, if it is for ``version``.

    Slurm refuses a plugin that was built for another version; the build leaves the
    version in a file beside it.
    """
    for path in (package.parent / "spank" / "hpresume.so", package / "hpresume.so"):
        built_for = path.with_name(f"{path.name}.slurm-version")
        if not path.is_file():
            continue
        if not built_for.is_file() or parse_version(built_for.read_text()) == version:
            return path
    return None


def default_supervisor() -> Path | None:
    """The ``hpresume`` program of the running Python, else the one on PATH."""
    beside_python = Path(sys.executable).parent / "hpresume"
    if beside_python.is_file():
        return beside_python
    found = shutil.which("hpresume")
    return Path(found) if found else None
