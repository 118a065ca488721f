"""The work that a plan asks for, one call each; what it brings is an outcome.

Every call is bounded in time by the provider, by Slurm's tools or by the scripts' own limit, and
doing it twice is the same as doing it once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from hpresume.errors import HpresumeError, ProviderError
from hpresume.providers.model import LaunchRequest, Provider
from hpresume.provision import outcomes
from hpresume.provision.model import Leave, Node, State
from hpresume.provision.observed import Task
from hpresume.provision.outcomes import Outcome
from hpresume.provision.ports import Scripts, SlurmSide

_log = logging.getLogger(__name__)

#: Never passed over in silence: a node without its scripts is not what was asked for.
NO_SCRIPTS = "this controller has no way to run programs on machines (run_on)"

#: The reason on nodes that leave Slurm, or whose machine is changed.
LEAVING = "hpresume: the node is being removed"
CHANGING = "hpresume: the instance is being replaced"
REBOOTING = "hpresume: the instance is being rebooted"
UPDATING = "hpresume: the software of the node is being updated"

#: The reason on nodes that get no job yet; joining takes it away.
PREPARING = "hpresume: the lifecycle scripts run"

Job = Callable[[State, SlurmSide | None, Node], Outcome]


class Jobs:
    """The job of each task, with one provider and one way to run scripts."""

    def __init__(
        self,
        provider: Provider,
        scripts: Scripts | None,
        attributes: Callable[[State, Node], Mapping[str, str]],
    ) -> None:
        self._provider = provider
        self._scripts = scripts
        self._attributes = attributes
        self._by_task: dict[Task, Job] = {
            Task.LAUNCH: self._launch,
            Task.VERIFY: self._verify,
            Task.INSPECT: self._inspect,
            Task.SCRIPTS: self._run_scripts,
            Task.REBOOT: self._reboot,
            Task.TERMINATE: self._terminate,
            Task.DRAIN: self._drain,
            Task.RESUME: self._resume,
        }

    def of(self, task: Task) -> Job:
        """The job; it raises HpresumeError where what it asked for has to be asked again."""
        return self._by_task[task]

    def _launch(self, state: State, _side: SlurmSide | None, node: Node) -> Outcome:
        group = state.groups[node.group]
        try:
            machine = self._provider.launch(
                LaunchRequest(
                    token=node.token,
                    node=node.name,
                    instance_type=group.instance_type,
                    group=group.name,
                    address=node.address,
                    image=node.image,
                    attributes=self._attributes(state, node),
                )
            )
        except ProviderError as error:
            return outcomes.launch_failed(node, error)
        return outcomes.launched(node, machine)

    def _verify(self, _state: State, _side: SlurmSide | None, node: Node) -> Outcome:
        return outcomes.verified(node, self._provider.describe(node.machine_id))

    def _run_scripts(self, state: State, side: SlurmSide | None, node: Node) -> Outcome:
        if side is not None and node.in_slurm:
            # Its slurmd may be there before the scripts have ended, or before they begin.
            side.drain(node.name, PREPARING)
        problem = NO_SCRIPTS if self._scripts is None else self._scripts.run(state, node)
        return outcomes.scripts_ended(node, problem)

    def _inspect(self, state: State, _side: SlurmSide | None, node: Node) -> Outcome:
        shape = "" if self._scripts is None else self._scripts.inspect(state, node)
        return outcomes.inspected(node, shape)

    def _reboot(self, _state: State, side: SlurmSide | None, node: Node) -> Outcome:
        try:
            if side is not None and node.in_slurm:
                side.down(node.name, REBOOTING)
            self._provider.reboot(node.machine_id)
        except HpresumeError as error:
            return outcomes.rebooted(node, error)
        return outcomes.rebooted(node, None)

    def _terminate(self, _state: State, side: SlurmSide | None, node: Node) -> Outcome:
        if side is not None and node.in_slurm and node.leave in (Leave.REPLACE, Leave.UPDATE):
            # Its jobs end now, not when Slurm has missed the machine for SlurmdTimeout. Where Slurm
            # does not answer, that is what happens.
            try:
                side.down(node.name, CHANGING)
            except HpresumeError as error:
                _log.warning("slurm: %s: %s", node.name, error)
        try:
            self._provider.terminate(node.machine_id)
        except ProviderError as error:
            return outcomes.terminated(node, error)
        return outcomes.terminated(node, None)

    def _drain(self, _state: State, side: SlurmSide | None, node: Node) -> Outcome:
        if side is not None:
            side.drain(node.name, UPDATING if node.leave is Leave.UPDATE else LEAVING)
        return outcomes.look_again(node)

    def _resume(self, _state: State, side: SlurmSide | None, node: Node) -> Outcome:
        if side is not None:
            side.resume(node.name)
        return outcomes.resumed(node)
