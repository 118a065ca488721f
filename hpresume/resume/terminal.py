"""The terminal of the user, as it was: an srun --pty that is killed leaves it raw."""

from __future__ import annotations

import os
import termios

TerminalState = list[object]


def remember() -> TerminalState | None:
    """The settings of the terminal on standard input; None where there is none."""
    try:
        return termios.tcgetattr(0) if os.isatty(0) else None
    except termios.error:
        return None


def restore(state: TerminalState | None) -> None:
    """Put the settings back, if the terminal is still ours to set."""
    try:
        if state is not None and os.tcgetpgrp(0) == os.getpgrp():
            termios.tcsetattr(0, termios.TCSADRAIN, state)  # type: ignore[arg-type]
    except (OSError, termios.error):
        pass  # it is gone, or it was never ours
