"""Runs lifecycle scripts on a machine: once for each machine, however often it is asked for.

The folder of scripts is brought to the machine as an archive, under the client token of the
machine, so a replacement starts afresh and a reboot changes nothing. A small wrapper there
holds a lock while a script runs and writes down its exit code: a controller that was killed
meanwhile waits for the same run and reads its end.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hpresume.errors import ProviderRefusedError, ProviderTransientError
from hpresume.providers.programs import Programs, Ran
from hpresume.provision.bundle import Sources, archive, problem_of_script
from hpresume.provision.model import Node, State
from hpresume.provision.resource_config import DEFAULT_PATH, resource_config

_log = logging.getLogger(__name__)

#: Members of LifeCycleConfig in the order in which they run.
STEPS = ("OnCreate", "OnInitComplete")

#: Arguments: step, script, time limit (s), where resource_config.json goes. Needs only
#: coreutils and util-linux. Children of the script do not inherit the lock: a daemon that it
#: starts must not hold it. How the script ended is the last line: the wrapper's own exit code
#: passes through what reaches the machine (ssh says 255 where it has no connection).
_WRAPPER = b"""\
#!/bin/sh
cd "$(dirname "$0")" || exit 125
exec 9>".hpresume.$1.lock" && flock 9 || exit 125
if [ ! -e ".hpresume.$1.exit" ]; then
    mkdir -p "$(dirname "$4")" && cp .hpresume.config "$4" || exit 125
    export SAGEMAKER_RESOURCE_CONFIG_PATH="$4"
    begun=$(date +%s)
    timeout -k 10 "$3" "./$2" >".hpresume.$1.log" 2>&1 9>&- </dev/null
    code=$?
    took=$(($(date +%s) - begun))
    [ "$code" -ge 124 ] && [ "$took" -ge "${3%.*}" ] && code="$code late"
    echo "$code" >".hpresume.$1.new" && mv ".hpresume.$1.new" ".hpresume.$1.exit" || exit 125
