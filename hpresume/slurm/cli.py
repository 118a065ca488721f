"""The gateway over Slurm's own command line tools."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from hpresume.errors import (
    SlurmDeniedError,
    SlurmError,
    SlurmNotFoundError,
    SlurmTransientError,
    UsageError,
)
from hpresume.slurm import nodeset, parse
from hpresume.slurm.answers import ALREADY_OVER, ALREADY_PENDING, DB_INDEX
from hpresume.slurm.models import ClusterConfig, DonorSpec, Job, Node, Step
from hpresume.slurm.runner import Runner, failure
from hpresume.slurm.states import job_state
from hpresume.slurm.values import EMPTY

T = TypeVar("T")

#: Up to so many own jobs are asked for one by one.
_FEW_JOBS = 8

#: What scontrol prints where there are none.
_NO_NODES = "No nodes in the system"

#: What squeue prints between two fields: in no number, state or node list.
_SEPARATOR = "|"


@contextlib.contextmanager
def _empty_folder() -> Iterator[str]:
    # Not before something is to be changed: they take longer than a call to Slurm.
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="hpresume-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class CliGateway:
    """Implements ``SlurmGateway`` with scontrol, squeue, scancel and salloc.

    ``read_timeout_s`` and ``write_timeout_s`` bound a whole call, repetitions
    after transient answers included; ``attempt_timeout_s`` bounds one of them.
    """

    def __init__(
        self,
        runner: Runner | None = None,
        *,
        read_timeout_s: float = 15.0,
        write_timeout_s: float = 60.0,
        attempt_timeout_s: float = 12.0,
    ) -> None:
        self._runner = runner if runner is not None else Runner()
        self._read_timeout_s = read_timeout_s
        self._write_timeout_s = write_timeout_s
        self._attempt_timeout_s = attempt_timeout_s
        self._resizes_once: bool | None = None
        self._addresses: dict[int, str] = {}

    # --- reading ---------------------------------------------------------------

    def config(self) -> ClusterConfig:
        """``scontrol show config``."""
        return parse.config(self._read("scontrol", "show", "config"))

    def nodes(self, names: Iterable[str] | None = None) -> dict[str, Node]:
        """``scontrol show node``: by name; all nodes for ``None``."""
        if names is None:
            text = self._read("scontrol", "-a", "-o", "show", "node")
            found = parse.nodes(text)
            if not found and _NO_NODES not in text:
                # Nodes that are not there any more would be given up.
                raise SlurmError(f"scontrol show node: no node in its answer: {text[:120]!r}")
            return found
        wanted = tuple(dict.fromkeys(names))
        if not wanted:
            return {}
        text = self._read("scontrol", "-a", "-o", "show", "node", nodeset.fold(wanted))
        found = parse.nodes(text)
        if not found:
            raise SlurmError(f"scontrol show node: no node in its answer: {text[:120]!r}")
        missing = [name for name in wanted if name not in found]
        if missing:
            raise SlurmNotFoundError(f"Slurm knows no node {nodeset.fold(missing)}")
        return {name: found[name] for name in wanted}

    def job(self, job_id: int) -> Job:
        """``scontrol show job``."""
        text = self._read("scontrol", "-a", "-o", "-d", "show", "job", self._shown(job_id))
        return self._met(parse.job(text, job_id))

    def own_jobs(self) -> tuple[Job, ...]:
        """The caller's jobs that have not ended."""
        listed = self._read("squeue", "--me", "--all", "--array", "--noheader", "--format=%A")
        ids = [int(word) for word in dict.fromkeys(listed.split()) if word.isdigit()]
        found = self._few_jobs(ids) if len(ids) <= _FEW_JOBS else self._many_jobs(ids)
        return tuple(job for job in found if not job.is_over)

    def steps(self, job_id: int) -> tuple[Step, ...]:
        """``scontrol show step``: the steps of a job that slurmctld still holds."""
        shown = self._shown(job_id)
        try:
            text = self._read("scontrol", "-a", "-o", "show", "step", shown)
            if shown == str(job_id) and parse.shows_array(text, job_id):
                job = self.job(job_id)
                if job.is_unstarted_array:
                    return ()
                return parse.steps(text, job_id, job.array_task)
        except SlurmNotFoundError:
            return ()
        return parse.steps(text, job_id)

    def job_comment(self, job_id: int) -> str:
        """The comment that a job's owner set (``squeue --format=%k``); empty for none."""
        # Asked for alone: it is free text, and may have line breaks.
        which = ("--all", "--array", f"--jobs={self._address(job_id)}")
        text = self._read("squeue", *which, "--noheader", "--format=%k").rstrip("\n")
        return "" if text in EMPTY else text

    def expand(self, expression: str) -> tuple[str, ...]:
        """The host names in a node list expression, in its order."""
        return nodeset.expand(expression)

    # --- acting ----------------------------------------------------------------

    def set_job_nodes(self, job_id: int, nodes: Iterable[str]) -> None:
        """Shrink a running job to ``nodes`` (``update JobId NodeList``)."""
        kept = tuple(dict.fromkeys(nodes))
        if not kept:
            raise UsageError(f"job {job_id} cannot be shrunk to no nodes: cancel it instead")
        self._refuse_second_resize(job_id)
        try:
            self._update(job_id, f"NodeList={','.join(kept)}")
        except SlurmError as error:
            raise self._shrink_refusal(job_id, kept, error) from error

    def grow_job(self, donor: DonorSpec, timeout_s: float) -> tuple[str, ...]:
        """Merge new nodes into a running job; the new nodes' names."""
        from hpresume.slurm.grow import grow

        return grow(self, self._runner, donor, timeout_s)

    def update_job(self, job_id: int, **fields: str) -> None:
        """``scontrol update jobid=…`` with the given fields."""
        if not fields:
            raise UsageError(f"job {job_id}: no field to update")
        self._update(job_id, *(f"{name}={value}" for name, value in fields.items()))

    def update_node(self, name: str, **fields: str) -> None:
        """``scontrol update nodename=…`` with the given fields, for one node."""
        if not fields:
            raise UsageError(f"node {name}: no field to update")
        settings = (f"{key}={value}" for key, value in fields.items())
        argv = ("scontrol", "update", f"nodename={_one_node(name)}", *settings)
        self.within(self._write_timeout_s, lambda timeout_s: self._runner.check(argv, timeout_s))

    def reboot_node(self, name: str, reason: str) -> None:
        """``scontrol reboot ASAP``, once: a repetition could be a second reboot."""
        argv = ["scontrol", "reboot", "ASAP", "nextstate=RESUME", f"reason={reason}"]
        self._runner.check([*argv, _one_node(name)], self._write_timeout_s)

    def requeue(self, job_id: int) -> None:
        """``scontrol requeue``."""
        argv = ("scontrol", "requeue", self._address(job_id))

        def once(timeout_s: float) -> None:
            answer = self._runner.run(argv, timeout_s)
            # Pending already: the answer to an earlier attempt got lost, or
            # Slurm itself was faster.
            if answer.returncode != 0 and not re.search(ALREADY_PENDING, answer.text):
                raise failure(argv, answer)

        self.within(self._write_timeout_s, once)

    def cancel(self, job_id: int, step_id: str | None = None, signal: str | None = None) -> None:
        """``scancel``; a job or step that is gone already is not an error."""
        try:
            address = self._address(job_id)
        except SlurmNotFoundError:
            return
        argv = ["scancel"]
        if signal is not None:
            argv.append(f"--signal={signal}")
        if step_id == "batch":
            argv += ["--batch", address]
        else:
            argv.append(f"{address}.{step_id}" if step_id is not None else address)

        def once(timeout_s: float) -> None:
            answer = self._runner.run(argv, timeout_s)
            if answer.returncode == 0 or re.search(ALREADY_OVER, answer.text):
                return
            error = failure(argv, answer)
            if not isinstance(error, SlurmNotFoundError):
                raise error

        self.within(self._write_timeout_s, once)

    # --- inner ------------------------------------------------------------------

    def _read(self, *argv: str) -> str:
        return self.within(
            self._read_timeout_s, lambda timeout_s: self._runner.check(argv, timeout_s)
        )

    def _update(self, job_id: int, *fields: str) -> None:
        """``scontrol update`` in an empty folder, which is removed afterwards.

        After a change of size scontrol writes ``slurm_job_J_resize.sh`` and
        ``.csh`` into its working directory.
        """
        argv = ("scontrol", "update", f"jobid={self._address(job_id)}", *fields)
        with _empty_folder() as folder:

            def once(timeout_s: float) -> None:
                answer = self._runner.run(argv, timeout_s, cwd=folder)
                if answer.returncode != 0:
                    if re.search(DB_INDEX, answer.text):
                        self._refuse_second_resize(job_id)
                    raise failure(argv, answer)

            self.within(self._write_timeout_s, once)

    def within(self, bound_s: float, call: Callable[[float], T]) -> T:
        """``call(time limit of the attempt)``, again after transient answers."""
        deadline = time.monotonic() + bound_s
        try:
            return call(min(bound_s, self._attempt_timeout_s))
        except SlurmTransientError as error:
            if time.monotonic() >= deadline:
                raise
            first = error
        # Not before: tenacity takes longer to import than most calls to run.
        from hpresume.slurm.retry import until

        return until(deadline, call, self._attempt_timeout_s, first)

    def _few_jobs(self, ids: Sequence[int]) -> list[Job]:
        found = []
        for job_id in ids:
            try:
                found.append(self.job(job_id))
            except SlurmNotFoundError:  # ended between the two calls
                continue
        return found

    def _many_jobs(self, ids: Sequence[int]) -> list[Job]:
        texts = parse.jobs(self._read("scontrol", "-a", "-o", "-d", "show", "job"), ids)
        return [self._met(text) for text in texts.values()]

    def _met(self, text: parse.JobText) -> Job:
        """The job, whose address is known from now on: it never changes."""
        job = self._unforged(text)
        if not job.is_unstarted_array:
            self._addresses[job.job_id] = job.address
        return job

    def _address(self, job_id: int) -> str:
        """``Job.address`` of a job that something is done to."""
        if job_id in self._addresses:
            return self._addresses[job_id]
        job = self.job(job_id)
        if job.is_unstarted_array:
            raise SlurmDeniedError(f"job {job_id} is a whole array: name one of its tasks")
        return job.address

    def _shown(self, job_id: int) -> str:
        """What to ask for to be shown a job, and as little else as possible."""
        address = self._addresses.get(job_id, "")
        # For the address of any other task too, Slurm sends the whole array.
        return address if address.startswith(f"{job_id}_") else str(job_id)

    def _unforged(self, text: parse.JobText) -> Job:
        """The job, with what its texts could have forged asked from squeue."""
        job = text.job
        if not text.forged:
            return job
        layout = _SEPARATOR.join(("%A", "%U", "%T", "%N", "%F", "%K"))
        which = ("--all", "--states=all", f"--jobs={job.job_id}")
        rows = self._read("squeue", *which, "--noheader", f"--format={layout}")
        for row in rows.split("\n"):
            fields = row.split(_SEPARATOR)
            if len(fields) == 6 and fields[0] == str(job.job_id) and fields[1].isdigit():
                state, flags = job_state(fields[2], {})
                if state is job.state or "COMPLETING" in flags & job.flags:
                    state, flags = job.state, job.flags
                return replace(
                    job,
                    user_id=int(fields[1]),
                    state=state,
                    flags=flags,
                    nodes=nodeset.expand(fields[3]),
                    array_job=int(fields[4]) if fields[5] != "N/A" else 0,
                    array_task=parse.array_task(fields[5]),
                )
        raise SlurmNotFoundError(f"job {job.job_id} has left Slurm's queue")

    def _refuse_second_resize(self, job_id: int) -> None:
        """Refuse at once what slurmctld would refuse after five seconds, for ever."""
        if self.job(job_id).is_resized and self._resizes_jobs_once():
            raise SlurmDeniedError(
                f"job {job_id} has changed its size: this release of Slurm accepts no further "
                "change to it without slurmdbd (AccountingStorageType)"
            )

    def _resizes_jobs_once(self) -> bool:
        if self._resizes_once is None:
            self._resizes_once = self.config().resizes_jobs_once
        return self._resizes_once

    def _shrink_refusal(self, job_id: int, kept: Sequence[str], error: SlurmError) -> SlurmError:
        """Slurm's refusal in words that name what is wrong."""
        if isinstance(error, SlurmTransientError):
            return error
        try:
            job = self.job(job_id)
        except SlurmError:
            return error
        strange = [name for name in kept if name not in job.nodes]
        if job.batch_host and job.batch_host not in kept:
            return SlurmDeniedError(
                f"job {job_id} cannot give up its batch host {job.batch_host}: requeue it instead"
            )
        if strange and job.nodes:
            return SlurmNotFoundError(
                f"job {job_id} has no node {nodeset.fold(strange)}: "
                f"it runs on {nodeset.fold(job.nodes)}"
            )
        return error


def _one_node(name: str) -> str:
    """``name``, if it cannot stand for more than one node."""
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII) or name.upper() == "ALL":
        raise UsageError(f"{name!r} is not the name of one node")
    return name
