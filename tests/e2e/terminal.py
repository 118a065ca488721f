"""A terminal of the trainer's, with a shell on it: keys are pressed, lines are read."""

from __future__ import annotations

import os
import re
import termios
import time
from typing import Any, Self

from steps import Run

CTRL_C = "\x03"


class Terminal:
    """An interactive shell in a run's directory; ``argv`` starts it (default: bash)."""

    def __init__(self, run: Run, *argv: str) -> None:
        self._master, slave = os.openpty()
        os.set_blocking(self._master, False)
        shell = ["bash", "--norc", "-i"]
        self._process = run.cluster.popen(
            ["setsid", "--ctty", "--wait", *argv, *shell],
            user="trainer", cwd=run.dir, env=run.environ | {"PS1": "$ "},
            stdin=slave, stdout=slave, stderr=slave, on_exit="KILL",
        )  # fmt: skip
        os.close(slave)
        self._text = ""

    def __enter__(self) -> Self:
        self.expect(r"\$ $")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def press(self, keys: str) -> None:
        """Type ``keys``."""
        os.write(self._master, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size."""
        termios.tcsetwinsize(self._master, (rows, columns))

    def settings(self) -> list[Any]:
        """What the terminal does with what is typed and printed, as tcgetattr tells it."""
        return termios.tcgetattr(self._master)

    def expect(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        """Wait for something on the screen behind what was expected last."""
        deadline = time.monotonic() + timeout
        while not (match := re.search(pattern, self._text)):
            assert time.monotonic() < deadline, f"{pattern!r} does not come:\n{self._text}"
            try:
                self._text += os.read(self._master, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.01)
        self._text = self._text[match.end() :]
        return match
