"""The Slurm whose slurm.conf this host has: entries are merged in, checked, and applied.

What a change of nodes needs differs [ran on 22.05.8; 24.11's manual]: until 23.11
slurmctld ends with a fatal error when ``scontrol reconfigure`` meets a set of nodes that is not
the one it started with, so it is restarted first (jobs go on), and reconfigure then tells the
slurmds. From 23.11, reconfigure does it all and keeps the old configuration if the new
one is no good. With configless slurmds the same reconfigure brings them the file.

Checks before use, on every version: Slurm's own parser (``scontrol -Q`` reads the file
named by SLURM_CONF and contacts nobody), and the two mistakes that only slurmctld finds, and
ends over (``slurm_conf.problems``).

A process can be killed between the new file and slurmctld's restart. Any ``scontrol reconfigure``
then (also one that outlived the process) ends slurmctld, and nobody else would start it again: a
mark beside slurm.conf, there until a change is applied, tells the next process that it is ours to
do. Without the mark a slurmctld that does not answer is somebody else's and left alone.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from hpresume.errors import SlurmError, SlurmToolError, SlurmTransientError
from hpresume.provision.conf_files import Installed, Mark, install, read
from hpresume.provision.observed import SlurmNode
from hpresume.provision.ports import SlurmEntries
from hpresume.provision.slurm_conf import (
    edit_gres_conf,
    edit_slurm_conf,
    includes,
    node_names,
    owner,
    problems,
)
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.models import Node
from hpresume.slurm.runner import Runner

_log = logging.getLogger(__name__)

#: From this release, ``scontrol reconfigure`` takes nodes in and out.
RECONFIGURES_NODES = (23, 11)

#: A node counts as ready when its slurmd has answered for so long (s): the first step of all
#: loses its output where slurmd registers once more while it is launched, which it
#: does a second after a reconfigure [ran, 22.05: "missing job step"].
SETTLE_S = 3.0

#: How the reasons begin that are set here; nobody else's are ever cleared.
REASON = "hpresume: "

#: How those begin that are orders for node recovery.
_ORDER = "Action:"

#: Beside slurm.conf while a change of it is not known to be applied.
UNAPPLIED = ".hpresume-unapplied"

_CALL_S = 30.0
_READ_S = 15.0
_RESTART_S = 60.0

#: States of a node in which slurmd has not been heard of, or no job can start.
_NOT_READY = ("DOWN", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "INVAL", "INVALID_REG", "ERROR")
_WITH_JOBS = ("ALLOCATED", "MIXED", "COMPLETING")


class LocalSlurm:
    """``SlurmSide`` for the slurm.conf at ``conf``, with gres.conf beside it.

    ``restart`` restarts slurmctld and returns when it was started; it is needed before Slurm 23.11.
    """

    def __init__(
        self,
        conf: Path,
        runner: Runner | None = None,
        restart: Callable[[], None] | None = None,
    ) -> None:
        self._conf = conf
        self._gres = conf.with_name("gres.conf")
        self._runner = runner or Runner()
        self._restart = restart
        self._gateway = CliGateway(self._runner, read_timeout_s=_READ_S, write_timeout_s=_CALL_S)
        self._version: tuple[int, int] | None = None
        #: There while Slurm may not use what is installed.
        self._unapplied = Mark(conf.with_name(conf.name + UNAPPLIED))
        #: Since when each slurmd (by node and its own start) answers.
        self._ready_since: dict[tuple[str, float], float] = {}

    def configure(self, entries: SlurmEntries) -> None:
        """Merge the entries into slurm.conf and gres.conf, and make Slurm use them.

        Raises SlurmError; what was installed is then taken back.
        """
        known = self._known()
        changes_nodes = _changes_nodes(read(self._conf), entries, known)
        if changes_nodes and not self._reconfigures_nodes() and self._restart is None:
            raise SlurmError(
                "this release of Slurm takes nodes in only when slurmctld starts: set the command "
                "that restarts it"
            )
        done: list[Installed] = []
        told = False
        was_applied = not self._unapplied.is_set
        self._unapplied.set()
        try:
            gres = install(self._gres, lambda text: edit_gres_conf(text, entries), _unchecked)
            done += [gres] if gres else []
            conf = install(self._conf, lambda text: edit_slurm_conf(text, entries), self._check)
            done += [conf] if conf else []
            if done or changes_nodes or not was_applied or _moved(known, entries):
                told = True
                self._apply(changes_nodes)
        except SlurmError:
            # Where Slurm was told of nothing, it has what is put back: a restart over a file
            # that an administrator has broken would only end slurmctld.
            if _undone(done) and (
                self._is_put_back(changes_nodes) if done and told else was_applied
            ):
                with suppress(SlurmError):  # the first error is the one to tell
                    self._unapplied.clear()
            raise
        self._unapplied.clear()

    def look(self) -> Mapping[str, SlurmNode]:
        """Every node as Slurm has it."""
        now = time.monotonic()
        known = self._gateway.nodes()
        since = {
            name: self._ready_since.get((name, node.slurmd_start_time), now)
            for name, node in known.items()
            if _answers(node)
        }
        self._ready_since = {(n, known[n].slurmd_start_time): at for n, at in since.items()}
        return {
            name: _seen(node, is_settled=name in since and now - since[name] >= SETTLE_S)
            for name, node in known.items()
        }

    def drain(self, node: str, reason: str) -> None:
        """No new jobs on a node; one that somebody else has drained keeps their reason."""
        known = self._gateway.nodes([node])[node]
        if not known.is_draining:
            self._gateway.update_node(node, State="DRAIN", Reason=reason)

    def down(self, node: str, reason: str) -> None:
        """End a node's jobs now."""
        self._gateway.update_node(node, State="DOWN", Reason=reason)

    def resume(self, node: str) -> None:
        """A node takes jobs again."""
        self._gateway.update_node(node, State="RESUME")

    def _known(self) -> Mapping[str, Node]:
        """Every node as slurmctld has it, which is started where it ended over a change of ours."""
        try:
            return self._gateway.nodes()
        except SlurmTransientError:
            if self._restart is None or not self._unapplied.is_set:
                raise
        self._restart()
        return self._gateway.nodes()

    def _reconfigures_nodes(self) -> bool:
        if self._version is None:
            major, minor, _ = self._gateway.config().version
            self._version = (major, minor)
        return self._version >= RECONFIGURES_NODES

    def _check(self, candidate: Path) -> None:
        said = problems(read(candidate))
        if said:
            raise SlurmError(f"slurm.conf would be broken and is not installed: {said[0]}")
        runner = Runner({**os.environ, "SLURM_CONF": str(candidate)})
        try:
            runner.check(("scontrol", "-Q", "show", "hostnames", "check"), _CALL_S)
        except (SlurmToolError, SlurmTransientError):
            raise  # no word about the file
        except SlurmError as error:
            raise SlurmError(f"slurm.conf would be broken and is not installed: {error}") from error

    def _apply(self, changes_nodes: bool) -> None:
        if changes_nodes and not self._reconfigures_nodes() and self._restart is not None:
            self._restart()
        retrying = Retrying(
            retry=retry_if_exception_type(SlurmTransientError),
            stop=stop_after_delay(_RESTART_S),
            wait=wait_fixed(0.5),
            reraise=True,
        )
        retrying(self._runner.check, ("scontrol", "reconfigure"), _CALL_S)

    def _is_put_back(self, changes_nodes: bool) -> bool:
        """Apply what stood there before: the first error is the one to tell."""
        try:
            self._apply(changes_nodes)
        except SlurmError:
            return False  # the engine comes again
        return True


