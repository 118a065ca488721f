"""Machines by Slurm's power saving: SuspendProgram gives them up, ResumeProgram makes them.

Slurm knows nodes only. What stands behind a node is a machine of its own from one
power-up to the next power-down; its id is ``NODE:TOKEN`` (``NODE`` where Slurm itself woke it).
The token and how far its machine has come are kept in the node's Extra field, as
``hpresume:TOKEN:launching``, ``launched`` or ``terminated``.

States seen on 22.05: ``power_down_force`` gives POWERING_DOWN, and POWERED_DOWN after
SuspendTimeout (and the rest of power_save_interval, 10 s by default); base state and reason
stay, DOWN too. ``power_up`` is answered with success and ignored unless the node is
POWERED_DOWN; then it is POWERING_UP until its slurmd registers, or DOWN after ResumeTimeout.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpresume.errors import (
    ProviderRefusedError,
    ProviderTimeoutError,
    ProviderTransientError,
    SlurmError,
    SlurmNotFoundError,
    SlurmTimeoutError,
    SlurmTransientError,
    UsageError,
)
from hpresume.providers.model import LaunchRequest, Machine, MachineState
from hpresume.providers.retry import again
from hpresume.providers.table import Table
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import Node

LAUNCHING, LAUNCHED, TERMINATED = "launching", "launched", "terminated"

_EXTRA = re.compile(rf"hpresume:([A-Za-z0-9_-]{{1,64}}):({LAUNCHING}|{LAUNCHED}|{TERMINATED})")
_GOING = ("POWERING_DOWN", "POWER_DOWN")
_COMING = ("POWERING_UP", "POWER_UP", "REBOOT_ISSUED", "REBOOT_REQUESTED")


@dataclass(frozen=True)
class Note:
    """What the Extra field says; empty where it is not ours."""

    token: str = ""
    phase: str = ""


class PowerProvider:
    """The nodes of the cluster that ``gateway`` talks to, as an operator of Slurm.

    Reboots go through RebootProgram. ``sleep`` waits between repetitions (s).
    """

    def __init__(
        self,
        gateway: SlurmGateway,
        *,
        name: str = "power",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._gateway = gateway
        self._sleep = sleep

    def launch(self, request: LaunchRequest) -> Machine:
        """``power_up``, for a node that is powered down.

        Raises ProviderTransientError while it is still being powered down. The
        kind of machine and its address are what ResumeProgram makes of the node.
        """
        for key in request.attributes:
            raise ProviderRefusedError(
                f"attribute {key!r}: a launch by power saving takes none; ResumeProgram decides"
            )
        if request.image:
            raise ProviderRefusedError(
                f"image {request.image}: power saving knows no images; ResumeProgram decides"
            )
        node = self._node(request.node)
        if node is None:
            raise ProviderRefusedError(f"Slurm knows no node {request.node}")
        note = note_of(node)
        if note.token == request.token and note.phase != LAUNCHING:
            return as_noted(node)
        if node.has(*_GOING):
            raise ProviderTransientError(f"{node.name} is still being powered down")
        if not node.has("POWERED_DOWN"):
            if note.token != request.token:
                raise ProviderRefusedError(
                    f"{node.name} is powered up: terminate its machine first"
                )
        else:
            self._write(node.name, request.token, LAUNCHING)
            again(lambda: self._power_up(node.name), sleep=self._sleep)
        self._write(node.name, request.token, LAUNCHED)
        return as_noted(self._known(node.name))

    def terminate(self, machine_id: str) -> None:
        """``power_down_force``: jobs on the node are killed."""
        node = self._holder(machine_id)
        if node is None:
            return
        if not node.has("POWERED_DOWN", *_GOING):
            with _errors():
                self._gateway.update_node(node.name, state="power_down_force")
        token = note_of(node).token
        if token:
            self._write(node.name, token, TERMINATED)

    def reboot(self, machine_id: str) -> None:
        """``scontrol reboot``, or ``power_up`` for one that Slurm has put to sleep."""
        node = self._holder(machine_id)
        if node is None:
            raise ProviderRefusedError(f"there is no machine {machine_id}: it cannot be rebooted")
        if node.has(*_GOING):
            raise ProviderTransientError(f"{node.name} is still being powered down")
        if node.has("POWERED_DOWN"):
            again(lambda: self._power_up(node.name), sleep=self._sleep)
            return
        with _errors():
            self._gateway.reboot_node(node.name, "hpresume reboots it")

    def describe(self, machine_id: str) -> Machine | None:
        """The machine, if it is the last one of its node that is known."""
        node_name, _, token = machine_id.partition(":")
        node = self._node(node_name)
        if node is None:
            return None
        if token and note_of(node).token == token:
            return as_noted(node)
        present = current(node)
        return present if present is not None and present.machine_id == machine_id else None

    def list(self) -> tuple[Machine, ...]:
        """One machine for every node that is not powered down."""
        with _errors():
            nodes = self._gateway.nodes()
        machines = (current(node) for node in nodes.values())
        return tuple(m for m in machines if m is not None and not m.state.is_gone)

    def _power_up(self, name: str) -> None:
        """Once, and look whether slurmctld took it: it says so in neither case."""
        with _errors():
            self._gateway.update_node(name, state="power_up")
        node = self._known(name)
        if node.has("POWERED_DOWN") and not node.has(*_COMING):
            raise ProviderTransientError(f"{name} is powered down and slurmctld lets it be")

    def _holder(self, machine_id: str) -> Node | None:
        """The node behind which this machine stands now."""
        node = self._node(machine_id.partition(":")[0])
        present = current(node) if node is not None else None
        return node if present is not None and present.machine_id == machine_id else None

    def _known(self, name: str) -> Node:
        node = self._node(name)
        if node is None:
            raise ProviderTransientError(f"Slurm knows no node {name} any more")
        return node

    def _node(self, name: str) -> Node | None:
        with _errors():
            try:
                return self._gateway.nodes([name])[name]
            except SlurmNotFoundError:
                return None

    def _write(self, node: str, token: str, phase: str) -> None:
        with _errors():
            self._gateway.update_node(node, extra=f"hpresume:{token}:{phase}")


def note_of(node: Node) -> Note:
    """What the node's Extra field says about its machine."""
    match = _EXTRA.fullmatch(node.extra)
    return Note(match[1], match[2]) if match else Note()


