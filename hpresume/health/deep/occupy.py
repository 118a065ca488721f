"""Taking nodes for a deep check, and giving them back whatever happens.

A reservation of the nodes comes first, then the feature, then a job; they go in
the opposite order. A run that is killed leaves them behind under a name that
says whose they were, and the next run removes them. A lock that dies with its
process tells a run that is alive from one that is not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hpresume.errors import HpresumeError, SlurmDeniedError, SlurmError, UsageError
from hpresume.health.deep import choice
from hpresume.slurm import holding, nodeset, reservations
from hpresume.slurm.gateway import SlurmGateway
from hpresume.slurm.models import Node
from hpresume.slurm.runner import Runner

#: Reservations and jobs of deep checks: PREFIX-HOST-PID.
PREFIX = "hpresume-deep"

#: Jobs that run there go on; new ones do not start.
_FLAG = "IGNORE_JOBS"

_POLL_S = 0.5

#: What the last task on a node may take to die, and slurmctld to see it.
_RELEASE_S = 45.0

#: What living nodes take to end the tasks of a job that was cancelled.
_COMPLETING_S = 8.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Slurm:
    """How this run reaches Slurm."""

    gateway: SlurmGateway
    runner: Runner


@dataclass(frozen=True)
class Taken:
    """The nodes that are ours now, in a running job, and those that are not.

    ``trouble`` says in the end what could not be given back.
    """

    nodes: tuple[Node, ...]
    left_out: tuple[tuple[str, str], ...]
    job: holding.Holding
    trouble: list[str] = field(default_factory=list)


@contextlib.contextmanager
def only_run(cluster: str) -> Iterator[None]:
    """Raises UsageError while another deep check of the cluster runs on this host."""
    # An abstract name: no file to be left behind, and gone with its process.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        try:
            lock.bind(f"\0{PREFIX}-{cluster}")
        except OSError:
            raise UsageError("a deep check runs on this host already: wait for it") from None
        yield


def clean_up(slurm: Slurm, say: Say) -> None:
    """Remove what runs on this host left behind when they were killed. Needs the lock."""
    kept: list[str] = []
    for name, found in reservations.reservations(slurm.runner).items():
        if name.startswith(f"{PREFIX}-{_host()}-"):
            say(f"removing what an interrupted run left behind: {name}")
            _give_back(slurm, name, found.nodes)
        elif name.startswith(f"{PREFIX}-"):
            kept += found.nodes
    _cancel(slurm.gateway, lambda name: name.startswith(f"{PREFIX}-{_host()}-"))
    nodes = slurm.gateway.nodes()
    _without_feature(slurm.gateway, [nodes[name] for name in choice.stale(nodes, kept)])


@contextlib.contextmanager
def taken(
    slurm: Slurm, names: Iterable[str], wait_s: float, run_s: float, say: Say
) -> Iterator[Taken]:
    """The nodes among ``names`` that are idle, or become so within ``wait_s``.

    While this waits, no new job starts on a busy one. ``run_s`` is the longest
    that the caller needs them. Raises HpresumeError where there is none, UsageError where
    Slurm does not know one.
    """
    known, names = slurm.gateway.nodes(), tuple(names)
    if missing := [name for name in names if name not in known]:
        raise UsageError(f"Slurm knows no node {nodeset.fold(missing)}: nothing is checked")
    found = {name: known[name] for name in names}
    minutes = int((wait_s + run_s + _RELEASE_S) / 60) + 2
    others = reservations.reservations(slurm.runner).values()
    first = choice.choose(found.values(), choice.reserved(others, time.time() + 60 * minutes))
    wanted = (*first.free, *first.busy) if wait_s else first.free
    left_out = list(first.left_out)
    if not wait_s:
        left_out += [(name, _busy(found[name])) for name in first.busy]
    if not wanted:
        raise SlurmError("no node can be checked: " + said(left_out))
    name = f"{PREFIX}-{_host()}-{os.getpid()}"
    featured: list[str] = []
    trouble: list[str] = []
    try:
        _reserve(slurm, name, wanted, minutes)
        idle, busy = _wait_idle(slurm.gateway, wanted, wait_s, say)
        left_out += [(node.name, _busy(node)) for node in busy]
        if not idle:
            raise SlurmError("no node can be checked: " + said(left_out))
        if busy:
            reservations.narrow(slurm.runner, name, [node.name for node in idle])
        for node in idle:
            featured.append(node.name)
            slurm.gateway.update_node(node.name, **choice.with_feature(node))
        job = holding.hold(
            slurm.runner,
            name,
            name,
            [node.name for node in idle],
            choice.common_partition(idle),
            minutes,
        )
        yield Taken(idle, tuple(left_out), job, trouble)
    finally:
        try:
            with _undisturbed():
                _give_back(slurm, name, featured)
        except HpresumeError as error:
            # What was found is still worth telling.
            trouble.append(f"{name} is not removed yet, the next run does it: {error}")
            say(trouble[0])


def said(left_out: Iterable[tuple[str, str]]) -> str:
    """The nodes that are left alone, and why, in one line."""
    return ", ".join(f"{name} ({why})" for name, why in left_out)


def _busy(node: Node) -> str:
    return f"it is {choice.shown(node)}, and left to its jobs"


def _reserve(slurm: Slurm, name: str, nodes: Iterable[str], minutes: int) -> None:
    try:
        reservations.reserve(slurm.runner, name, nodes, reservations.own_name(), minutes, _FLAG)
    except SlurmDeniedError as error:
        raise SlurmDeniedError(f"a deep check needs root or SlurmUser: {error}") from error


def _wait_idle(
    gateway: SlurmGateway, names: Iterable[str], wait_s: float, say: Say
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Idle and busy nodes at the end of the wait; a job may have come before the reservation."""
    deadline = time.monotonic() + wait_s
    wanted, waited_for = tuple(names), ""
    while True:
        nodes = gateway.nodes(wanted).values()
        idle = tuple(node for node in nodes if choice.is_idle(node))
        busy = tuple(node for node in nodes if not choice.is_idle(node))
        if not busy or time.monotonic() >= deadline:
            return idle, busy
        if waited_for != (waited_for := ", ".join(node.name for node in busy)):
            say(f"waiting for {waited_for} to become idle")
        time.sleep(_POLL_S)


