"""Programs on machines: what some providers can do besides making them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Ran:
    """How a program ended, and what it wrote on both streams."""

    exit_code: int
    output: bytes


class Programs(Protocol):
    """Runs programs as root on a machine."""

    def run(self, machine_id: str, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Ran:
        """Run a program to its end.

        Raises ProviderTransientError where the machine does not answer or the time is over;
        what was started may go on then.
        """
        ...
