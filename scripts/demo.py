"""The demo: a node crashes in mid-training on a real Slurm cluster, and training goes on.

Everything that is said here is read off the cluster: the batch job's output,
Slurm's node states, the supervisor's journal.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo_check import EPOCH, RANK, Run, Training
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hpresume.devcluster.cluster import DevCluster
from hpresume.devcluster.layout import make_base_directory
from hpresume.devcluster.spec import ClusterSpec
from hpresume.errors import HpresumeError
from hpresume.resume import journal

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NAME = "demo"
NODES, STEP_NODES, GPUS = 4, 3, 4
BATCH_HOST, VICTIM = "n1", "n3"
EPOCHS, EPOCH_SECONDS, CRASH_AFTER = 24, 0.5, 7
LIMIT_S = 150.0
POLL_S = 0.04

NODE_LOOP = """
while sleep 0.4; do
    echo "job $(squeue --noheader --states=all --jobs=$1 --format=%T)"
    echo "nodes $(sinfo --noheader --Node --format=%N=%T | tr '\\n' ' ')"
done
"""


class DemoError(Exception):
    """The demo cannot go on."""


class Screen:
    """Lines with their time; on a terminal also a bar and the state of the nodes below them."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal
        self.begun = time.time()
        self.bar = Progress(
            TextColumn("        {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs   {task.fields[nodes]}"),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task("training", total=EPOCHS, nodes="")

    def say(self, text: str, style: str = "") -> None:
        """Print one line."""
        passed = f"[dim]{time.time() - self.begun:5.1f} s[/]"
        body = f"[{style}]{escape(text)}[/]" if style else escape(text)
        self.console.print(f"{passed}  {body}")

    def epochs(self, done: int) -> None:
        """Show how far the training is."""
        self.bar.update(self.task, completed=done)

    def nodes(self, states: dict[str, str], crashed: str) -> None:
        """Show Slurm's word on every node."""
        shown = "  ".join(
            f"[red]{node} crashed[/]" if node == crashed else f"{node} {state}"
            for node, state in states.items()
        )
        self.bar.update(self.task, nodes=shown)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Keep the bar at the bottom of a terminal."""
        if not self.live:
            yield
            return
        with self.bar:
            yield


class Tail:
    """The complete lines that a growing file has got since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rest = b""
        self._offset = 0

    def lines(self) -> list[str]:
        """Read on."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(new)
        *complete, self._rest = (self._rest + new).split(b"\n")
        return [line.decode(errors="replace").rstrip("\r") for line in complete]


class SlurmView:
    """Slurm's states of the job and the nodes, asked for by one process on the controller."""

    def __init__(self, cluster: DevCluster, job: int) -> None:
        self.job = ""
        self.nodes: dict[str, str] = {}
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.process = cluster.popen(
            ["bash", "-c", NODE_LOOP, "nodes", str(job)], stderr=subprocess.DEVNULL
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(line)

    def changes(self) -> list[str]:
        """What changed since the last look, in words."""
        said = []
        while not self._lines.empty():
            kind, _, rest = self._lines.get().strip().partition(" ")
            if kind == "job" and rest:
                self.job = rest
            elif kind == "nodes" and rest:
                new = dict(pair.split("=", 1) for pair in rest.split())
                said += [
                    f"Slurm: {node} {self.nodes.get(node, 'unknown')} → {state}"
                    for node, state in new.items()
                    if state != self.nodes.get(node) and self.nodes
                ]
                self.nodes = new
        return said


# ---------------------------------------------------------------- the demo


def bring_up(screen: Screen) -> DevCluster:
    """Make the cluster; what an earlier demo left is removed."""
    DevCluster(NAME).down()
    return DevCluster.up(
        ClusterSpec(
            name=NAME,
            nodes=NODES,
            gpus_per_node=GPUS,
            plugin=ROOT / "spank/hpresume.so",
            supervisor=BIN / "hpresume",
        ),
        progress=screen.say,
    )


def submit(cluster: DevCluster, screen: Screen) -> int:
    """Hand the batch job in as an ordinary user."""
    command = [
        *("sbatch", "--parsable", f"--nodes={NODES}", f"--gres=gpu:{GPUS}", "--output=demo-%j.out"),
        str(ROOT / "examples/batch.sh"),
        *("-N", str(STEP_NODES), str(ROOT / "examples/train_numpy.sh")),
        *("--epochs", str(EPOCHS), "--epoch-seconds", str(EPOCH_SECONDS)),
    ]
    done = cluster.exec(command, user="trainer", check=True)
    job = int(re.match(r"\d+", done.stdout)[0])  # type: ignore[index]
    shown = " ".join(command).replace(f"{ROOT}/", "").replace(" --parsable", "")
    screen.say(f"trainer: {shown}", "bold")
    return job


class Fault:
    """The crash to come, and when it came."""

    def __init__(self) -> None:
        self.node = VICTIM
        self.at = 0.0

    def happen(self, cluster: DevCluster, screen: Screen, nodes: list[str]) -> None:
        """Crash a node of the step in the middle of an epoch; not the batch script's."""
        if VICTIM not in nodes:  # Slurm may choose others of the job for the step
            self.node = [node for node in nodes if node != BATCH_HOST][-1]
        time.sleep(EPOCH_SECONDS / 2)
        screen.say(f"crashing {self.node}: its power is cut", "bold red")
        self.at = time.time()
        cluster.crash(self.node)

    def remark(self, change: str) -> str:
        """What to add to a change of node states that Slurm reports."""
        unaware = self.at and change.startswith(f"Slurm: {self.node} ")
        return " (it has not noticed the crash)" if unaware else ""


def watch(cluster: DevCluster, job: int, screen: Screen, training: Training, fault: Fault) -> str:
    """Follow the job to its end and crash a node on the way; the state the job ended in."""
    tail = Tail(cluster.layout.homes / f"trainer/demo-{job}.out")
    slurm = SlurmView(cluster, job)
    deadline = time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            ended = slurm.job not in ("", "PENDING", "RUNNING", "COMPLETING")
            for line in tail.lines():
                training.read(line, time.time())
                show(line, screen)
            for change in slurm.changes():
                screen.say(change + fault.remark(change), "dim")
            screen.epochs(training.last_epoch)
            screen.nodes(slurm.nodes, fault.node if fault.at else "")
            if ended:
                return slurm.job
            if not fault.at and training.last_epoch >= CRASH_AFTER:
                fault.happen(cluster, screen, training.nodes_of(1))
            time.sleep(POLL_S)
    finally:
        slurm.process.kill()
    raise DemoError(f"the job is still {slurm.job or 'unknown to Slurm'} after {LIMIT_S:.0f} s")


def show(line: str, screen: Screen) -> None:
    """Print a line of the job's output, as far as it tells a story."""
    if line.startswith("[Auto Resume]"):
        screen.say(line, "bold yellow")
    elif RANK.fullmatch(line):
        screen.say(line, "cyan")
    elif not screen.live or not EPOCH.fullmatch(line):  # the bar shows the epochs
        screen.say(line)


def exit_code(cluster: DevCluster, job: int) -> int:
    """What the batch script ended with."""
    shown = cluster.exec(["scontrol", "--oneliner", "show", "job", str(job)], check=True).stdout
    match = re.search(r" ExitCode=(\d+):(\d+)", shown)
    if match is None:
        raise DemoError(f"Slurm does not say how job {job} ended")
    return int(match[1]) or (128 + int(match[2]) if int(match[2]) else 0)


def records(cluster: DevCluster, job: int) -> list[dict[str, object]]:
    """The journal of the job."""
    state = cluster.layout.homes / "trainer/.local/state/hpresume"
    return [record for path in state.glob(f"*/{job}.jsonl") for record in journal.read(path)]


def play(screen: Screen, fault: Fault) -> Run:
    """Run the demo on a cluster that is brought up for it."""
    cluster = bring_up(screen)
    job = submit(cluster, screen)
    training = Training()
    with screen.showing():
        state = watch(cluster, job, screen, training, fault)
    if not fault.at:
        raise DemoError(f"the job ended {state} before a node was crashed")
    return Run(
        crashed=fault.node,
        crashed_at=fault.at,
        epochs=EPOCHS,
        nodes=STEP_NODES,
        job_state=state,
        exit_code=exit_code(cluster, job),
        training=training,
        journal=records(cluster, job),
    )


def report(run: Run, screen: Screen) -> list[str]:
    """Print the timeline and the verdict; the problems found."""
    screen.console.print("\n[bold]seconds since the crash[/]")
    for seconds, text in run.timeline():
        screen.console.print(f"{seconds:+8.2f}  {escape(text)}")
    problems = run.problems()
    for problem in problems:
        screen.console.print(f"[bold red]not as it must be:[/] {escape(problem)}")
    if not problems:
        saved = run.training.resumed_after
        screen.console.print(
            f"[bold green]ok[/]: {EPOCHS} epochs, none lost: attempt 2 went on after epoch {saved},"
            " the last complete one"
        )
    return problems


def how_to_play(crashed: str) -> str:
    """What to do with a cluster that was kept."""
    command = f"{BIN}/hpresume devcluster"
    return (
        f"the cluster is still up:\n"
        f"  {command} exec --name {NAME} --user trainer -- sinfo\n"
        f"  {command} boot --name {NAME} {crashed}\n"
        f"  {command} exec --name {NAME} --user trainer -- "
        f"srun --auto-resume=1 -N3 {ROOT}/examples/train_numpy.sh --epoch-seconds 1\n"
        f"  {command} crash --name {NAME} n2\n"
        f"  {command} down --name {NAME}"
    )


@contextmanager
def only_demo() -> Iterator[None]:
    """Refuse to run beside another demo, whose cluster has the same name."""
    with (make_base_directory() / "demo.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError("another demo is running") from None
        yield


def main() -> int:
    """Run the demo; 0 if everything was as it must be."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="See scripts/demo --help.")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    keep = parser.parse_args().keep
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    screen = Screen()
    fault = Fault()
    result: dict[str, object] = {"crashed": None}
    try:
        with only_demo():
            try:
                run = play(screen, fault)
                result = run.result()
                problems = report(run, screen)
            finally:
                if not keep:
                    DevCluster(NAME).down()
    except KeyboardInterrupt:
        problems = ["interrupted"]
    except (DemoError, HpresumeError) as error:
        problems = [str(error)]
        print(f"demo: {error}", file=sys.stderr)
    if keep and DevCluster(NAME).exists():
        screen.console.print(f"\n{escape(how_to_play(fault.node))}\n")
    sys.stderr.flush()
    print(json.dumps(result | ({"problems": problems} if problems else {})), flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
