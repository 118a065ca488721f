"""Which backend answers, and how pyslurm's objects become our views."""

import sys
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hpresume.errors import MissingDependencyError, SlurmNotFoundError, UsageError
from hpresume.slurm import select
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.models import ClusterConfig, Job, JobState
from hpresume.slurm.pyslurm_backend import PyslurmGateway


class RPCError(Exception):
    pass


def loader(*answers: Any) -> SimpleNamespace:
    """A class of pyslurm with a ``load`` that gives or raises ``answers`` in turn."""
    left = list(answers)

    def load(*_: Any) -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(load=load)


class FakeCli(CliGateway):
    def job(self, job_id: int) -> Job:
        return Job(job_id=job_id, state=JobState.OTHER, name="from the tools")

    def nodes(self, names: Any = None) -> Any:
        raise SlurmNotFoundError("Slurm knows no node n9")

    def steps(self, job_id: int) -> Any:
        raise SlurmNotFoundError("Invalid job id specified")


def gateway(**classes: Any) -> PyslurmGateway:
    return PyslurmGateway(SimpleNamespace(RPCError=RPCError, **classes), FakeCli())


def node(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "name": "n1",
        "state": "ALLOCATED+DRAIN",
        "allocated_cpus": 2,
        "effective_cpus": 4,
        "total_cpus": 4,
        "real_memory": 2000,
        "address": "10.0.0.1",
        "hostname": "n1",
        "slurmd_port": 6818,
        "reason": None,
        "reason_user": None,
        "reason_time": None,
        "boot_time": 100,
        "slurmd_start_time": 200,
        "configured_gres": {"gpu:a100": 4},
        "partitions": ["main"],
        "active_features": [],
        "available_features": ["a100"],
        "comment": None,
    }
    return SimpleNamespace(**(values | changes))


def job(**changes: Any) -> SimpleNamespace:
    layout = {
        "n1": {"cpu_ids": "0-3", "gres": {"gpu:a100": {"count": "4", "indexes": "0-3"}}},
        "n3": {"cpu_ids": "0,2", "gres": {"gpu:a100": {"count": "4", "indexes": "0-3"}}},
    }
    values: dict[str, Any] = {
        "id": 1,
        "array_id": None,
        "state": "RUNNING",
        "name": "x",
        "user_id": 4242,
        "account": None,
        "partition": "main",
        "qos": None,
        "reservation": None,
        "constraints": ["a|b"],
        "allocated_nodes": "n[1,3]",
        "num_nodes": 2,
        "cpus": 6,
        "ntasks": 2,
        "memory_per_node": None,
        "memory_per_cpu": 100,
        "required_nodes": None,
        "excluded_nodes": "n2",
        "is_batch_job": True,
        "batch_host": "n1",
        "submit_host": "login",
        "is_requeueable": True,
        "requeue_count": 0,
        "start_time": 100,
        "end_time": 31536100,
        "time_limit": None,
        "resource_sharing": "NO",
        "working_directory": "/home/t",
        "state_reason": "None",
        "resize_time": None,
        "get_resource_layout_per_node": lambda: layout,
    }
    return SimpleNamespace(**(values | changes))


def test_a_node() -> None:
    (read,) = gateway(Nodes=loader({"n1": node()})).nodes().values()
    assert read.states == {"MIXED", "DRAIN"}
    assert (read.port, read.gres, read.boot_time) == (6818, "gpu:a100:4", 100.0)


def test_a_job() -> None:
    read = gateway(Job=loader(job())).job(1)
    assert read.nodes == ("n1", "n3")
    assert read.tres_gres == {"gres/gpu": 8}
    assert read.cpus_by_node == {"n1": 4, "n3": 2}
    assert (read.end_time, read.exclusive, read.excluded_nodes) == (0.0, True, ("n2",))
    assert (read.reason, read.alloc_sid) == ("", 0)


def test_names_that_pyslurm_split_at_their_commas() -> None:
    assert gateway(Job=loader(job(allocated_nodes=["n[1", "3]"]))).job(1).nodes == ("n1", "n3")


@pytest.mark.parametrize(
    "answer",
    [
        job(state="COMPLETING"),
        job(array_id=1),
        job(state="PENDING", allocated_nodes=None),
        job(allocated_nodes="n["),
        SimpleNamespace(state="RUNNING"),
        RPCError("Unable to contact slurm controller (connect failure)"),
    ],
    ids=["hidden state", "array", "waits", "unreadable", "other release", "no controller"],
)
def test_where_pyslurm_has_no_answer_the_tools_are_asked(answer: Any) -> None:
    assert gateway(Job=loader(answer)).job(1).name == "from the tools"


def test_unknown_to_pyslurm() -> None:
    unknown = RPCError("Invalid job id specified")
    with pytest.raises(SlurmNotFoundError, match="Invalid job id"):
        gateway(Job=loader(unknown)).job(1)
    assert gateway(JobSteps=loader(unknown)).steps(1) == ()
    with pytest.raises(SlurmNotFoundError, match="n9"):
        gateway(Nodes=loader({"n1": node()})).nodes(["n9"])


# --- the choice -----------------------------------------------------------------


@pytest.fixture
def slurm_22_05(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ClusterConfig("lab", (22, 5, 8), 300, 30, 6818, "", frozenset(), (), True)
    monkeypatch.setattr(CliGateway, "config", lambda self: config)


def install(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", installed)
    monkeypatch.setitem(sys.modules, "pyslurm", ModuleType("pyslurm"))


@pytest.mark.parametrize("prefer", [None, "cli"])
def test_the_tools_are_chosen_without_a_look_at_slurm(prefer: str | None) -> None:
    assert isinstance(select.open_gateway(prefer), CliGateway)


@pytest.mark.usefixtures("slurm_22_05")
@pytest.mark.parametrize(
    ("version", "kind"),
    [("22.5.3", PyslurmGateway), ("25.11.2", CliGateway), (None, CliGateway)],
)
def test_auto(monkeypatch: pytest.MonkeyPatch, version: str | None, kind: type) -> None:
    install(monkeypatch, version)
    assert type(select.open_gateway("auto")) is kind


@pytest.mark.usefixtures("slurm_22_05")
@pytest.mark.parametrize(
    ("version", "words"),
    [("25.11.2", r"does not fit Slurm 22\.5"), (None, "not installed")],
)
def test_pyslurm_where_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, version: str | None, words: str
) -> None:
    install(monkeypatch, version)
    with pytest.raises(MissingDependencyError, match=words):
        select.open_gateway("pyslurm")


def test_an_unknown_backend() -> None:
    with pytest.raises(UsageError, match="auto, cli, pyslurm"):
        select.open_gateway("rest")
