"""A checkpoint that is there whole or not at all, whatever dies while it is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Give ``path`` the content that ``write`` puts into a file.

    Written beside it, flushed to the disk, then renamed: the old checkpoint
    stays until the new one is complete. The folder is flushed too, or a power
    loss could undo the renaming.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
