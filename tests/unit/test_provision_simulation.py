"""Whatever is asked, whatever fails, wherever the process dies: it converges, nothing is lost.

Random requests, shortages, losses and deaths; then the world is left in peace, and has to be as it
was asked for last.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from provision_world import CONTROLLER, LOGIN, World, group, workers

from hpresume.errors import ProviderError, ServiceError
from hpresume.providers.model import LaunchRequest
from hpresume.provision import requests
from hpresume.provision.checking import STRESS, Finding, Verdict
from hpresume.provision.model import ClusterStatus, GroupStatus
from hpresume.provision.service import Addition, NodeAction

COUNTS = st.integers(0, 6)

STEPS = st.one_of(
    st.tuples(st.just("examine"), st.sampled_from(["workers", "others"]), st.booleans()),
    st.tuples(st.just("scale"), st.sampled_from(["workers", "others"]), COUNTS, COUNTS),
    st.tuples(st.just("add"), st.sampled_from(["workers", "others"]), st.integers(1, 3)),
    st.tuples(st.just("act"), st.sampled_from(list(NodeAction)), st.integers(0, 9)),
    st.tuples(st.just("drop group"), st.just("others")),
    st.tuples(st.just("capacity"), st.one_of(st.none(), st.integers(0, 9))),
    st.tuples(st.just("lose"), st.integers(0, 9)),
    st.tuples(st.just("scripts"), st.integers(0, 3)),
    st.tuples(st.just("answers"), st.sampled_from([0.0, 0.5, 1.0])),
    st.tuples(st.just("unready"), st.integers(0, 4)),
    st.tuples(
        st.just("software"), st.sampled_from(["", "ami-0badbadbad", "1.2.3"]), st.integers(1, 3)
    ),
    st.tuples(st.just("let pass"), st.integers(1, 5), st.sampled_from([1.0, 30.0, 4000.0])),
    st.tuples(st.just("delete")),
)


def spec_of(name: str, count: int, minimum: int) -> object:
    return group(name, "Compute", count, partition="p1", minimum=min(minimum, count))


class Story:
    def __init__(self, slurm: bool) -> None:
        self.world = World(
            CONTROLLER, LOGIN, workers(3), group("others", "Compute", 2), slurm=slurm
        )
        self.world.provider.refused_images = {"ami-0badbadbad"}

    def do(self, step: tuple) -> None:  # type: ignore[type-arg]
        kind, *what = step
        try:
            getattr(self, kind.replace(" ", "_"))(*what)
        except (ServiceError, ProviderError):
            pass
        self.check()

    def scale(self, name: str, count: int, minimum: int) -> None:
        self.world.update(spec_of(name, count, minimum))  # type: ignore[arg-type]

    def add(self, name: str, count: int) -> None:
        self.world.ask(lambda d, op: requests.add(d, [Addition(name, count, {})], op))

    def act(self, action: NodeAction, number: int) -> None:
        nodes = [n for n in self.world.state.nodes.values() if n.machine_id]
        chosen = nodes[number : number + 2]
        self.world.ask(lambda d, op: requests.act(d, action, chosen, op))

    def software(self, image: str, batch: int) -> None:
        size = {"Type": "INSTANCE_COUNT", "Value": batch}
        config = {"RollingUpdatePolicy": {"MaximumBatchSize": size}, "WaitIntervalInSeconds": 2}
        named = {"ImageReleaseVersion" if image == "1.2.3" else "ImageId": image} if image else {}
        self.world.update_software(DeploymentConfig=config, **named)

    def examine(self, name: str, at_once: bool) -> None:
        passed = Finding(Verdict.PASSED)
        self.world.checks = lambda run: dict.fromkeys(run.nodes, passed) if at_once else None
        self.world.check_health({"InstanceGroupName": name, "DeepHealthChecks": [STRESS]})

    def drop_group(self, name: str) -> None:
        self.world.update(delete=(name,))

    def capacity(self, machines: int | None) -> None:
        self.world.provider.capacity = machines

    def lose(self, number: int) -> None:
        alive = self.world.provider.alive
        if number < len(alive):
            self.world.provider.lose(alive[number].machine_id)

    def scripts(self, failing: int) -> None:
        self.world.scripts = lambda node: "exit code 1" if node.index <= failing else ""

    def answers(self, lost: float) -> None:
        self.world.provider.lost_answers = lost

    def unready(self, last: int) -> None:
        self.world.unready = {f"workers-{n}" for n in range(1, last + 1)}

    def let_pass(self, passes: int, seconds: float) -> None:
        for _ in range(passes):
            self.world.step(seconds)
            self.check()

    def delete(self) -> None:
        self.world.ask(lambda draft, _: requests.delete(draft))

    def check(self) -> None:
        """What holds at every moment."""
        alive = self.world.provider.alive
        behind = [machine.node for machine in alive]
        assert len(behind) == len(set(behind)), "two machines behind one name"
        names = [node.name for node in self.world.state.nodes.values()]
        assert len(names) == len(set(names))
        for group_ in self.world.groups.values():
            assert 0 <= group_.minimum <= group_.target

    def in_peace(self) -> None:
        world = self.world
        world.provider.capacity = None
        world.provider.lost_answers = 0.0
        world.provider.refused_images = set()
        world.scripts = lambda node: ""
        world.unready = set()
        world.killed = lambda work: False
        world.settle(15, 4000.0)
        if world.state.cluster.status is ClusterStatus.FAILED:
            world.update()
        world.settle(15, 4000.0)
        world.settle(15, 1.0)
        for _ in range(400):  # a software update goes from batch to batch
            if not any(g.update and g.update.is_active for g in world.groups.values()):
                break
            world.step(3.0)
        world.settle(15, 3.0)

    def check_end(self) -> None:
        world = self.world
        alive = {machine.machine_id for machine in world.provider.alive}
        if world.state.cluster.status is ClusterStatus.DELETING:
            assert world.is_gone
            assert alive == set()
        else:
            assert world.state.cluster.status is ClusterStatus.IN_SERVICE
            assert not any(node.updating or node.checking for node in world.state.nodes.values())
            for group_ in world.groups.values():
                assert group_.update is None or not group_.update.is_active
                have = {node.revision for node in world.nodes(group_.name)}
                assert have <= {group_.software.revision}
                assert group_.status is GroupStatus.IN_SERVICE
                assert world.up(group_.name) == group_.target == len(world.nodes(group_.name))
            assert alive == {node.machine_id for node in world.state.nodes.values()}
            assert world.state.operations == {}
        self.check_bills(alive)

    def check_bills(self, alive: set[str]) -> None:
        """Every metered machine has begun; those that are gone have ended, and only those."""
        begun: dict[str, float] = {}
        ended: dict[str, float] = {}
        for bill in self.world.bills:
            times = ended if bill.ends else begun
            times.setdefault(bill.machine_id, bill.at)
        assert all(ended[m] >= begun[m] for m in set(begun) & set(ended))
        assert set(begun) - set(ended) == alive & set(begun)
        assert alive <= set(begun)


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=25),
    slurm=st.booleans(),
    in_service=st.booleans(),
    deaths=st.randoms(use_true_random=False),
    often=st.sampled_from([0.0, 0.2, 0.6]),
)
def test_it_converges(steps, slurm, in_service, deaths, often) -> None:  # type: ignore[no-untyped-def]
    story = Story(slurm)
    if in_service:
        story.world.settle(10)
    story.world.killed = lambda work: deaths.random() < often
    for step in steps:
        story.do(step)
    story.in_peace()
    story.check_end()


def test_the_check_of_two_machines_behind_a_name_can_fail() -> None:
    story = Story(slurm=False)
    story.world.settle(5)
    machine = story.world.provider.alive[0]
    story.world.provider.launch(LaunchRequest("another", machine.node))
    with pytest.raises(AssertionError, match="two machines"):
        story.check()
