"""What every source of machines can do, and the words for it.

A *node* is a name in slurm.conf, for life; a *machine* is what stands behind it
for a while. A launch carries a client token: the same token never makes a second
machine, however often it is sent, so a controller that was killed between asking
and writing down asks again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from hpresume.errors import ProviderRefusedError

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


class MachineState(StrEnum):
    """Life of a machine; STOPPED is one that is there and powered off."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    TERMINATING = "terminating"
    TERMINATED = "terminated"

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left, or soon will be."""
        return self in (MachineState.TERMINATING, MachineState.TERMINATED)


@dataclass(frozen=True)
class LaunchRequest:
    """One machine that is asked for.

    ``token`` is the client token (1 to 64 characters of ``[A-Za-z0-9_-]``), ``node``
    the host name it is to have. ``address`` is the one the node had: the provider keeps it where it
    can, and the machine says which one it got. ``image`` is what the machine is to be made
    of: an id (``ami-…``) or a release (``1.2.3``), empty for the provider's own. ``attributes`` are
    the provider's own (subnet, GPUs), as its configuration names them.
    Creating one raises ProviderRefusedError where the token or the node is none.
    """

    token: str
    node: str
    instance_type: str = ""
    group: str = ""
    address: str = ""
    image: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token):
            raise ProviderRefusedError(
                f"client token {self.token!r}: use 1 to 64 letters, digits, '_' and '-'"
            )
        if not _NODE.fullmatch(self.node):
            raise ProviderRefusedError(
                f"node name {self.node!r}: use 1 to 63 letters, digits and '-', as for a host name"
            )


@dataclass(frozen=True)
class Machine:
    """One machine as its provider describes it.

    ``launched_at`` is Unix time (s), 0.0 where the provider does not tell; ``address`` is
    empty until it has one. ``token`` is empty for a machine that was not launched
    through a provider, and ``node`` where the provider does not know it.
    """

    machine_id: str
    node: str
    token: str
    state: MachineState
    address: str = ""
    launched_at: float = 0.0


class Provider(Protocol):
    """A source of machines.

    Every call is bounded in time and raises a ``ProviderError``: ``CapacityError``
    where there is no machine to be had now, ``ProviderTransientError`` where the same
    call may succeed later, ``ProviderRefusedError`` where it never will.

    A call that raises ``ProviderTransientError``, and one whose caller was killed, may have
    succeeded all the same: the request arrived and the answer was lost. So the caller
    writes the token down before ``launch``, and afterwards asks again with the same
    token, or looks for the token in ``list()``. A new token is for a new machine, after
    the one of the old token is known to be gone or never came to be.
    ``CapacityError`` and ``ProviderRefusedError`` say that no machine was made.
    """

    name: str

    def launch(self, request: LaunchRequest) -> Machine:
        """Ask for a machine; the one that this token has made already, if it has.

        Returns as soon as there is a machine with an id, which may still be PENDING.
        A token is used up for good: once its machine is gone, the answer is that
        machine, as gone, for as long as the provider remembers it.
        """
        ...

    def terminate(self, machine_id: str) -> None:
        """Give a machine up; nothing happens to one that is gone, or was never there."""
        ...

    def reboot(self, machine_id: str) -> None:
        """Start a machine afresh with its disks, name and address.

        Also powers on one that is STOPPED. Raises ProviderRefusedError for one that is
        gone or unknown.
        """
        ...

    def describe(self, machine_id: str) -> Machine | None:
        """One machine; None once nothing is known of it any more."""
        ...

    def list(self) -> tuple[Machine, ...]:
        """All machines of this cluster that are not gone."""
        ...
