"""A cluster in memory for the tests of recovery: Slurm's view, a provider, a clock.

The provider and Slurm are fakes. The store, the lease, and all of recovery are real.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hpresume.errors import CapacityError, ProviderRefusedError, ProviderTransientError
from hpresume.providers.model import LaunchRequest, Machine, MachineState
from hpresume.recovery import reasons
from hpresume.recovery.model import Call, Outcome, Policy, Trouble
from hpresume.recovery.recoverer import Recoverer
from hpresume.slurm.admin import Holder
from hpresume.slurm.models import Node
from hpresume.store import Lease, Store

POLICY = Policy(
    down_grace_s=10.0, max_concurrent=2, max_per_hour=1000, halt_share=1.0, max_attempts=3,
    terminate_s=60.0, launch_s=60.0, reboot_s=60.0, boot_s=60.0, check_s=60.0, retry_s=1.0,
    max_retry_s=8.0, sweep_every_s=30.0, completing_s=20.0, attempts_window_s=1e9,
)  # fmt: skip


class KilledError(BaseException):
    """The controller's process ends here."""


@dataclass
class FakeProvider:
    """Machines in memory; ``faults``: which call does what wrong, in their order.

    ``before``: fails without effect; ``half``: fails, but has done it.
    """

    name: str = "fake"
    machines: dict[str, Machine] = field(default_factory=dict)
    faults: deque[tuple[str, str]] = field(default_factory=deque)
    unhealthy: set[str] = field(default_factory=set)
    born_unhealthy: int = 0
    slow_to_die: bool = False
    on_start: Callable[[str], None] = lambda _: None
    on_stop: Callable[[str], None] = lambda _: None
    numbers: int = 0
    calls: list[str] = field(default_factory=list)

    def launch(self, request: LaunchRequest) -> Machine:
        fault = self._fault("launch")
        for machine in self.machines.values():
            if machine.token == request.token:
                return machine
        self.numbers += 1
        machine = Machine(
            f"m{self.numbers}", request.node, request.token, MachineState.RUNNING,
            address=f"10.0.0.{self.numbers}",
        )  # fmt: skip
        self.machines[machine.machine_id] = machine
        if self.born_unhealthy > 0:
            self.born_unhealthy -= 1
            self.unhealthy.add(machine.machine_id)
        self.on_start(request.node)
        self._half(fault)
        return machine

    def terminate(self, machine_id: str) -> None:
        fault = self._fault("terminate")
        machine = self.machines.get(machine_id)
        if machine is not None and not machine.state.is_gone:
            self.machines[machine_id] = replace(machine, state=MachineState.TERMINATED)
            self.on_stop(machine.node)
        self._half(fault)

    def reboot(self, machine_id: str) -> None:
        fault = self._fault("reboot")
        machine = self.machines.get(machine_id)
        if machine is None or machine.state.is_gone:
            raise ProviderRefusedError(f"no machine {machine_id}")
        self.on_stop(machine.node)
        self.on_start(machine.node)
        self._half(fault)

    def describe(self, machine_id: str) -> Machine | None:
        self._fault("describe")
        return self.machines.get(machine_id)

    def list(self) -> tuple[Machine, ...]:
        self._fault("list")
        return tuple(m for m in self.machines.values() if not m.state.is_gone)

    def of(self, node: str) -> list[Machine]:
        return [m for m in self.machines.values() if m.node == node and not m.state.is_gone]

    def _fault(self, call: str) -> str:
        self.calls.append(call)
        fault = ""
        if self.faults and self.faults[0][0] == call:
            fault = self.faults.popleft()[1]
        if fault == "before":
            raise ProviderTransientError("the provider stumbles")
        if fault == "killed":
            raise KilledError
        if fault == "capacity" and call == "launch":
            raise CapacityError("no machine to be had")
        if fault == "refused" and call in ("launch", "reboot"):
            raise ProviderRefusedError("the provider refuses")
        return fault

    def _half(self, fault: str) -> None:
        if fault == "half":
            raise ProviderTransientError("the answer was lost")
        if fault == "half-killed":
            raise KilledError


