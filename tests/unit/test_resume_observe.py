"""What is read from Slurm's records of an attempt. The gateway here is a stand-in."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

import pytest

from hpresume.errors import SlurmNotFoundError, SlurmTransientError
from hpresume.resume import observe
from hpresume.resume.model import Context, NodeFault, Sign
from hpresume.resume.observe import (
    Aftermath,
    Baseline,
    busy_nodes,
    context_of,
    find_step,
    mark_faults,
    orphaned_steps,
    take_aftermath,
    take_baseline,
)
from hpresume.slurm.models import ClusterConfig, Job, JobState, Node, Step

HOST = os.uname().nodename.split(".")[0]
CONFIG = ClusterConfig(
    "c", (24, 11, 5), 300, 30, 7000, "proctrack/linuxproc", frozenset(), (), True
)
JOB = Job(7, JobState.RUNNING, nodes=("n1", "n2", "n3"), batch=True, batch_host="n1")


def node(name: str, state: str = "ALLOCATED", **fields: object) -> Node:
    return Node(name, frozenset(state.split("+")), **fields)  # type: ignore[arg-type]


def step(step_id: str, nodes: str, name: str = "train", pid: int = 0, host: str = HOST) -> Step:
    return Step(
        7, step_id, "RUNNING", tuple(nodes.split()), name=name, srun_host=host, srun_pid=pid
    )


class FakeGateway:
    """Slurm as a few values; what is missing raises."""

    def __init__(self, jobs: Iterable[Job] = (), steps: Iterable[Step] = (), **fields: object):
        self.known = {job.job_id: job for job in jobs}
        self.all_steps = tuple(steps)
        self.fail = fields.get("fail", "")
        self.asked: list[str] = []

    def _note(self, call: str) -> None:
        self.asked.append(call)
        if call == self.fail:
            raise SlurmTransientError(f"{call}: slurmctld is away")

    def job(self, job_id: int) -> Job:
        self._note("job")
        if job_id not in self.known:
            raise SlurmNotFoundError("no such job")
        return self.known[job_id]

    def own_jobs(self) -> tuple[Job, ...]:
        self._note("own_jobs")
        return tuple(self.known.values())

    def steps(self, job_id: int) -> tuple[Step, ...]:
        self._note("steps")
        return tuple(s for s in self.all_steps if s.job_id == job_id)

    def nodes(self, names: Iterable[str]) -> dict[str, Node]:
        self._note("nodes")
        return {name: node(name) for name in names}

    def config(self) -> ClusterConfig:
        self._note("config")
        return CONFIG


# -- context -------------------------------------------------------------------------------

IN_JOB = {"SLURM_JOB_ID": "7"}
IN_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_TASK_PID": "99"}


@pytest.mark.parametrize(
    ("of", "environ", "context"),
    [
        (JOB, IN_SCRIPT, Context.BATCH),
        (JOB, IN_JOB, Context.ATTACHED),  # srun --jobid with the variable set by hand
        (JOB, {}, Context.ATTACHED),
        (JOB, {"SLURM_JOB_ID": "70", "SLURM_TASK_PID": "9"}, Context.ATTACHED),
        (replace(JOB, batch=False), IN_JOB, Context.ALLOCATION),
        (replace(JOB, batch=False), IN_SCRIPT, Context.ALLOCATION),
        (replace(JOB, batch=False), {}, Context.ATTACHED),
    ],
)
def test_context(of: Job, environ: dict[str, str], context: Context) -> None:
    assert context_of(of, environ) is context


# -- steps ---------------------------------------------------------------------------------

STEPS = (
    step("batch", "n1", "batch"),
    step("extern", "n1 n2 n3", "extern"),
    step("interactive", "n1", "interactive"),
    step("0", "n1 n2"),
    step("1", "n1 n2 n3", "hpresume-watch"),
    step("2", "n3 n4"),
)


def test_busy_nodes_are_those_of_other_steps_that_work() -> None:
    assert busy_nodes(STEPS, "0") == {"n3", "n4"}
    assert busy_nodes(STEPS, "2") == {"n1", "n2"}
    assert busy_nodes(STEPS, None) == {"n1", "n2", "n3", "n4"}
    assert busy_nodes((), "0") == frozenset()


@pytest.mark.parametrize(
    ("own", "dropped", "protected", "orphans"),
    [
        ("0", ("n3",), (), ("2",)),
        ("0", ("n3",), ("2",), ()),
        ("0", ("n2",), (), ()),
        ("2", ("n2", "n9"), (), ("0",)),
        (None, ("n1", "n4"), (), ("0", "2")),
        (None, (), (), ()),
    ],
)
def test_orphaned_steps(
    own: str | None, dropped: tuple[str, ...], protected: tuple[str, ...], orphans: tuple[str, ...]
) -> None:
    assert orphaned_steps(STEPS, own, dropped, protected) == orphans


def test_the_step_is_found_by_its_srun() -> None:
    mine, others = step("3", "n1", pid=42), step("4", "n1", pid=43)
    elsewhere = step("5", "n1", pid=42, host="elsewhere")
    gateway = FakeGateway(steps=[elsewhere, others, mine])
    assert find_step(gateway, 7, 42) == (7, mine, (elsewhere, others, mine))  # type: ignore[arg-type]
    assert find_step(gateway, 7, 44) is None  # type: ignore[arg-type]
    assert find_step(gateway, 8, 42) is None  # type: ignore[arg-type]


def test_a_step_that_waits_for_nodes_is_none_yet() -> None:
    waiting = step("TDB", "n1,n2,n3", pid=42)
    assert find_step(FakeGateway(steps=[waiting]), 7, 42) is None  # type: ignore[arg-type]


def test_the_host_may_have_a_domain_in_slurm() -> None:
    mine = step("3", "n1", pid=42, host=f"{HOST}.cluster.example")
    assert find_step(FakeGateway(steps=[mine]), 7, 42) is not None  # type: ignore[arg-type]


def test_srun_on_its_own_is_looked_for_in_all_jobs_with_nodes() -> None:
    waiting = Job(5, JobState.PENDING)
    mine = replace(step("0", "n1", pid=42), job_id=9)
    gateway = FakeGateway([waiting, JOB, Job(9, JobState.RUNNING, nodes=("n1",))], [mine])
    found = find_step(gateway, None, 42)  # type: ignore[arg-type]
    assert found == (9, mine, (mine,))
    assert gateway.asked == ["own_jobs", "steps", "steps"]


def test_baseline_of_a_step_that_is_not_there_yet() -> None:
    assert take_baseline(FakeGateway([JOB]), 7, 42, CONFIG) is None  # type: ignore[arg-type]


def test_baseline() -> None:
    mine, other = step("3", "n1 n2", pid=42), step("4", "n3", pid=43)
    gateway = FakeGateway([JOB], [mine, other])
    base = take_baseline(gateway, 7, 42, None)  # type: ignore[arg-type]
    assert base is not None
    assert (base.job, base.step, base.config) == (JOB, mine, CONFIG)
    assert set(base.nodes) == {"n1", "n2", "n3"}
    assert base.busy == {"n3"}
    gateway.asked.clear()
    take_baseline(gateway, 7, 42, CONFIG)  # type: ignore[arg-type]
    assert "config" not in gateway.asked  # asked once a supervisor, not once an attempt


# -- nodes ---------------------------------------------------------------------------------


def baseline(*nodes: Node, config: ClusterConfig = CONFIG) -> Baseline:
    return Baseline(JOB, step("0", "n1"), config, {n.name: n for n in nodes}, frozenset())


@pytest.mark.parametrize(
    ("of", "config", "target"),
    [
        (node("n1", address="10.0.0.1", hostname="h1", port=7001), CONFIG, ("10.0.0.1", 7001)),
        (node("n1", address="10.0.0.1"), CONFIG, ("10.0.0.1", 7000)),
        (node("n1", hostname="h1"), replace(CONFIG, slurmd_port=0), ("h1", 6818)),
        (node("n1"), CONFIG, ("n1", 7000)),
        (node("n2", address="10.0.0.2", port=7002), CONFIG, ("n1", 7000)),
    ],
)
def test_target(of: Node, config: ClusterConfig, target: tuple[str, int]) -> None:
    assert baseline(of, config=config).target("n1") == target


def test_names_are_looked_up_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"n1": "10.0.0.1", "n2": ""}
    monkeypatch.setattr(observe, "lookup", lambda name: known.get(name, ""))
    gateway = FakeGateway([JOB], [step("3", "n1 n2", pid=42)])
    base = take_baseline(gateway, 7, 42, CONFIG)  # type: ignore[arg-type]
    assert base is not None
    assert base.addresses == {"n1": "10.0.0.1"}
    assert base.target("n1") == ("10.0.0.1", 7000)
    assert base.target("n2") == ("n2", 7000)


def test_a_slow_name_server_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    asked = []

    def lookup(name: str) -> str:
        now[0] += 4.0
        asked.append(name)
        return ""

    monkeypatch.setattr(observe, "lookup", lookup)
    monkeypatch.setattr(observe.time, "monotonic", lambda: now[0])
    gateway = FakeGateway([JOB], [step("3", "n1 n2", pid=42)])
    assert take_baseline(gateway, 7, 42, CONFIG) is not None  # type: ignore[arg-type]
    assert asked == ["n1", "n2"]


def test_marks_that_were_there_before() -> None:
    base = baseline(
        node("n1"), node("n2", "IDLE+DRAIN"), node("n3", "MIXED+FAIL"), node("n4", "DOWN")
    )
    assert base.blemished == {"n2", "n3"}


@pytest.mark.parametrize(
    ("state", "known", "sign", "words"),
    [
        ("ALLOCATED", False, None, ""),
        ("ALLOCATED+NOT_RESPONDING", False, None, ""),
        ("DOWN+NOT_RESPONDING", False, Sign.DOWN, "is DOWN in Slurm (why)"),
        ("DOWN", True, Sign.DOWN, "is DOWN in Slurm (why)"),
        ("DOWN+DRAIN", False, Sign.DOWN, "is DOWN in Slurm (why)"),
        ("ALLOCATED+FAIL", False, Sign.FAIL, "was set to FAIL (why)"),
        ("FAILING+DRAIN", False, Sign.FAIL, "was set to FAIL (why)"),
        ("ALLOCATED+FAIL", True, None, ""),
        ("ALLOCATED+DRAIN", False, Sign.DRAIN, "was drained (why)"),
        ("ALLOCATED+DRAIN", True, None, ""),
    ],
)
def test_mark_faults(state: str, known: bool, sign: Sign | None, words: str) -> None:
    nodes = {"n1": node("n1", state, reason="why"), "n9": node("n9", "DOWN")}
    before = {"n1": node("n1", state if known else "ALLOCATED")}
    found = mark_faults(nodes, ["n1", "n2"], before)
    assert found == (() if sign is None else (NodeFault("n1", sign, words),))


def test_a_mark_without_a_reason() -> None:
    (fault,) = mark_faults({"n1": node("n1", "DOWN")}, ["n1"], {})
    assert fault.evidence == "is DOWN in Slurm"


@pytest.mark.parametrize(
    ("before", "after", "signs"),
    [
        ({"n1": node("n1", boot_time=100.0)}, 100.0, []),
        ({"n1": node("n1", boot_time=100.0)}, 102.0, []),
        ({"n1": node("n1", boot_time=100.0)}, 103.0, [Sign.REBOOTED]),
        ({"n1": node("n1", boot_time=100.0)}, 0.0, []),
        ({}, 103.0, []),
    ],
)
def test_a_boot_meanwhile(before: dict[str, Node], after: float, signs: list[Sign]) -> None:
    nodes = {"n1": node("n1", boot_time=after, slurmd_start_time=200.0)}
    assert [f.sign for f in mark_faults(nodes, ["n1"], before)] == signs


# -- afterwards --------------------------------------------------------------------------------


def test_aftermath() -> None:
    gateway = FakeGateway([JOB], STEPS)
    after = take_aftermath(gateway, 7, ["n3", "n8"], None)  # type: ignore[arg-type]
    assert (after.answered, after.job, after.steps, after.config) == (True, JOB, STEPS, CONFIG)
    assert after.nodes is not None
    assert set(after.nodes) == {"n1", "n2", "n3", "n8"}


@pytest.mark.parametrize("call", ["job", "steps", "config", "nodes"])
def test_aftermath_when_slurm_does_not_answer(call: str) -> None:
    gateway = FakeGateway([JOB], fail=call)
    after = take_aftermath(gateway, 7, [], None)  # type: ignore[arg-type]
    assert not after.answered
    assert after.job is None
    assert "slurmctld is away" in after.trouble


def test_aftermath_of_a_job_that_is_gone() -> None:
    after = take_aftermath(FakeGateway(), 7, ["n1"], CONFIG)  # type: ignore[arg-type]
    assert after == Aftermath(answered=True, config=CONFIG)


def test_aftermath_without_a_job() -> None:
    gateway = FakeGateway()
    assert take_aftermath(gateway, None, [], CONFIG).answered  # type: ignore[arg-type]
    assert gateway.asked == []


def test_unusable_nodes_are_those_of_the_job_on_which_nothing_starts() -> None:
    nodes = {
        n.name: n for n in (node("n1"), node("n2", "ALLOCATED+NOT_RESPONDING"), node("n9", "DOWN"))
    }
    assert Aftermath(True, JOB, nodes).unusable == {"n2"}
    assert Aftermath(True, None, nodes).unusable == frozenset()
    assert Aftermath(True, JOB, None).unusable == frozenset()


def test_unheard_nodes_have_no_other_blemish() -> None:
    states = {
        "n1": "ALLOCATED+NOT_RESPONDING",
        "n2": "ALLOCATED+DRAIN+NOT_RESPONDING",
        "n3": "UNKNOWN",
        "n9": "UNKNOWN",
    }
    nodes = {name: node(name, state) for name, state in states.items()}
    assert set(JOB.nodes) == {"n1", "n2", "n3"}
    assert Aftermath(True, JOB, nodes).unheard == {"n1", "n3"}
    assert Aftermath(True, JOB, nodes | {"n1": node("n1")}).unheard == {"n3"}
    assert Aftermath(True, JOB, None).unheard == frozenset()