def _undone(done: Sequence[Installed]) -> bool:
    """Put back what stood in each file, and whether all of it stands there again."""
    are_back = True
    for change in reversed(done):
        try:
            change.undo()
        except SlurmError as error:
            are_back = False
            _log.error("%s", error)
    return are_back


def _unchecked(_path: Path) -> None:
    """Slurm has no check of gres.conf that needs no node."""


def _changes_nodes(text: str, entries: SlurmEntries, known: Mapping[str, Node]) -> bool:
    """Whether slurmctld has other nodes than the edited file, or the file than before.

    Where files are included, their nodes are not in the text: then only ours are compared.
    """
    before, after = node_names(text), node_names(edit_slurm_conf(text, entries))
    if before != after or not after <= set(known):
        return True
    more = set(known) - after
    if includes(text):
        ours = owner(entries)
        return any(ours(name) for name in more)
    return bool(more)


def _moved(known: Mapping[str, Node], entries: SlurmEntries) -> bool:
    """Whether Slurm has another address for a node: the process ended before it applied one."""
    return any(
        entry.address and entry.name in known and known[entry.name].address != entry.address
        for entry in entries.nodes
    )


def _answers(node: Node) -> bool:
    """Whether its slurmd has registered and answers.

    Also one that is DOWN by an order for node recovery, given while it was rebooted [ran, 22.05:
    FAIL becomes DOWN+FAIL by a boot]: recovery can follow it only once the node has come up here.
    """
    ordered = node.reason.startswith(_ORDER)
    off = (state for state in _NOT_READY if not (ordered and state == "DOWN"))
    return node.slurmd_start_time > 0 and not node.has(*off)


def _seen(node: Node, *, is_settled: bool) -> SlurmNode:
    ours = node.reason.startswith(REASON)
    held = node.is_draining or node.is_down or node.is_failing
    rebooted = node.is_down and node.reason.startswith("Node unexpectedly rebooted")
    return SlurmNode(
        is_ready=is_settled and not (ours and held),
        is_drained=node.is_down or (node.is_draining and not node.has(*_WITH_JOBS)),
        needs_resume=(ours and held) or rebooted,
    )