class FakeSlurm:
    """slurmctld's view of nodes and jobs, as far as recovery asks for it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.known = {
            name: Node(
                name, frozenset({"IDLE"}), address=name, hostname=name, port=6818,
                boot_time=1.0, slurmd_start_time=1.0, partitions=("main",),
            )
            for name in names
        }  # fmt: skip
        self.jobs: dict[int, Holder] = {}
        self.comments: dict[int, str] = {}
        self.maintenance: set[str] = set()
        self.clock: Callable[[], float] = lambda: 0.0
        self.starts = 1

    def config(self) -> object:
        return None

    def nodes(self, names: list[str] | None = None) -> dict[str, Node]:
        return {n: self.known[n] for n in (names if names is not None else self.known)}

    def holders(self, node: str | None = None) -> tuple[Holder, ...]:
        found = self.jobs.values()
        return tuple(job for job in found if node is None or node in job.nodes)

    def commented(self, word: str) -> tuple[int, ...]:
        return tuple(job for job, text in self.comments.items() if word in text)

    def comment(self, job_id: int) -> str:
        return self.comments.get(job_id, "")

    def reservations(self) -> tuple[object, ...]:
        from hpresume.slurm.reservations import Reservation

        return (Reservation("m", tuple(self.maintenance), (), frozenset({"MAINT"})),)

    def update_node(self, name: str, **fields: str) -> None:
        node = self.known[name]
        if "NodeAddr" in fields:
            node = replace(node, address=fields["NodeAddr"])
        if "Comment" in fields:
            node = replace(node, comment=fields["Comment"])
        if "Reason" in fields:
            node = replace(node, reason=fields["Reason"], reason_time=self.clock())
        state = fields.get("State")
        if state == "RESUME":
            left = node.states - {"FAIL", "DRAIN", "DOWN"}
            node = replace(node, states=left | {"IDLE"}, reason="")
        elif state == "DOWN":
            self.end_jobs(name)
            node = replace(node, states=node.states - {"IDLE"} | {"DOWN"})
        elif state == "DRAIN":
            node = replace(node, states=node.states - {"FAIL"} | {"DRAIN"})
        elif state:
            node = replace(node, states=node.states | {state})
        self.known[name] = node

    def end_jobs(self, node: str) -> None:
        for job_id in [j for j, job in self.jobs.items() if node in job.nodes]:
            del self.jobs[job_id]

    def vanish(self, name: str) -> None:
        """The machine is gone: slurmctld hears nothing."""
        node = self.known[name]
        self.known[name] = replace(node, states=node.states | {"NOT_RESPONDING"})

    def declare_down(self, name: str) -> None:
        node = self.known[name]
        self.end_jobs(name)
        states = node.states - {"IDLE"} | {"DOWN", "NOT_RESPONDING"}
        when = self.clock()
        if node.reason:
            self.known[name] = replace(node, states=states)
        else:
            self.known[name] = replace(
                node, states=states, reason="Not responding", reason_time=when
            )

    def register(self, name: str) -> None:
        """slurmd of a machine that has booted says so."""
        self.starts += 1
        node = self.known[name]
        self.known[name] = replace(
            node, states=node.states - {"NOT_RESPONDING"}, slurmd_start_time=float(self.starts)
        )


class World:
    """A cluster of some nodes with a machine each, and a controller that can be killed."""

    def __init__(self, store: Store, names: tuple[str, ...], policy: Policy = POLICY) -> None:
        self.store = store
        self.policy = policy
        self.now = 1_000_000.0
        self.slurm = FakeSlurm(names)
        self.slurm.clock = lambda: self.now
        self.provider = FakeProvider(on_start=self._started, on_stop=self._stopped)
        self.booting: list[str] = []
        self.silent: set[str] = set()
        self.harmed: list[int] = []
        self.work: list[Callable[[], None]] = []
        self.kill_in: int | None = None
        self.instances = 0
        for name in names:
            self.provider.numbers += 1
            first = Machine(f"m{self.provider.numbers}", name, "", MachineState.RUNNING)
            self.provider.machines[first.machine_id] = first
        self.start()

    def start(self) -> None:
        """A controller, new; one that was there before is dead, or believes to be alive."""
        self.instances += 1
        self.work = []
        self.lease = Lease(
            self.store, f"i{self.instances}", 1e9, lambda: self.now, lambda: self.now,
            lambda holder: holder != f"i{self.instances}",
        )  # fmt: skip
        self.lease.try_hold()
        self.controller = Recoverer(
            self.slurm, self.store, self.provider, self.check, self.policy,
            lambda lease=self.lease: lease.fence, look=self._look,
            clock=lambda: self.now, crossed=self._crossed, submit=self.work.append,
        )  # fmt: skip

    def check(self, node: str, jobs: tuple[int, ...], stands: Callable[[], bool]) -> Outcome:
        del jobs
        machines = self.provider.of(node)
        if any(m.machine_id in self.provider.unhealthy for m in machines):
            assert stands()
            self.slurm.update_node(
                node, State="FAIL", Reason=reasons.hold(reasons.Kind.REPLACE, "x")
            )
            return Outcome(Call.CHECK, Trouble.FAULT, "2 of 8 GPUs")
        return Outcome(Call.CHECK, words="good")

    def once(self) -> bool:
        """One pass, in which the controller may be killed; whether it did something."""
        try:
            return self.controller.once().acted
        except KilledError:
            self.start()
            return True

    def call(self) -> None:
        """Run the oldest call that is under way."""
        if self.work:
            try:
                self.work.pop(0)()
            except KilledError:
                self.start()

    def boot(self) -> None:
        """All machines that boot have booted."""
        for name in self.booting:
            if self.provider.of(name):
                self.slurm.register(name)
        self.booting = []

    def settle(self, passes: int = 400) -> None:
        """Let time pass without new faults, until nothing is left to be done."""
        self.provider.faults.clear()
        self.provider.born_unhealthy = 0
        self.kill_in = None
        idle = 0
        for _ in range(passes):
            acted = self.once()
            while self.work:
                self.call()
            self.boot()
            self.now += 2.0
            self.check_invariants()
            idle = 0 if acted else idle + 1
            if idle > 40:
                return
        raise AssertionError("no end of it")

    def check_invariants(self) -> None:
        """What holds at every instant."""
        for name in self.slurm.known:
            machines = self.provider.of(name)
            assert len(machines) <= 1, machines
        assert self.harmed == [], "a machine was taken from under a job"

    def _crossed(self, _: str) -> None:
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.kill_in = None
                raise KilledError

    def _started(self, node: str) -> None:
        self.booting.append(node)

    def _stopped(self, node: str) -> None:
        self.harmed += [job.job_id for job in self.slurm.holders(node)]
        self.slurm.vanish(node)

    def _look(self, names: list[str], nodes: object, config: object) -> list[str]:
        del nodes, config
        return [name for name in names if name in self.silent or not self.provider.of(name)]
