"""Finding out why an attempt ended: Slurm's marks, the kernels of its nodes, their health."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hpresume.resume import inquiry
from hpresume.resume.attempt import AttemptEnd
from hpresume.resume.classify import Ending, classify
from hpresume.resume.detect import REFUSED_S
from hpresume.resume.evidence import look_once, unserved
from hpresume.resume.launch import Launch
from hpresume.resume.model import NodeFault, Sign, Verdict
from hpresume.resume.node_health import (
    doubts,
    is_due,
    may_be_a_nodes_fault,
    still_unhealthy,
)
from hpresume.resume.observe import Aftermath, mark_faults
from hpresume.resume.report import say
from hpresume.resume.signals import SignalPipe
from hpresume.slurm.models import ClusterConfig, Job, Node


class Inquest:
    """Verdicts on the attempts of one supervisor, and the nodes that they found unhealthy.

    ``pause`` waits for some seconds; what it raises when somebody asks to end is passed on.
    """

    def __init__(self, launch: Launch, signals: SignalPipe, pause: Callable[[float], None]) -> None:
        self._launch = launch
        self._signals = signals
        self._pause = pause
        self._unhealthy: dict[str, float] = {}

    def unhealthy(self, nodes: Mapping[str, Node]) -> frozenset[str]:
        """Nodes found unhealthy and not booted since."""
        return still_unhealthy(self._unhealthy, nodes)

    def verdict(self, end: AttemptEnd, after: Aftermath, nodes: Sequence[str]) -> Verdict:
        """Why an attempt on ``nodes`` ended.

        Where the application seems to be to blame, its nodes are asked and checked first.
        """
        base = end.baseline
        found = end.found
        if not end.stopped_for and not found:
            found = mark_faults(after.nodes or {}, nodes, base.nodes if base else {})
        unseen = not end.stopped_for and not found and base is None
        if unseen and after.job and after.nodes and after.config:
            found = look_once(after.job.nodes, after.nodes, after.config)
        ending = Ending(
            end.exit_code,
            end.started,
            end.ended,
            end.stopped_for,
            found,
            end.cancel_signal,
            base.step.time_limit_s if base else 0,
            after.job,
            after.answered,
            hang=end.hang,
            left=end.left,
            short_of_memory=end.short_of_memory,
            kills_stragglers=self._kills_stragglers(after.config),
        )
        verdict, job = classify(ending), ending.job
        if job is None or not may_be_a_nodes_fault(verdict, job):
            return verdict
        refusing = self._refusing(job, after, nodes)
        if refusing:
            return classify(replace(ending, faults=(*ending.faults, *refusing)))
        if is_due(verdict, self._launch.settings, job, self._launch.allocates):
            return self._with_health(ending, job, nodes, after.config)
        return verdict

    def _refusing(self, job: Job, after: Aftermath, nodes: Sequence[str]) -> tuple[NodeFault, ...]:
        """Nodes on which slurmd does not run, and is not just being restarted.

        srun cannot have launched there, and its exit code does not tell: 22.05 ends with
        that of the tasks that it then ends elsewhere.
        """
        if not after.nodes or after.config is None:
            return ()
        refusing = unserved(nodes, job.nodes, after.nodes, after.config)
        if not refusing:
            return ()
        self._pause(REFUSED_S)
        return unserved([f.node for f in refusing], job.nodes, after.nodes, after.config)

    def _with_health(
        self, ending: Ending, job: Job, nodes: Sequence[str], config: ClusterConfig | None
    ) -> Verdict:
        limit_s = self._launch.settings.health_check
        report = inquiry.examine(
            self._launch.call.path, job.job_id, nodes, self._launch.environ, self._signals,
            age_s=time.time() - ending.started,
            limit_s=limit_s,
            devices=bool(job.tres_gres and config and config.constrains_devices),
        )  # fmt: skip
        cancel = ending.cancel_signal or report.interrupted
        verdict = classify(replace(ending, findings=report.findings, cancel_signal=cancel))
        bad = [f.node for f in verdict.faults if f.sign is Sign.UNHEALTHY]
        self._unhealthy.update(dict.fromkeys(bad, time.time()))
        unknown = doubts(report, limit_s, bad)
        if unknown and not cancel:
            say(f"not known of the nodes' health: {unknown}")
        return verdict

    def _kills_stragglers(self, config: ClusterConfig | None) -> bool:
        """Whether srun kills the tasks that run on after the first one has ended."""
        wait_s = self._launch.wait_s
        return bool(config and config.wait_time_s) if wait_s is None else wait_s > 0
