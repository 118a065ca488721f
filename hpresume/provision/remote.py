"""Programs on machines by way of a command of the site, as ssh."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Sequence

from hpresume import process_group
from hpresume.errors import ProviderTransientError
from hpresume.providers.model import Provider
from hpresume.providers.programs import Ran

#: How ssh says that it could not connect.
_NO_CONNECTION = 255

#: More output than that is a mistake.
_MAX_OUTPUT = 16 * 1024 * 1024


class RemotePrograms:
    """``Programs`` by a command line such as ``ssh -o BatchMode=yes root@{address}``.

    ``{address}``, ``{machine}`` and ``{node}`` stand for the machine's; the program follows, with
    each word quoted for a shell on the other side, as ssh needs it.
    """

    def __init__(self, command: Sequence[str], provider: Provider) -> None:
        self._command = tuple(command)
        self._provider = provider

    def run(self, machine_id: str, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Ran:
        """Run a program to its end; ProviderTransientError where there is no connection."""
        machine = self._provider.describe(machine_id)
        if machine is None or machine.state.is_gone:
            raise ProviderTransientError(f"{machine_id}: there is no such machine now")
        names = {"address": machine.address, "machine": machine_id, "node": machine.node}
        line = [_filled(word, names) for word in self._command]
        line += [shlex.quote(word) for word in argv]
        # A file, not a pipe: what the other side starts may hold a pipe open for ever.
        with tempfile.TemporaryFile() as output:
            code = _finish(line, stdin, output.fileno(), timeout_s, machine_id)
            output.seek(0)
            said = output.read(_MAX_OUTPUT)
        if code == _NO_CONNECTION or code < 0:
            last = said.decode(errors="replace").strip()[-300:]
            raise ProviderTransientError(f"{machine_id}: {self._command[0]}: {last or code}")
        return Ran(code, said)


def _finish(
    line: Sequence[str], stdin: bytes, output: int, timeout_s: float, machine_id: str
) -> int:
    try:
        process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ProviderTransientError(f"{line[0]}: {error.strerror}") from error
    try:
        with process_group.held(process):
            process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ProviderTransientError(
            f"{machine_id}: {line[0]}: no end within {timeout_s:.0f} s"
        ) from error
    return process.returncode


def _filled(word: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        word = word.replace("{" + name + "}", value)
    return word
