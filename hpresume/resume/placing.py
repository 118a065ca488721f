"""Where the user's own options put the step: ``-w``, ``-x``, a node for every task."""

from __future__ import annotations

from collections.abc import Mapping

from hpresume.errors import HpresumeError
from hpresume.resume.command import moved
from hpresume.slurm.nodeset import expand
from hpresume.slurm.srun_options import SplitArgv

#: Most of a file with node names that is read (bytes).
_MOST_BYTES = 1 << 20


def nodes_given(split: SplitArgv | None, option: str) -> tuple[str, ...]:
    """The nodes that an option names, in its order and as often; empty where none can be read."""
    value = split.value_of(option) if split else None
    return _expanded(value or "")


def task_nodes(split: SplitArgv | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The node of every task where the user chose that (``-m arbitrary``); else empty.

    The nodes come from ``-w`` or from the file that SLURM_HOSTFILE names, which
    means that distribution by itself.
    """
    if split is None:
        return ()
    how = split.value_of("distribution") or environ.get("SLURM_DISTRIBUTION", "")
    is_chosen = how.lower().split(",")[0].split(":")[0] == "arbitrary"
    if split.given("nodelist"):
        return nodes_given(split, "nodelist") if is_chosen else ()
    file = environ.get("SLURM_HOSTFILE", "")
    return _expanded(file if "/" in file else f"./{file}") if file else ()


def placed_again(
    split: SplitArgv | None, environ: Mapping[str, str]
) -> tuple[tuple[str, ...], list[str]]:
    """For a job that was started again: the step's new nodes, and the options that say so.

    Empty where all nodes that the user named are in the job still.
    """
    chosen = task_nodes(split, environ)
    named = chosen or nodes_given(split, "nodelist")
    nodes = _expanded(environ.get("SLURM_JOB_NODELIST", ""))
    if not nodes or set(named) <= set(nodes):
        return (), []
    places = moved(named, nodes)
    distribution = ["--distribution=arbitrary"] if chosen else []
    listing = places if chosen else list(dict.fromkeys(places))
    return tuple(dict.fromkeys(places)), [f"--nodelist={','.join(listing)}", *distribution]


def _expanded(value: str) -> tuple[str, ...]:
    if "/" in value:
        value = _from_file(value)
    try:
        return expand(value)
    except HpresumeError:
        return ()


def _from_file(path: str) -> str:
    """srun takes a value with a slash as the name of a file with node names."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return ",".join(stream.read(_MOST_BYTES).split())
    except OSError:
        return ""
