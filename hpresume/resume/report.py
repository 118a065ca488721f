"""What the supervisor tells the user: single lines on stderr."""

from __future__ import annotations

import os
import termios
from collections.abc import Sequence

from hpresume.resume.model import (
    Action,
    Await,
    Finish,
    GiveUp,
    Grow,
    Reallocate,
    Requeue,
    Restart,
    Rung,
)

PREFIX = "[Auto Resume]"


def say(text: str) -> None:
    """One line on stderr, in one write; a closed stderr is nobody's error."""
    line = f"{PREFIX} {' '.join(text.split())}{_line_end()}"
    try:
        os.write(2, line.encode(errors="backslashreplace"))
    except OSError:
        pass


def _line_end() -> str:
    """On a terminal that srun --pty made raw, a new line alone does not begin one."""
    try:
        raw = os.isatty(2) and not termios.tcgetattr(2)[1] & termios.OPOST
    except termios.error:
        raw = False
    return "\r\n" if raw else "\n"


def listing(nodes: Sequence[str], most: int = 8) -> str:
    """``n1,n2,n3`` or, past ``most``, the first ones and the count."""
    if len(nodes) <= most:
        return ",".join(nodes)
    return f"{','.join(nodes[:most])}… ({len(nodes)} nodes)"


def describe(action: Action) -> str:
    """One action in words."""
    match action:
        case Finish(reason=reason):
            return reason
        case GiveUp(reason=reason):
            return f"not resumed: {reason}"
        case Restart(rung=Rung.SAME, nodes=nodes):
            return f"starting again on the same nodes {listing(nodes)}"
        case Restart(rung=Rung.FEWER, nodes=nodes, drop=drop, tasks=tasks, keep=keep):
            dropped = f", dropping {listing(drop)} from the job" if drop else ""
            kept = f", keeping {listing(keep)} in the job for its return" if keep else ""
            return f"going on with fewer nodes, {tasks} tasks on {listing(nodes)}{dropped}{kept}"
        case Await(missing=missing, limit_s=limit):
            return f"waiting up to {limit:.0f} s for {listing(missing)} to come back"
        case Restart(nodes=nodes, drop=drop):
            dropped = f", dropping {listing(drop)} from the job" if drop else ""
            return f"starting again on {listing(nodes)}{dropped}"
        case Grow(count=count, drop=drop):
            plural = "" if count == 1 else "s"
            return f"dropping {listing(drop) or 'no node'}, merging {count} new node{plural} in"
        case Requeue(waits_for_nodes=True):
            return "waiting for Slurm to notice the loss and to requeue the job"
        case Requeue(exclude=exclude, fast=fast):
            how = "starting it at once" if fast else "with Slurm's own delays"
            return f"requeueing the job without {listing(exclude) or 'any exclusion'}, {how}"
        case Reallocate(exclude=exclude):
            return f"starting again in a new allocation without {listing(exclude) or 'exclusions'}"
