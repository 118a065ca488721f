"""A deep check from beginning to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from hpresume.errors import HpresumeError
from hpresume.health import mark
from hpresume.health.checks.pair import NAME
from hpresume.health.deep import matrix, steps
from hpresume.health.deep.occupy import Say, Slurm, clean_up, only_run, taken
from hpresume.health.deep.report import NodeReport, Report, pair_result
from hpresume.health.deep.steps import PairTest, Profile
from hpresume.health.model import Result
from hpresume.slurm.models import Node


class Progress(Protocol):
    """Shows how far it is."""

    def phase(self, name: str, total: int) -> Callable[[], None]:
        """A new phase of so many pieces; what is returned is called after each."""
        ...

    def say(self, line: str) -> None:
        """Something happened."""
        ...


@dataclass(frozen=True)
class Request:
    """What to check."""

    nodes: tuple[str, ...]
    profile: Profile
    wait_s: float = 0.0
    mark: bool = True


def deep_check(slurm: Slurm, request: Request, progress: Progress) -> Report:
    """Check the nodes that are idle, mark what is bad, give all of them back.

    Raises HpresumeError where none could be checked.
    """
    policy = request.profile.policy.check(NAME)
    with_pairs = policy.enabled and NAME not in request.profile.skip
    rounds = min(len(request.nodes), int(policy.number("rounds") or len(request.nodes)))
    # Each pair may need both tools, and slow ones are tested twice.
    run_s = request.profile.limit_s + 3 * rounds * steps.pair_limit_s(policy)
    config = slurm.gateway.config()
    with only_run(config.cluster_name):
        clean_up(slurm, progress.say)
        with taken(slurm, request.nodes, request.wait_s, run_s, progress.say) as held:
            names = [node.name for node in held.nodes]
            results: dict[str, tuple[Result, ...]] = dict.fromkeys(names, ())
            if request.profile.checks:
                done = progress.phase("deep profile", len(names))
                results = steps.profiles(
                    held.job, held.nodes, request.profile, config.slurmd_port, done
                )
            pairs: tuple[matrix.PairResult, ...] = ()
            finding = matrix.Finding()
            if with_pairs:
                schedule = steps.pair_rounds(held.nodes, policy)
                done = progress.phase("rounds of pairs", len(schedule))
                test = PairTest(held.job, held.nodes, policy)
                samples = test.run(schedule, done)
                pairs = matrix.judge(samples, policy)
                if repeated := matrix.again(schedule, pairs):
                    done = progress.phase("rounds of slow pairs again", len(repeated))
                    samples = matrix.confirmed(samples, test.run(repeated, done))
                    pairs = matrix.judge(samples, policy)
                finding = matrix.find(pairs, policy)
                for name in names:
                    results[name] += (pair_result(name, pairs, finding, policy),)
            # Before the nodes are given back: no job shall start on a bad one.
            marks = _marks(slurm, held.nodes, results, progress.say) if request.mark else {}
            reports = [NodeReport(name, results[name], marks.get(name, "")) for name in names]
    return Report(tuple(reports), held.left_out, pairs, finding, tuple(held.trouble))


def _marks(
    slurm: Slurm, nodes: Iterable[Node], results: dict[str, tuple[Result, ...]], say: Say
) -> dict[str, str]:
    """Mark the nodes that are bad, by the rules of ``hpresume.health.mark``."""
    marks = {}
    for name in [node.name for node in nodes]:
        try:
            node = slurm.gateway.nodes([name])[name]
            action = mark.decide(node, results[name])
            mark.execute(action, name, slurm.gateway)
        except HpresumeError as error:
            marks[name] = f"mark: {name} cannot be marked: {error}"
            continue
        if isinstance(action, mark.SetNode):
            marks[name] = f"mark: {name} set {action.state}: {action.reason}"
            say(marks[name])
        elif _would_act(results[name]):
            marks[name] = f"mark: {name} left alone: {getattr(action, 'why', '')}"
    return marks


def _would_act(results: Iterable[Result]) -> bool:
    return any(result.hold or result.action.weight for result in results)
