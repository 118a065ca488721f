"""Machines by the site's own programs.

Five programs, as argument lists: launch, terminate, reboot, describe and list.
They get what they need as HPRESUME_* variables, say how it went by their exit code, and
answer in JSON on standard output. docs/providers.md is the contract, with an example.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hpresume.errors import (
    CapacityError,
    ProviderError,
    ProviderRefusedError,
    ProviderTimeoutError,
    ProviderTransientError,
)
from hpresume.providers import answers, bounded
from hpresume.providers.model import LaunchRequest, Machine
from hpresume.providers.retry import again
from hpresume.providers.table import Table

#: Exit codes, from sysexits.h: EX_UNAVAILABLE and EX_TEMPFAIL.
EXIT_DONE, EXIT_NO_CAPACITY, EXIT_TRY_AGAIN = 0, 69, 75

T = TypeVar("T")

ACTIONS = ("launch", "terminate", "reboot", "describe", "list")

_PREFIX = "HPRESUME_"
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_LONGEST_MESSAGE = 300

#: The machine or the limits of the service leave no room for one more process now.
_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True)
class Programs:
    """Argument lists of the programs, one for each of ``ACTIONS``."""

    launch: tuple[str, ...]
    terminate: tuple[str, ...]
    reboot: tuple[str, ...]
    describe: tuple[str, ...]
    list: tuple[str, ...]


class CommandProvider:
    """The machines that ``programs`` know.

    ``timeout_s`` bounds one run of a program, ``launch_timeout_s`` one of the launch
    program; then its process group is killed. ``environ`` is what the programs get besides the
    documented variables (default: the environment of this process).
    """

    def __init__(
        self,
        programs: Programs,
        *,
        name: str = "command",
        timeout_s: float = 60.0,
        launch_timeout_s: float = 120.0,
        environ: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._programs = programs
        self._timeout_s = timeout_s
        self._launch_timeout_s = launch_timeout_s
        inherited = os.environ if environ is None else environ
        # what was meant for somebody else must not look as if it were said here
        self._environ = {k: v for k, v in inherited.items() if not k.startswith(_PREFIX)}
        self._sleep = sleep

    def launch(self, request: LaunchRequest) -> Machine:
        """Run the launch program; the machine must be of this node and token."""
        variables = {
            "NODE": request.node,
            "TOKEN": request.token,
            "INSTANCE_TYPE": request.instance_type,
            "GROUP": request.group,
            "ADDRESS": request.address,
            "IMAGE": request.image,
            **_attributes(request.attributes),
        }
        output = self._run("launch", variables, self._launch_timeout_s)
        machine = self._understood("launch", lambda: answers.one(output))
        if (machine.node, machine.token) != (request.node, request.token):
            raise ProviderTransientError(
                f"{self._shown('launch')}: answered with a machine of node {machine.node!r} and "
                f"token {machine.token!r}, asked for {request.node!r} and {request.token!r}"
            )
        return machine

    def terminate(self, machine_id: str) -> None:
        """Run the terminate program, which does nothing for a machine that is gone."""
        again(lambda: self._about("terminate", machine_id), sleep=self._sleep)

    def reboot(self, machine_id: str) -> None:
        """Run the reboot program; once, as two reboots are not one."""
        self._about("reboot", machine_id)

    def describe(self, machine_id: str) -> Machine | None:
        """Run the describe program, which answers ``null`` for what it does not know."""
        output = again(lambda: self._about("describe", machine_id), sleep=self._sleep)
        machine = self._understood("describe", lambda: answers.one_or_none(output))
        if machine is not None and machine.machine_id != machine_id:
            raise ProviderTransientError(
                f"{self._shown('describe')}: answered with machine {machine.machine_id!r}, "
                f"asked for {machine_id!r}"
            )
        return machine

    def list(self) -> tuple[Machine, ...]:
        """Run the list program; machines that are gone may be among its answer."""
        output = again(lambda: self._run("list", {}, self._timeout_s), sleep=self._sleep)
        machines = self._understood("list", lambda: answers.many(output))
        return tuple(machine for machine in machines if not machine.state.is_gone)

    def _about(self, action: str, machine_id: str) -> bytes:
        if not machine_id or "\0" in machine_id:
            raise ProviderRefusedError(f"{machine_id!r} is not the id of a machine")
        return self._run(action, {"MACHINE_ID": machine_id}, self._timeout_s)

    def _run(self, action: str, variables: Mapping[str, str], timeout_s: float) -> bytes:
        """Standard output of a program that says it is done; raises what its exit code means."""
        for key, value in variables.items():
            if "\0" in value:
                raise ProviderRefusedError(f"{_PREFIX}{key} = {value!r}: no NUL may be in it")
        named = {f"{_PREFIX}{key}": value for key, value in variables.items()}
        argv: Sequence[str] = getattr(self._programs, action)
        try:
            ended = bounded.run(
                argv, timeout_s, {**self._environ, **named, f"{_PREFIX}ACTION": action}
            )
        except OSError as error:
            kind = ProviderTransientError if error.errno in _SHORTAGES else ProviderRefusedError
            raise kind(
                f"{self._shown(action)}: cannot be started: {error.strerror or error}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise ProviderTimeoutError(
                f"{self._shown(action)}: did not end within {timeout_s:g} s and was killed"
            ) from error
        except bounded.TooMuchError as error:
            raise ProviderTransientError(
                f"{self._shown(action)}: said more than {bounded.MOST_OUTPUT >> 20} MiB "
                "and was killed"
            ) from error
        if ended.code != EXIT_DONE:
            raise self._failure(action, ended.code, ended.stderr)
        return ended.stdout

    def _failure(self, action: str, code: int, stderr: bytes) -> ProviderError:
        lines = [line.strip() for line in stderr.decode(errors="replace").splitlines()]
        said = next((line for line in reversed(lines) if line), "")[:_LONGEST_MESSAGE]
        if code < 0:
            kind: type[ProviderError] = ProviderTransientError
            said = said or f"killed by signal {-code}"
        elif code == EXIT_NO_CAPACITY:
            kind = CapacityError
        elif code == EXIT_TRY_AGAIN:
            kind = ProviderTransientError
        else:
            kind = ProviderRefusedError
        return kind(f"{self._shown(action)}: {said or f'exit code {code} without a word'}")

    def _understood(self, action: str, read: Callable[[], T]) -> T:
        """What a program answered; a machine may be there even if nobody understands it."""
        try:
            return read()
        except ValueError as error:
            raise ProviderTransientError(f"{self._shown(action)}: {error}") from error

    def _shown(self, action: str) -> str:
        return f"{action} program {' '.join(getattr(self._programs, action))[:100]}"


def from_table(name: str, table: Table) -> CommandProvider:
    """The provider that a table of the configuration describes."""
    programs = Programs(**{action: table.words(action) for action in ACTIONS})
    return CommandProvider(
        programs,
        name=name,
        timeout_s=table.seconds("timeout", 60.0, 1.0, 3600.0),
        launch_timeout_s=table.seconds("launch_timeout", 120.0, 1.0, 3600.0),
    )


def _attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    for key in attributes:
        if not _ATTRIBUTE.fullmatch(key):
            raise ProviderRefusedError(
                f"attribute {key!r}: use a letter, then letters, digits, '_' and '-'"
            )
    return {
        f"ATTRIBUTE_{key.upper().replace('-', '_')}": value for key, value in attributes.items()
    }
