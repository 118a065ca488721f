"""The quick health check of nodes that came back as new machines.

Run as a step of the user's over the old one, so without root: what only root
may look at is left out. Unlike after a failed step, what keeps new jobs off a node
counts too: a new machine may lack a mount. It counts at once: nothing has run there before
that it could be the second strike of. A fault keeps the step off the node; what is not known,
or a tool that is not there, does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpresume.resume.command import neutral_environment, watch_command


@dataclass(frozen=True)
class NodeHealth:
    """What the check says of one node; neither ``faults`` nor ``unknown``: it is well."""

    node: str
    faults: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def text(self) -> str:
        """In words."""
        if self.faults:
            return f"{self.node} is back, but not used: {'; '.join(self.faults)}"
        if self.unknown:
            return f"{self.node} is back; its health is not known: {self.unknown}"
        return f"{self.node} is back, and healthy by the quick check"


def judge(node: str, code: int, printed: str, error: str) -> NodeHealth:
    """The health of a node from the end of its ``hpresume check --json``. Pure.

    Exit code 1 may be srun's own, so that only what was found counts.
    """
    try:
        results = json.loads(printed)["results"]
        failed = [_fault(r) for r in results if r["status"] == "fail" and _keeps_off(r)]
    except (ValueError, TypeError, KeyError, RecursionError):
        lines = [line for line in error.splitlines() if line.strip()]
        why = lines[-1].strip() if lines else f"exit code {code}"
        return NodeHealth(node, unknown=why)
    return NodeHealth(node, tuple(failed))


def _keeps_off(result: Mapping[str, Any]) -> bool:
    """As in the exit code of ``hpresume check``: a mere warning does not."""
    return bool(result["hold"]) or result["action"] != "none"


def _fault(result: Mapping[str, Any]) -> str:
    return f"{result['check']}: {result['evidence']}"


def check(
    srun: str,
    job_id: int,
    nodes: Sequence[str],
    environ: Mapping[str, str],
    *,
    limit_s: float,
    devices: bool,
) -> tuple[NodeHealth, ...]:
    """Check ``nodes`` side by side, within ``limit_s``; never raises for a failed check.

    ``devices``: the checks see the job's GPUs only if they share them, which not
    every job allows.
    """
    options = ["--profile", "quick", "--at-once", "--json"]
    program = [sys.executable, "-I", "-m", "hpresume", "check", *options]
    deadline = time.monotonic() + limit_s
    found: dict[str, NodeHealth] = {}
    for shared in (True, False) if devices else (False,):
        running = []
        for node in nodes:
            if node not in found or found[node].unknown:
                argv = watch_command(srun, job_id, [node], program, devices=shared)
                running.append((node, _start(argv, environ)))
        for node, process in running:
            found[node] = _ended(node, process, deadline)
    return tuple(found.values())


def _start(argv: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes] | str:
    try:
        return subprocess.Popen(
            argv,
            env=neutral_environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # a Ctrl-C is the supervisor's to deal with
        )
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"


def _ended(node: str, process: subprocess.Popen[bytes] | str, deadline: float) -> NodeHealth:
    if isinstance(process, str):
        return NodeHealth(node, unknown=process)
    try:
        out, err = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5.0)
        return NodeHealth(node, unknown="no answer in time")
    code = process.returncode
    return judge(node, code, out.decode(errors="replace"), err.decode(errors="replace"))
