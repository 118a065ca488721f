"""The steps of a deep check: the profile on every node, the rounds of pairs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hpresume.errors import SlurmError, SlurmTimeoutError
from hpresume.health.checks.pair import NAME
from hpresume.health.deep import answers, nccl, tcp_pair
from hpresume.health.deep.matrix import Sample
from hpresume.health.deep.reach import SILENT_S, Silence
from hpresume.health.deep.tournament import Pair, rounds
from hpresume.health.model import AnyCheck, Result, Status, one_line
from hpresume.health.policy import PROFILES, CheckPolicy, Policy
from hpresume.health.registry import choose
from hpresume.slurm.gres import gres_count
from hpresume.slurm.holding import Holding
from hpresume.slurm.models import Node
from hpresume.slurm.runner import Answer

T = TypeVar("T")
R = TypeVar("R")

#: Steps at the same time: each is an srun on this host.
_AT_ONCE = 64

#: What Slurm may take to start a step, and a node to load Python from a shared file system.
LAUNCH_S = 30.0

#: A node that failed with so many partners is not tried with further ones.
_ENOUGH = 3

#: How often nodes at work are asked whether they are still there (slurmd logs every such
#: connection), and how often those that did not answer.
_PROBE_S, _PROBE_AGAIN_S = 10.0, 2.0
_FIRST = concurrent.futures.FIRST_COMPLETED

PYTHON = sys.executable

#: Under this name a node is Unknown whose checks gave no report.
PROFILE = "deep-profile"


@dataclass(frozen=True)
class Profile:
    """What runs on every node: the deep profile, with the caller's choice of checks."""

    policy: Policy
    policy_file: str | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    @property
    def checks(self) -> tuple[AnyCheck, ...]:
        """The checks of a single node."""
        return choose(self.policy, PROFILES[-1], self.only, (NAME, *self.skip))

    @property
    def argv(self) -> list[str]:
        """The command on a node."""
        argv = [PYTHON, "-m", "hpresume", "check", "--profile", PROFILES[-1], "--json"]
        for name in self.only:
            argv += ["--only", name]
        for name in (NAME, *self.skip):
            argv += ["--skip", name]
        return argv + (["--policy", self.policy_file] if self.policy_file else [])

    @property
    def limit_s(self) -> float:
        """The longest it takes: the checks that put load on the node run one after the other."""
        limits = [(each.load, self.policy.check(each.name).timeout_s) for each in self.checks]
        quick = max((seconds for load, seconds in limits if not load), default=0.0)
        return quick + sum(seconds + 2 for load, seconds in limits if load) + LAUNCH_S


def profiles(
    job: Holding, nodes: Iterable[Node], profile: Profile, port: int, done: Callable[[], None]
) -> dict[str, tuple[Result, ...]]:
    """The results of every node; one Unknown for a node that did not answer.

    ``port`` is that of a slurmd whose own is not known.
    """
    found: dict[str, tuple[Result, ...]] = {}
    silence = Silence(port)
    with _pool() as pool:
        waiting = {pool.submit(_profile, job, node.name, profile): node for node in nodes}
        probe_at = time.monotonic() + _PROBE_S
        while waiting:
            left_s = max(probe_at - time.monotonic(), 0)
            ended, _ = concurrent.futures.wait(waiting, left_s, _FIRST)
            for future in ended:
                found[waiting.pop(future).name] = future.result()
                done()
            if time.monotonic() < probe_at:
                continue
            for name in silence.lost(waiting.values(), time.monotonic()):
                text = f"the node was lost during its checks: silent for {SILENT_S:g} s"
                found[name] = (Result(PROFILE, Status.UNKNOWN, text),)
                waiting = {future: node for future, node in waiting.items() if node.name != name}
                done()
            probe_at = time.monotonic() + (_PROBE_AGAIN_S if silence.since else _PROBE_S)
    return found


def _profile(job: Holding, node: str, profile: Profile) -> tuple[Result, ...]:
    answer = _step(job, [node], profile.argv, profile.limit_s)
    if isinstance(answer, str):
        return (Result(PROFILE, Status.UNKNOWN, answer),)
    found = answers.results(answer.stdout)
    if found is None:
        why = f"code {answer.returncode}: {answers.reason(answer)}"
        return (Result(PROFILE, Status.UNKNOWN, why),)
    return found