fi
tail -c 1000000 ".hpresume.$1.log"
printf '\n%s' "[hpresume] exit $(cat ".hpresume.$1.exit")"
"""

_END = re.compile(rb"\n\[hpresume\] exit (\d+)( late)?\Z")

_CALL_S = 120.0
_MEMORY_SHARE = 0.98


@dataclass(frozen=True)
class Where:
    """Places: ``logs`` on this host, the others on machines."""

    logs: Path = Path("/var/log/hpresume/lifecycle")
    folder: str = "/var/lib/hpresume/lifecycle"
    resource_config: str = DEFAULT_PATH


class LifecycleScripts:
    """``Scripts`` by way of a provider that runs programs; ``limit_s`` is for each script."""

    def __init__(
        self,
        programs: Programs,
        sources: Sources | None = None,
        *,
        where: Where | None = None,
        limit_s: float = 3600.0,
    ) -> None:
        self._programs = programs
        self._sources = sources or Sources()
        self._where = where or Where()
        self._limit_s = limit_s

    def inspect(self, state: State, node: Node) -> str:
        """The node's parameters as ``slurmd -C`` sees them; empty where there is no slurmd.

        Raises ProviderTransientError where the machine does not answer.
        """
        del state
        ran = self._programs.run(node.machine_id, ("slurmd", "-C"), b"", _CALL_S)
        return parse_shape(ran.output.decode(errors="replace")) if ran.exit_code == 0 else ""

    def run(self, state: State, node: Node) -> str:
        """Run OnCreate, then OnInitComplete; the first that fails ends it, and is told.

        Raises ProviderTransientError where the machine does not answer.
        """
        group = state.groups[node.group]
        scripts = group.scripts
        source = str(scripts.get("SourceS3Uri", ""))
        steps = [(step, scripts[step]) for step in STEPS if scripts.get(step)]
        if steps:
            try:
                files = self._sources.files(source)
            except ProviderRefusedError as error:
                return str(error)
            problem = self._all(state, node, steps, files)
            if problem:
                self._sources.forget(source, files)
            return problem
        return ""

    def _all(
        self, state: State, node: Node, steps: list[tuple[str, str]], files: dict[str, bytes]
    ) -> str:
        for step, name in steps:
            content = files.get(str(PurePosixPath(name)))
            if content is None:
                source = state.groups[node.group].scripts.get("SourceS3Uri")
                return f"{step}: there is no {name} in {source}"
            unusable = problem_of_script(name, content)
            if unusable:
                return f"{step}: {unusable}"
        self._bring(state, node, files)
        for step, name in steps:
            problem = self._run_step(state, node, step, name)
            if problem:
                return problem
        return ""

    def log_of(self, state: State, node: Node) -> Path:
        """Where the output of an instance's scripts is kept."""
        cluster = state.cluster
        folder = self._where.logs / f"{cluster.name}-{cluster.cluster_id}" / node.group
        return folder / f"{node.instance_id}.log"

    def _bring(self, state: State, node: Node, files: dict[str, bytes]) -> None:
        folder = self._folder(node)
        content = {
            **files,
            ".hpresume.run": _WRAPPER,
            ".hpresume.config": resource_config(state).encode(),
        }
        for argv, stdin in (
            (("mkdir", "-p", folder), b""),
            (("tar", "-x", "--no-same-owner", "-C", folder), archive(content)),
        ):
            ran = self._programs.run(node.machine_id, argv, stdin, _CALL_S)
            if ran.exit_code != 0:
                said = ran.output.decode(errors="replace").strip()[-300:]
                raise ProviderTransientError(f"{node.machine_id}: {argv[0]}: {said}")

    def _run_step(self, state: State, node: Node, step: str, name: str) -> str:
        """What went wrong; empty if nothing did."""
        argv = (
            *("setsid", "--fork", "--wait", "/bin/sh", f"{self._folder(node)}/.hpresume.run"),
            *(step, str(PurePosixPath(name)), f"{self._limit_s:g}", self._where.resource_config),
        )
        ran = self._programs.run(node.machine_id, argv, b"", self._limit_s + _CALL_S)
        end = _END.search(ran.output)
        if end is None:
            return f"{step} {name}: cannot be started{_last_line(ran.output)}"
        code, output = int(end[1]), ran.output[: end.start()]
        self._keep(state, node, step, name, Ran(code, output))
        if code == 0:
            return ""
        if end[2]:
            return f"{step} {name}: not done after {self._limit_s:g} s{_last_line(output)}"
        return f"{step} {name}: exit code {code}{_last_line(output)}"

    def _keep(self, state: State, node: Node, step: str, name: str, ran: Ran) -> None:
        """Keep the output; that it cannot be kept does not fail the node."""
        path = self.log_of(state, node)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            with path.open("ab") as log:
                log.write(f"[hpresume] {step} {name} on {node.name}\n".encode())
                log.write(ran.output)
                log.write(f"[hpresume] {step} {name}: exit code {ran.exit_code}\n".encode())
        except OSError as error:
            _log.warning("%s: %s", path, error.strerror)

    def _folder(self, node: Node) -> str:
        return f"{self._where.folder}/{node.token}"


def _last_line(output: bytes) -> str:
    """What was written last, as the end of a message: it is shown on terminals."""
    lines = output[-4096:].decode(errors="replace").strip().splitlines()
    last = "".join(c if c.isprintable() else "?" for c in lines[-1].strip()[-200:]) if lines else ""
    return f": {last}" if last else ""


def parse_shape(text: str) -> str:
    """The parameters in what ``slurmd -C`` prints, without the name.

    With a little less memory than there is: the next machine of the same type may have some MB
    less, and Slurm drains a node that has less than slurm.conf says.
    """
    match = re.search(r"^NodeName=\S+ (.*)$", text, re.MULTILINE)
    if match is None:
        return ""
    keep = r"(?:CPUs|Boards|SocketsPerBoard|CoresPerSocket|ThreadsPerCore|RealMemory)=\d+"
    words = [word.partition("=") for word in re.findall(keep, match[1])]
    return " ".join(
        f"{key}={int(int(value) * _MEMORY_SHARE)}" if key == "RealMemory" else f"{key}={value}"
        for key, _, value in words
    )
