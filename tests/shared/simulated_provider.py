"""A provider without machines, for the tests of provisioning: latencies, shortages, faults.

Stands in for a cloud of thousands of machines, which cannot be here. It counts what a
real one would charge for: machines for each token, and machines that nobody gave up.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from hpresume.errors import (
    CapacityError,
    ProviderError,
    ProviderRefusedError,
    ProviderTransientError,
)
from hpresume.providers.model import LaunchRequest, Machine, MachineState


class SimulatedProvider:
    """``capacity`` machines in all (None: as many as are asked for), up ``boot_s`` after launch."""

    name = "simulated"

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        capacity: int | None = None,
        boot_s: float = 0.0,
        latency_s: float = 0.0,
        failing: float = 0.0,
        lost_answers: float = 0.0,
        seed: int = 1,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._made: dict[str, Machine] = {}
        self._by_token: dict[str, str] = {}
        self.capacity = capacity
        self.boot_s = boot_s
        self.latency_s = latency_s
        self.failing = failing
        self.lost_answers = lost_answers
        #: Raised by the next launches of a node (by name), one after the other.
        self.errors: dict[str, list[ProviderError]] = {}
        self.refused_images: set[str] = set()
        self.launches: list[LaunchRequest] = []
        self.reboots: list[str] = []
        self.terminated: list[str] = []

    def launch(self, request: LaunchRequest) -> Machine:
        self._pause()
        with self._lock:
            self.launches.append(request)
            known = self._by_token.get(request.token)
            if known is not None:
                return self._seen(self._made[known])
            waiting = self.errors.get(request.node)
            if waiting:
                raise waiting.pop(0)
            if request.image in self.refused_images:
                raise ProviderRefusedError(f"there is no image {request.image}")
            full = self.capacity is not None and len(self._alive()) >= self.capacity
            if full or self._random.random() < self.failing:
                raise CapacityError(
                    f"We currently do not have sufficient capacity to launch new "
                    f"{request.instance_type} instances. Please try again."
                )
            machine = Machine(
                machine_id=f"i-{len(self._made):017x}",
                node=request.node,
                token=request.token,
                state=MachineState.PENDING,
                address=f"10.{len(self._made) >> 16 & 255}.{len(self._made) >> 8 & 255}."
                f"{len(self._made) & 255}",
                launched_at=self._clock(),
            )
            self._made[machine.machine_id] = machine
            self._by_token[request.token] = machine.machine_id
            if self._random.random() < self.lost_answers:
                raise ProviderTransientError("the answer was lost")
            return self._seen(machine)

    def terminate(self, machine_id: str) -> None:
        self._pause()
        with self._lock:
            self.terminated.append(machine_id)
            if machine_id in self._made:
                self._made[machine_id] = replace(
                    self._made[machine_id], state=MachineState.TERMINATED
                )

    #: The machine dies, and nobody asked for it.
    lose = terminate

    def reboot(self, machine_id: str) -> None:
        with self._lock:
            self.reboots.append(machine_id)
            made = self._made[machine_id]
            if made.state is MachineState.STOPPED:
                self._made[machine_id] = replace(made, state=MachineState.RUNNING)

    def power_off(self, machine_id: str) -> None:
        """Somebody stops the machine, or it crashes."""
        with self._lock:
            self._made[machine_id] = replace(self._made[machine_id], state=MachineState.STOPPED)

    def describe(self, machine_id: str) -> Machine | None:
        with self._lock:
            machine = self._made.get(machine_id)
            return None if machine is None else self._seen(machine)

    def list(self) -> tuple[Machine, ...]:
        self._pause()
        with self._lock:
            return tuple(self._seen(machine) for machine in self._alive())

    @property
    def alive(self) -> list[Machine]:
        """All machines that cost money."""
        with self._lock:
            return self._alive()

    def replace_behind(self, node: str) -> Machine:
        """Somebody else (node recovery) puts another machine behind a name."""
        with self._lock:
            old = next(m for m in self._alive() if m.node == node)
            self._made[old.machine_id] = replace(old, state=MachineState.TERMINATED)
        return self.launch(LaunchRequest(token=f"recovery-{len(self._made)}", node=node))

    def _alive(self) -> list[Machine]:
        return [m for m in self._made.values() if not m.state.is_gone]

    def _seen(self, machine: Machine) -> Machine:
        is_up = self._clock() >= machine.launched_at + self.boot_s
        if machine.state is MachineState.PENDING and is_up:
            return replace(machine, state=MachineState.RUNNING)
        return machine

    def _pause(self) -> None:
        if self.latency_s:
            with self._lock:
                wait = self._random.uniform(0.0, 2.0 * self.latency_s)
            time.sleep(wait)