def pair_limit_s(policy: CheckPolicy) -> float:
    """The longest that one pair takes with one tool."""
    return 2 * policy.number("seconds") + policy.number("patience_s") + LAUNCH_S


def pair_rounds(nodes: Sequence[Node], policy: CheckPolicy) -> tuple[tuple[Pair, ...], ...]:
    """The rounds to be run."""
    return rounds([node.name for node in nodes], int(policy.number("rounds")))


class PairTest:
    """Tests pairs with NCCL where the nodes have it, else over TCP."""

    def __init__(self, job: Holding, nodes: Iterable[Node], policy: CheckPolicy) -> None:
        self._job = job
        self._nodes: Mapping[str, Node] = {node.name: node for node in nodes}
        self._policy = policy
        self._no_nccl: set[str] = set()

    def run(self, schedule: Iterable[tuple[Pair, ...]], done: Callable[[], None]) -> list[Sample]:
        """Round by round, the pairs of a round at the same time."""
        samples: list[Sample] = []
        for pairs in schedule:
            lost = _lost(samples)
            left = [pair for pair in pairs if not lost & set(pair)]
            found = _side_by_side(self.one, left)
            samples += [found[pair] for pair in left]
            done()
        return samples

    def one(self, pair: Pair) -> Sample:
        """One pair, by the better tool."""
        nodes = [self._nodes[name] for name in pair]
        gpus = min(gres_count(node.gres, "gpu") for node in nodes)
        if gpus and not self._no_nccl & set(pair):
            argv = nccl.arguments(gpus, int(self._policy.number("nccl_mib")))
            answer = _step(self._job, pair, argv, pair_limit_s(self._policy))
            if isinstance(answer, str):
                return Sample(pair, "nccl", error=answer)
            found = nccl.sample(pair, (nodes[0].hostname, nodes[1].hostname), answer)
            if found is not None:
                return found
            self._no_nccl |= set(pair)
        return self._tcp(pair)

    def _tcp(self, pair: Pair) -> Sample:
        number = self._policy.number
        listener = self._nodes[pair[0]]
        argv = [PYTHON, "-I", "-S", tcp_pair.__file__, listener.name, listener.address]
        limit_s = 2 * number("seconds") + number("patience_s")
        argv += [f"{number('port'):.0f}", f"{number('seconds'):g}", f"{limit_s:g}"]
        answer = _step(self._job, pair, argv, pair_limit_s(self._policy))
        if isinstance(answer, str):
            return Sample(pair, "tcp", error=answer)
        found = answers.sample(pair, answer.stdout)
        return answers.without_result(pair, "tcp", answer) if found is None else found


def _lost(samples: Iterable[Sample]) -> set[str]:
    """Nodes that could talk to nobody so far, with enough partners."""
    tried: dict[str, list[bool]] = {}
    for sample in samples:
        for node in sample.pair:
            tried.setdefault(node, []).append(bool(sample.error))
    return {node for node, errors in tried.items() if len(errors) >= _ENOUGH and all(errors)}


def _step(job: Holding, nodes: Sequence[str], argv: Sequence[str], limit_s: float) -> Answer | str:
    """The answer of a step, or why there is none."""
    try:
        return job.step(nodes, argv, limit_s)
    except SlurmTimeoutError:
        return f"no answer within {limit_s:g} s"
    except SlurmError as error:
        return one_line(str(error), 160)


def _side_by_side(call: Callable[[T], R], items: Iterable[T]) -> dict[T, R]:
    """``call`` for all items, in threads."""
    with _pool() as pool:
        waiting = {item: pool.submit(call, item) for item in items}
        return {item: future.result() for item, future in waiting.items()}


@contextlib.contextmanager
def _pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Threads that are not waited for after an interruption.

    The caller ends the job then, and with it every step that still runs.
    """
    pool = concurrent.futures.ThreadPoolExecutor(_AT_ONCE)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