def current(node: Node) -> Machine | None:
    """The machine that stands behind a node now; None where there is none."""
    note = note_of(node)
    if note.token and note.phase != TERMINATED:
        return as_noted(node)
    if node.has("POWERED_DOWN", *_GOING):
        return None
    return Machine(node.name, node.name, "", _powered(node), node.address)


def as_noted(node: Node) -> Machine:
    """The machine of the token in the node's Extra field."""
    note = note_of(node)
    machine_id = f"{node.name}:{note.token}"
    return Machine(machine_id, node.name, note.token, _state(node, note.phase), node.address)


def from_table(name: str, table: Table) -> PowerProvider:
    """The provider that a table of the configuration describes; it has no settings."""
    from hpresume.slurm.cli import CliGateway

    table.finish()
    return PowerProvider(CliGateway(), name=name)


def _state(node: Node, phase: str) -> MachineState:
    if node.has(*_GOING):
        return MachineState.TERMINATING
    if phase == TERMINATED:
        # powered up all the same: that is another machine, which Slurm woke itself
        return MachineState.TERMINATED
    if node.has("POWERED_DOWN") and not node.has(*_COMING):
        return MachineState.PENDING if phase == LAUNCHING else MachineState.STOPPED
    return _powered(node)


def _powered(node: Node) -> MachineState:
    return MachineState.PENDING if node.has(*_COMING) else MachineState.RUNNING


@contextmanager
def _errors() -> Iterator[None]:
    """Slurm's errors as those of a provider; SlurmNotFoundError is told apart before."""
    try:
        yield
    except SlurmTimeoutError as error:
        raise ProviderTimeoutError(str(error)) from error
    except SlurmTransientError as error:
        raise ProviderTransientError(str(error)) from error
    except (SlurmError, UsageError) as error:
        raise ProviderRefusedError(str(error)) from error
