"""Machines of a development cluster.

They are as a cloud's: a launch starts a fresh one under the node's name, a reboot
keeps its disks, what was given up does not come back. Needs root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.machines import HostMachine, Wish
from hpresume.devcluster.spec import DEFAULT_NAME
from hpresume.errors import (
    DevClusterError,
    MissingDependencyError,
    ProviderRefusedError,
    ProviderTransientError,
    UsageError,
)
from hpresume.providers.model import LaunchRequest, Machine, MachineState
from hpresume.providers.table import Table

_ATTRIBUTES = ("gpus", "slurmd")


class DevClusterProvider:
    """The machines of ``cluster``, which has to run.

    With ``new_address`` a launch gives the node another address each time; without, the
    one that is asked for or the one it had. With ``report_boot`` slurmd tells
    slurmctld that the machine has booted, as a real one does: unless ReturnToService
    is 2, slurmctld then sets a node that it still believed in DOWN. The times of it are whole
    seconds, and slurmd starts in the second of the boot: a node that is resumed
    within a second of that may be set DOWN once more, which no real machine does.
    """

    def __init__(
        self,
        cluster: DevCluster,
        *,
        name: str = "devcluster",
        new_address: bool = False,
        report_boot: bool = False,
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._new_address = new_address
        self._report_boot = report_boot

    def launch(self, request: LaunchRequest) -> Machine:
        """Boot a fresh machine under the node's name, which must have none.

        Attributes, for a host that the cluster was not made with: ``gpus`` (0 to 8) and
        ``slurmd`` (``yes``, or ``no`` for a login node).
        """
        wish = Wish(
            address=request.address,
            new_address=self._new_address,
            gpus=_gpus(request.attributes),
            slurmd=_runs_slurmd(request.attributes),
            report_boot=self._report_boot,
        )
        with _errors():
            machine_id = self._cluster.launch_machine(request.node, request.token, wish)
        machine = self.describe(machine_id)
        if machine is None:
            raise ProviderTransientError(f"machine {machine_id} of {request.node} is gone again")
        return machine

    def terminate(self, machine_id: str) -> None:
        """Power the machine off and forget its disks."""
        with _errors():
            self._cluster.terminate_machine(machine_id)

    def reboot(self, machine_id: str) -> None:
        """Power off and on."""
        with _errors():
            self._cluster.reboot_machine(machine_id, report_boot=self._report_boot)

    def describe(self, machine_id: str) -> Machine | None:
        """The machine, also for a while after it has gone."""
        with _errors():
            found = self._cluster.machines()
        return next((_machine(m) for m in found if m.record.machine_id == machine_id), None)

    def list(self) -> tuple[Machine, ...]:
        """All machines behind hosts; those the cluster was made with have no token."""
        with _errors():
            found = self._cluster.machines()
        return tuple(machine for machine in map(_machine, found) if not machine.state.is_gone)


def from_table(name: str, table: Table) -> DevClusterProvider:
    """The provider that a table of the configuration describes."""
    cluster = table.text("cluster", DEFAULT_NAME)
    address = table.choice("address", ("same", "new"), "same")
    report_boot = table.flag("report_boot", False)
    try:
        made_of = DevCluster(cluster)
    except UsageError as error:
        raise table.error("cluster", str(error)) from error
    return DevClusterProvider(
        made_of, name=name, new_address=address == "new", report_boot=report_boot
    )


def _machine(seen: HostMachine) -> Machine:
    record = seen.record
    return Machine(
        machine_id=record.machine_id,
        node=record.node,
        token=record.token,
        state=_state(seen),
        address=seen.address,
        launched_at=record.launched_at,
    )


def _state(seen: HostMachine) -> MachineState:
    if seen.condition == "gone":
        return MachineState.TERMINATED
    if not seen.record.booted:
        return MachineState.PENDING
    # one that hangs or is cut off is running, as far as a provider can see
    return MachineState.STOPPED if seen.condition == "crashed" else MachineState.RUNNING


def _gpus(attributes: Mapping[str, str]) -> int | None:
    for key in attributes:
        if key not in _ATTRIBUTES:
            raise ProviderRefusedError(
                f"attribute {key!r}: a machine of a dev cluster has {' and '.join(_ATTRIBUTES)}"
            )
    value = attributes.get("gpus")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise ProviderRefusedError(f"attribute gpus = {value!r}: write a whole number")
    return int(value)


def _runs_slurmd(attributes: Mapping[str, str]) -> bool:
    value = attributes.get("slurmd", "yes")
    if value not in ("yes", "no"):
        raise ProviderRefusedError(f"attribute slurmd = {value!r}: write yes or no")
    return value == "yes"


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (UsageError, MissingDependencyError) as error:
        raise ProviderRefusedError(str(error)) from error
    except DevClusterError as error:
        raise ProviderTransientError(str(error)) from error
