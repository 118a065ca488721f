"""``hpresume env``: the entry point's variables, for ``eval`` or as JSON."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from hpresume.entrypoint.model import Entrypoint, decide, read_task
from hpresume.entrypoint.observe import Slurm, observe
from hpresume.errors import HpresumeError, UsageError
from hpresume.slurm.runner import Runner

#: Longest time for all questions to Slurm (s); also HPRESUME_ENV_TIMEOUT.
_TIMEOUT_S = 15.0

#: What is evaluated after a failure: ``eval`` of nothing would succeed and leave
#: the script with the values of an earlier call. ``exit`` would close the user's
#: shell, ``false`` stops scripts that ask for it (``set -e``, ``|| exit``).
FAILED = "unset NODE_LIST MASTER_NODE MASTER_ADDR NNODES NODE_RANK; false"

_HELP = """\
usage: hpresume env [--format=shell|json] [--timeout=SECONDS]

Print NODE_LIST, MASTER_NODE, MASTER_ADDR, MASTER_PORT, NNODES and NODE_RANK of
the Slurm step this runs in, as Slurm knows it now:

    eval "$(hpresume env || echo false)" || exit 1

NODE_LIST holds plain host names with commas between them. NODE_RANK is the
position of this node in it, the same for all tasks of a node, and unset where
this is none of the nodes. MASTER_PORT is kept where it is set already.

--format=json     one JSON object instead of shell commands
--timeout=SECONDS longest time for Slurm to answer (15, or HPRESUME_ENV_TIMEOUT)

After a failure one line on stderr says why, the exit code is not 0, and what is
printed for the shell unsets the variables and makes eval fail.
"""


def main(args: Sequence[str]) -> int:
    """Run ``hpresume env`` and return its exit code."""
    as_json = False
    try:
        timeout = os.environ.get("HPRESUME_ENV_TIMEOUT", "")
        for word in args:
            name, _, value = word.partition("=")
            if word in ("-h", "--help"):
                print(_HELP, end="")
                return 0
            if name == "--format" and value in ("shell", "json"):
                as_json = value == "json"
            elif name == "--timeout" and value:
                timeout = value
            else:
                raise UsageError(f"unknown argument {word!r}, see hpresume env --help")
        entrypoint, trouble = _find(_seconds(timeout) if timeout else _TIMEOUT_S)
    except HpresumeError as error:
        print(f"hpresume env: {error}", file=sys.stderr)
        if not as_json:
            print(FAILED)
        return error.exit_code
    if trouble:
        known = f"{len(entrypoint.node_list)} nodes, master {entrypoint.master_addr}"
        print(f"hpresume env: {trouble}; going on with {known}", file=sys.stderr)
    print(as_object(entrypoint) if as_json else as_shell(entrypoint))
    return 0


def as_shell(entrypoint: Entrypoint) -> str:
    """Commands for a POSIX shell."""
    values = {
        "NODE_LIST": ",".join(entrypoint.node_list),
        "MASTER_NODE": entrypoint.master_node,
        "MASTER_ADDR": entrypoint.master_addr,
        "MASTER_PORT": str(entrypoint.master_port),
        "NNODES": str(len(entrypoint.node_list)),
    }
    if entrypoint.node_rank >= 0:
        values["NODE_RANK"] = str(entrypoint.node_rank)
    words = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    clearing = "" if entrypoint.node_rank >= 0 else "unset NODE_RANK; "
    return f"{clearing}export {' '.join(words)}"


def as_object(entrypoint: Entrypoint) -> str:
    """One JSON object; NODE_RANK is null where the shell's would be unset."""
    import json

    return json.dumps(
        {
            "NODE_LIST": entrypoint.node_list,
            "MASTER_NODE": entrypoint.master_node,
            "MASTER_ADDR": entrypoint.master_addr,
            "MASTER_PORT": entrypoint.master_port,
            "NNODES": len(entrypoint.node_list),
            "NODE_RANK": entrypoint.node_rank if entrypoint.node_rank >= 0 else None,
            "source": entrypoint.source,
        }
    )


def _find(timeout_s: float) -> tuple[Entrypoint, str]:
    snapshot = observe(read_task(os.environ), Slurm(Runner(), timeout_s))
    return decide(snapshot), snapshot.trouble


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise UsageError(f"time-out {text!r}: a number of seconds above 0, up to 3600")
    return value
