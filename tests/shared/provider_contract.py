"""What every provider has to do, as tests: a test file derives a class from this one.

It has a fixture ``world``, an object with ``open()``, which gives a provider over the same
machines each time, as after a restart of its caller; ``nodes``, two names without a machine;
and ``settle(condition)``, which waits for what takes the provider its time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import pytest

from hpresume.errors import ProviderRefusedError, ProviderTransientError
from hpresume.providers.model import LaunchRequest, Machine, MachineState, Provider

_tokens = itertools.count(1)


def new_token() -> str:
    """A client token that no test has used."""
    return f"test-{os.getpid()}-{next(_tokens)}"


class World(Protocol):
    """Where the machines are."""

    nodes: tuple[str, str]

    def open(self) -> Provider: ...

    def settle(self, condition: Callable[[], bool]) -> None: ...


def alive(world: World, token: str) -> list[Machine]:
    """The machines of a token that are not gone, as a new provider sees them."""
    return [machine for machine in world.open().list() if machine.token == token]


class ProviderContract:
    """The contract; ``keeps_address`` is False where the address is the machine's own."""

    keeps_address = True

    def launch(self, world: World, place: int = 0, **fields: str) -> Machine:
        """A running machine for one of the nodes."""
        request = LaunchRequest(new_token(), world.nodes[place], **fields)
        provider = world.open()
        launched: list[Machine] = []

        def accepted() -> bool:
            with suppress(ProviderTransientError):
                launched.append(provider.launch(request))
            return bool(launched)

        def running() -> bool:
            seen = provider.describe(launched[0].machine_id)
            return seen is not None and seen.state is MachineState.RUNNING and seen.address != ""

        world.settle(accepted)
        world.settle(running)
        machine = provider.describe(launched[0].machine_id)
        assert machine is not None
        return machine

    def give_up(self, world: World, machine: Machine) -> None:
        """Terminate a machine and wait until it is gone."""
        world.open().terminate(machine.machine_id)
        world.settle(lambda: not alive(world, machine.token))

    def test_a_machine_is_launched_described_and_listed(self, world):
        machine = self.launch(world)
        assert machine.node == world.nodes[0]
        assert machine.token.startswith("test-")
        assert alive(world, machine.token) == [machine]

    def test_the_same_token_makes_one_machine(self, world):
        machine = self.launch(world)
        request = LaunchRequest(machine.token, machine.node)
        assert world.open().launch(request).machine_id == machine.machine_id
        assert alive(world, machine.token) == [machine]

    def test_two_nodes_have_two_machines(self, world):
        one, two = self.launch(world), self.launch(world, 1)
        assert one.machine_id != two.machine_id
        assert one.address != two.address
        assert {one, two} <= set(world.open().list())

    def test_what_was_given_up_is_gone_and_stays_gone(self, world):
        machine, other = self.launch(world), self.launch(world, 1)
        self.give_up(world, machine)
        seen = world.open().describe(machine.machine_id)
        assert seen is None or seen.state.is_gone
        world.open().terminate(machine.machine_id)
        assert alive(world, machine.token) == []
        assert alive(world, other.token) == [other]

    def test_a_used_token_makes_no_second_machine(self, world):
        machine = self.launch(world)
        self.give_up(world, machine)
        answer = world.open().launch(LaunchRequest(machine.token, machine.node))
        assert answer.machine_id == machine.machine_id
        assert answer.state.is_gone
        assert alive(world, machine.token) == []

    def test_a_node_gets_a_new_machine(self, world):
        old = self.launch(world)
        self.give_up(world, old)
        new = self.launch(world, address=old.address)
        assert new.node == old.node
        assert new.machine_id != old.machine_id
        if self.keeps_address:
            assert new.address == old.address

    def test_unknown_machines(self, world):
        provider = world.open()
        before = provider.list()
        assert provider.describe(self.unknown) is None
        provider.terminate(self.unknown)
        with pytest.raises(ProviderRefusedError):
            provider.reboot(self.unknown)
        assert provider.list() == before

    #: An id that no machine of the provider has or had.
    unknown = "m-00000000"

    def test_a_reboot_keeps_the_machine(self, world):
        machine = self.launch(world)
        provider = world.open()
        provider.reboot(machine.machine_id)

        def running() -> bool:
            seen = provider.describe(machine.machine_id)
            return seen is not None and seen.state is MachineState.RUNNING

        world.settle(running)
        seen = provider.describe(machine.machine_id)
        assert seen is not None
        assert replace(seen, launched_at=machine.launched_at) == machine

    def test_what_is_gone_cannot_be_rebooted(self, world):
        machine = self.launch(world)
        self.give_up(world, machine)
        with pytest.raises(ProviderRefusedError):
            world.open().reboot(machine.machine_id)
        assert alive(world, machine.token) == []