def _give_back(slurm: Slurm, name: str, nodes: Iterable[str]) -> None:
    """Job, features, reservation; each is tried whatever became of the one before."""
    with contextlib.ExitStack() as stack:
        stack.callback(reservations.release, slurm.runner, name, _RELEASE_S)
        stack.callback(lambda: _clear_features(slurm.gateway, nodes))
        stack.callback(_cancel, slurm.gateway, lambda job: job == name)


def _cancel(gateway: SlurmGateway, is_ours: Callable[[str], bool]) -> None:
    """End our jobs; their nodes are free a moment later, but for one that is dead."""
    ours = [job.job_id for job in gateway.own_jobs() if is_ours(job.name)]
    for job_id in ours:
        gateway.cancel(job_id)
    deadline = time.monotonic() + _COMPLETING_S
    with contextlib.suppress(SlurmError):  # gone
        while any(gateway.job(job_id).is_completing for job_id in ours):
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)


def _clear_features(gateway: SlurmGateway, names: Iterable[str]) -> None:
    nodes = gateway.nodes()
    _without_feature(gateway, [nodes[name] for name in names if name in nodes])


def _without_feature(gateway: SlurmGateway, nodes: Iterable[Node]) -> None:
    errors: list[HpresumeError] = []
    for node in nodes:
        fields = choice.without_feature(node)
        try:
            if fields is not None:
                gateway.update_node(node.name, **fields)
        except HpresumeError as error:
            errors.append(error)
    if errors:
        raise errors[0]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not keep the nodes from being given back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _host() -> str:
    return os.uname().nodename.partition(".")[0]
