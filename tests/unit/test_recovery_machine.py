"""Random faults, orders and kills: never two machines, never an orphan, always an end."""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from recovery_world import World

from hpresume.errors import LeadershipLostError
from hpresume.recovery import reasons, table
from hpresume.slurm.admin import Holder
from hpresume.store import open_store

NAMES = ("n1", "n2", "n3")
nodes = st.sampled_from(NAMES)

DEEDS = ["launch", "terminate", "reboot"]
WRONGS = ["before", "half", "capacity", "refused", "killed", "half-killed"]
FAULTS = st.tuples(st.sampled_from(DEEDS), st.sampled_from(WRONGS)) | st.tuples(
    st.sampled_from(["list", "describe"]), st.sampled_from(["before", "killed"])
)


class Recovery(RuleBasedStateMachine):
    """The cluster of recovery_world, and everything that may happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir="/dev/shm")
        self.store = open_store(f"sqlite:///{self.folder}/c.db")
        self.world = World(self.store, NAMES)
        self.jobs = 0

    @rule(
        node=nodes,
        kind=st.sampled_from(["Replace", "Reboot"]),
        state=st.sampled_from(["FAIL", "DOWN"]),
    )
    def order(self, node: str, kind: str, state: str) -> None:
        self.world.slurm.update_node(node, State=state, Reason=f"Action:{kind}")

    @rule(node=nodes)
    def health_mark(self, node: str) -> None:
        reason = "Action:Replace [hpresume dcgm] row remap failure"
        if not self.world.slurm.known[node].reason:
            self.world.slurm.update_node(node, State="FAIL", Reason=reason)

    @rule(node=nodes)
    def machine_dies(self, node: str) -> None:
        for machine in self.world.provider.of(node):
            del self.world.provider.machines[machine.machine_id]
        self.world.slurm.vanish(node)

    @rule(node=nodes)
    def slurm_notices(self, node: str) -> None:
        if self.world.slurm.known[node].has("NOT_RESPONDING"):
            self.world.slurm.declare_down(node)

    @rule(node=nodes)
    def administrator_resumes(self, node: str) -> None:
        self.world.slurm.update_node(node, State="RESUME")

    @rule(node=nodes)
    def administrator_drains(self, node: str) -> None:
        self.world.slurm.update_node(node, State="DRAIN", Reason="fan is loud")

    @rule(node=nodes)
    def job_starts(self, node: str) -> None:
        if self.world.slurm.known[node].is_usable:
            self.jobs += 1
            self.world.slurm.jobs[self.jobs] = Holder(self.jobs, (node,))

    @rule()
    def jobs_end(self) -> None:
        self.world.slurm.jobs.clear()

    @rule(faults=st.lists(FAULTS, min_size=1, max_size=3))
    def provider_stumbles(self, faults: list[tuple[str, str]]) -> None:
        self.world.provider.faults.extend(faults)

    @rule(count=st.integers(1, 3))
    def bad_machines_are_delivered(self, count: int) -> None:
        self.world.provider.born_unhealthy = count

    @rule(steps=st.integers(0, 5))
    def killed_soon(self, steps: int) -> None:
        self.world.kill_in = steps

    @rule()
    def killed_now(self) -> None:
        self.world.start()

    @rule(count=st.integers(1, 12))
    def passes(self, count: int) -> None:
        for _ in range(count):
            self.world.once()
            self.world.call()
            self.world.check_invariants()

    @rule()
    def machines_boot(self) -> None:
        self.world.boot()

    @rule(seconds=st.sampled_from([0.5, 3.0, 15.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def the_one_before_wakes_up(self) -> None:
        old, lease = self.world.controller, self.world.lease
        self.world.start()
        lease._until = 0.0  # its own clock has gone on
        before = dict(self.world.slurm.known)
        try:
            assert not old.once().acted
        except LeadershipLostError:
            pass
        assert self.world.slurm.known == before

    @invariant()
    def holds(self) -> None:
        self.world.check_invariants()

    def teardown(self) -> None:
        try:
            self.world.slurm.jobs.clear()
            self.world.settle()
            self._at_rest()
        finally:
            self.store.close()
            shutil.rmtree(self.folder)

    def _at_rest(self) -> None:
        with self.store.read() as session:
            assert table.active(session) == ()
            ended = table.past(session, 0.0)
        last = {recovery.node: recovery for recovery in ended if recovery.acted_at}
        for name in NAMES:
            node = self.world.slurm.known[name]
            machines = self.world.provider.of(name)
            if node.is_usable:
                assert len(machines) == 1 or name not in last or node.has("NOT_RESPONDING"), node
            else:
                quarantined = reasons.is_quarantine(node.reason)
                assert quarantined or reasons.read(node.reason) is None or node.is_draining, node
            for machine in machines:
                if machine.token:
                    assert machine.machine_id == last[name].machine_id, "an orphan"


Recovery.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None,
    suppress_health_check=list(HealthCheck), print_blob=False,
)  # fmt: skip
TestRecovery = Recovery.TestCase
