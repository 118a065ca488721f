"""Asking the nodes themselves before an application is blamed, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from pytest_mock import MockerFixture

from hpresume.config import ResumeSettings
from hpresume.resume.attempt import AttemptEnd
from hpresume.resume.command import SrunCall
from hpresume.resume.inquest import Inquest
from hpresume.resume.journal import Past
from hpresume.resume.launch import Launch
from hpresume.resume.model import Cause, NodeFault, Sign
from hpresume.resume.observe import Aftermath
from hpresume.resume.signals import SignalPipe
from hpresume.slurm.models import ClusterConfig, Job, JobState, Node

CONFIG = ClusterConfig("c", (24, 11, 5), 300, 30, 6818, "", frozenset(), (), True)
FAULT = NodeFault("n2", Sign.UNHEALTHY, "runs no slurmd: its port: Connection refused")


@dataclass
class Site:
    """Two nodes: n1's slurmd listens, n2's only has its port."""

    second: socket.socket
    after: Aftermath
    inquest: Callable[[Callable[[float], None]], Inquest]


@pytest.fixture
def site(mocker: MockerFixture) -> Iterator[Site]:
    signals = mocker.create_autospec(SignalPipe, instance=True)
    settings = ResumeSettings(health_check=0)
    call = SrunCall("srun", ("srun", "train"), 1, plugin=False)
    launch = Launch(call, call, settings, {}, 7, Past(), 0, "k")
    with socket.create_server(("127.0.0.1", 0)) as first, socket.socket() as second:
        second.bind(("127.0.0.1", 0))
        here = frozenset({"ALLOCATED"})
        nodes = {
            name: Node(name, here, "127.0.0.1", name, sock.getsockname()[1])
            for name, sock in (("n1", first), ("n2", second))
        }
        job = Job(7, JobState.RUNNING, nodes=("n1", "n2"))
        after = Aftermath(True, job, nodes, (), CONFIG)
        yield Site(second, after, lambda pause: Inquest(launch, signals, pause))


def end(exit_code: int) -> AttemptEnd:
    return AttemptEnd(exit_code, 100.0, 160.0, 160.0, (), (), "", None)


def test_a_node_without_slurmd_is_to_blame(site: Site) -> None:
    paused: list[float] = []
    verdict = site.inquest(paused.append).verdict(end(7), site.after, ["n1", "n2"])
    assert (verdict.cause, verdict.faults) == (Cause.NODE_FAILURE, (FAULT,))
    assert len(paused) == 1  # a restart of slurmd had its time


def test_a_slurmd_that_is_being_restarted_is_not(site: Site) -> None:
    verdict = site.inquest(lambda _: site.second.listen()).verdict(end(7), site.after, ["n1", "n2"])
    assert (verdict.cause, verdict.faults) == (Cause.APPLICATION, ())


def test_nor_one_of_the_job_on_which_the_step_did_not_run(site: Site) -> None:
    verdict = site.inquest(pytest.fail).verdict(end(7), site.after, ["n1"])
    assert (verdict.cause, verdict.faults) == (Cause.APPLICATION, ())


def test_a_step_that_completed_asks_nobody(site: Site) -> None:
    verdict = site.inquest(pytest.fail).verdict(end(0), site.after, ["n1", "n2"])
    assert verdict.cause is Cause.COMPLETED
