"""The stages of ``scripts/test``: run them all, whatever fails, and sum up at the end.

Each end-to-end file gets a pytest of its own, and with it its own cluster, so
a file that hangs or dies takes no other with it. Twice as many as there are cores
run side by side, four at most: they wait for Slurm most of the time. Files that
measure (``tests/bench``, and end-to-end files with the line ``RUN_ALONE = True``)
run after those, one by one.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
RESULTS = Path(os.environ.get("HPRESUME_DEVCLUSTER_CHECKOUT", ROOT)) / "test-results"
DURATIONS = RESULTS / "durations.json"
CLUSTERS = Path("/var/tmp/hpresume-test-")  # noqa: S108 - the start of a name made by mkdtemp
DIRECTORY_VARIABLE = "HPRESUME_DEVCLUSTER_DIR"
PYTEST = (sys.executable, "-m", "pytest", "--color=no")
SKIPPED_FOLDERS = {".git", ".venv", ".work", "build", "dist", "test-results"}
COUNTED = ("passed", "failed", "skipped", "error", "errors", "xfailed", "xpassed")


@dataclass(frozen=True)
class Stage:
    """One command, with the time it may take."""

    name: str
    argv: tuple[str, ...]
    limit: float = 300.0
    shows_output: bool = False


@dataclass(frozen=True)
class Result:
    """How a stage ended."""

    name: str
    outcome: str  # "ok", "FAILED" or "NOT RUN"
    seconds: float
    detail: str = ""
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        """Whether the stage ran and found nothing wrong."""
        return self.outcome == "ok"


# ---------------------------------------------------------------- what there is to run


def shell_scripts(root: Path) -> Iterator[Path]:
    """Every shell script of the tree, known by its name or its first line."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in SKIPPED_FOLDERS and not name.endswith("_cache")
        )
        for name in sorted(files):
            path = Path(folder, name)
            if name.endswith((".sh", ".bash")) or (
                "." not in name and is_shell(path) and not path.is_symlink()
            ):
                yield path


def is_shell(path: Path) -> bool:
    """Whether the first line names a shell that shellcheck knows."""
    with path.open("rb") as file:
        return re.match(rb"#!\s*/(usr/)?bin/(env )?(ba|da|k)?sh\b", file.readline(80)) is not None


def static_stages(scratch: Path) -> list[Stage]:
    """Everything that needs no test to run."""
    scripts = [str(path.relative_to(ROOT)) for path in shell_scripts(ROOT)]
    python = [str(path.relative_to(ROOT)) for path in (ROOT / "scripts").glob("*.py")]
    return [
        Stage("mypy", (str(BIN / "mypy"), "hpresume", *python)),
        Stage("ruff check", (str(BIN / "ruff"), "check", ".")),
        Stage("ruff format", (str(BIN / "ruff"), "format", "--check", ".")),
        Stage("import layers", (str(BIN / "lint-imports"),)),
        Stage("shellcheck", ("shellcheck", "-x", *scripts)),
        Stage("C build", ("make", "-B", "-C", "spank", f"BUILD_DIR={scratch}")),
    ]


def unit_stages(shares: int) -> list[Stage]:
    """Return the tests that need no Slurm, in shares of about the same size."""
    split: list[list[Path]] = [[] for _ in range(shares)]
    sizes = [0] * shares
    for path in sorted((ROOT / "tests/unit").glob("test_*.py"), key=lambda p: -p.stat().st_size):
        smallest = sizes.index(min(sizes))
        split[smallest].append(path)
        sizes[smallest] += path.stat().st_size
    return [
        Stage(
            f"unit tests {number}",
            (*PYTEST, "-m", "not e2e and not torch", *map(str, sorted(share))),
            limit=600.0,
        )
        for number, share in enumerate(split, 1)
        if share
    ]


def torch_stage() -> Stage:
    """Return those of them that need PyTorch, which takes its time."""
    return Stage("torch tests", (*PYTEST, "tests/unit", "-m", "torch and not e2e"), limit=600.0)


def e2e_stages() -> list[Stage]:
    """One stage for every file that needs clusters."""
    return [
        Stage(f"e2e {path.stem.removeprefix('test_')}", (*PYTEST, str(path)), limit=840.0)
        for path in sorted((ROOT / "tests/e2e").glob("test_*.py"))
    ]


def service_stages() -> list[Stage]:
    """One stage for every file with servers of its own: HTTP, PostgreSQL, the aws command."""
    return [
        Stage(f"service {path.stem.removeprefix('test_')}", (*PYTEST, str(path)), limit=600.0)
        for path in sorted((ROOT / "tests/service").glob("test_*.py"))
    ]


def bench_stages() -> list[Stage]:
    """One stage for every file that measures; what they print is shown."""
    return [
        Stage(
            f"bench {path.stem.removeprefix('test_')}",
            (*PYTEST, "-q", "-s", str(path)),
            limit=840.0,
            shows_output=True,
        )
        for path in sorted((ROOT / "tests/bench").glob("test_*.py"))
    ]


def runs_alone(stage: Stage) -> bool:
    """Whether an end-to-end file asks for the machine to itself."""
    return re.search(r"^RUN_ALONE = True$", Path(stage.argv[-1]).read_text(), re.M) is not None


def longest_first(stages: list[Stage], seconds: dict[str, float]) -> list[Stage]:
    """Order by what the stages took last time; before that by the size of their files."""

    def length(stage: Stage) -> tuple[float, int]:
        return seconds.get(stage.name, float("inf")), Path(stage.argv[-1]).stat().st_size

    return sorted(stages, key=length, reverse=True)


# ---------------------------------------------------------------- running


def test_counts(log: str) -> Counter[str]:
    """What pytest's closing line says, as passed, failed and skipped."""
    counts: Counter[str] = Counter()
    closing = [line for line in log.splitlines() if re.search(r"\bin \d[\d.]*s\b", line)]
    if not closing:
        return counts
    for number, word in re.findall(r"(\d+) (\w+)", closing[-1]):
        if word in COUNTED:
            kind = {
                "error": "failed",
                "errors": "failed",
                "xpassed": "passed",
                "xfailed": "skipped",
            }
            counts[kind.get(word, word)] += int(number)
    return counts


class Runner:
    """Runs stages as process groups of their own, and can end them all."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, stage: Stage) -> Result:
        """Run one stage, keep its result and print it."""
        log = RESULTS / (re.sub(r"\W+", "-", stage.name) + ".log")
        begun = time.monotonic()
        code = self._execute(stage, log)
        seconds = time.monotonic() - begun
        text = log.read_text(errors="replace")
        counts = Counter[str]()
        if stage.argv[: len(PYTEST)] == PYTEST:
            counts = test_counts(text)
            if code != 0 and not counts["failed"]:  # it crashed, or collected nothing
                counts["failed"] += 1
        detail = ", ".join(f"{number} {word}" for word, number in counts.items())
        if code is None:
            detail = f"ended after {stage.limit:.0f} s; {detail}".rstrip("; ")
        result = Result(stage.name, "ok" if code == 0 else "FAILED", seconds, detail, counts)
        with self._lock:
            self.results.append(result)
            if not result.good:
                say(f"\n======== {stage.name}: output ========\n{excerpt(text)}")
            elif stage.shows_output:
                say(text.rstrip())
            say(line_of(result))
        return result

    def run_all(self, stages: Iterable[Stage], side_by_side: int = 1) -> None:
        """Run stages, several at a time where that is asked for."""
        pool = ThreadPoolExecutor(side_by_side)
        try:
            list(pool.map(self.run, stages))
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def not_run(self, name: str, why: str) -> None:
        """Note what cannot be run here; the whole is then not good."""
        result = Result(name, "NOT RUN", 0.0, why)
        self.results.append(result)
        say(line_of(result))

    def _execute(self, stage: Stage, log: Path) -> int | None:
        """Exit code of the stage, or None where it was ended for its time."""
        with log.open("wb") as output:
            try:
                process = self._start(stage, output)
            except OSError as error:
                output.write(f"{stage.argv[0]} cannot be started: {error.strerror}\n".encode())
                return 127
            if process is None:
                return 130
            try:
                return process.wait(stage.limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                end_group(process)
                with self._lock:
                    self._running.discard(process)

    def _start(self, stage: Stage, output: IO[bytes]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(
                stage.argv,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def stop(self) -> None:
        """End what runs and start nothing more."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process, so that its fixtures are torn down, then kill what is left of it."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20.0)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(5.0)


# ---------------------------------------------------------------- the clusters of a run


@contextmanager
def own_clusters() -> Iterator[None]:
    """Give the tests a directory for their clusters, and take down what is left in it.

    The directory is locked while the run lives, so a later run finds those of
    runs that were killed.
    """
    for left in CLUSTERS.parent.glob(f"{CLUSTERS.name}*"):
        take_down(left)
    own = Path(tempfile.mkdtemp(prefix=CLUSTERS.name, dir=CLUSTERS.parent))
    own.chmod(0o755)
    lock = os.open(own, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.environ[DIRECTORY_VARIABLE] = str(own)
    try:
        yield
    finally:
        os.close(lock)
        take_down(own)


def take_down(directory: Path) -> None:
    """End all clusters in a directory that no run holds any more, and remove it."""
    if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
        return
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not any(directory.iterdir()):
            directory.rmdir()
            return
        environment = os.environ | {DIRECTORY_VARIABLE: str(directory)}
        command = [str(BIN / "hpresume"), "devcluster", "down", "--all"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode == 0:
            shutil.rmtree(directory)
        else:
            say(f"cannot take down the clusters in {directory}: {done.stderr.strip()}")
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


# ---------------------------------------------------------------- telling


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


def excerpt(text: str, most: int = 150) -> str:
    """Return the end of a long log, without the ends of its long lines."""
    lines = [
        line if len(line) <= 500 else f"{line[:500]} […]" for line in text.rstrip().splitlines()
    ]
    if len(lines) <= most:
        return "\n".join(lines)
    return "\n".join([f"[… {len(lines) - most} lines more in the log]", *lines[-most:]])


def line_of(result: Result) -> str:
    """Return a result as a line of the table."""
    return f"{result.outcome:<8}{result.seconds:7.1f} s  {result.name:<34} {result.detail}".rstrip()


def summary(results: list[Result], seconds: float, *, interrupted: bool = False) -> str:
    """The closing table; its last line is the one that counts the tests."""
    counts = sum((result.counts for result in results), Counter[str]())
    bad = [result.name for result in results if not result.good]
    verdict = "interrupted" if interrupted else f"not ok: {', '.join(bad)}" if bad else "all ok"
    totals = f"{counts['passed']} passed, {counts['failed']} failed"
    if counts["skipped"]:
        totals += f", {counts['skipped']} skipped"
    table = "\n".join(line_of(result) for result in results)
    return f"\n======== summary ========\n{table}\n{verdict} ({seconds:.0f} s)\n\n{totals}"


# ---------------------------------------------------------------- the whole


def run_stages(runner: Runner, *, fast: bool, bench_only: bool, jobs: int) -> None:
    """Everything that was asked for, in an order that leaves those that measure alone."""
    if not bench_only:
        with tempfile.TemporaryDirectory(prefix="hpresume-build-") as scratch:
            stages = [*static_stages(Path(scratch)), *unit_stages(jobs)]
            runner.run_all(stages, side_by_side=jobs)
    if fast:
        return
    if not bench_only and importlib.util.find_spec("torch"):
        runner.run(torch_stage())
    groups = {"e2e": [] if bench_only else e2e_stages(), "bench": bench_stages()}
    services = [] if bench_only else service_stages()
    if os.geteuid() != 0:
        runner.run_all(services, side_by_side=jobs)
        for name, stages in groups.items():
            if stages:
                runner.not_run(name, "dev clusters need root: sudo ./scripts/test")
        return
    alone = [stage for stage in groups["e2e"] if runs_alone(stage)]
    together = [*services, *(stage for stage in groups["e2e"] if stage not in alone)]
    runner.run_all(longest_first(together, last_durations()), side_by_side=min(4, 2 * jobs))
    runner.run_all([*alone, *groups["bench"]])


def last_durations() -> dict[str, float]:
    """Return how long the stages of earlier runs took."""
    try:
        return {
            str(name): float(value) for name, value in json.loads(DURATIONS.read_text()).items()
        }
    except (OSError, ValueError):
        return {}


def main(argv: list[str]) -> int:
    """Run what the arguments ask for and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/test", add_help=False, allow_abbrev=False)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    options, for_pytest = parser.parse_known_args(argv)
    if for_pytest:
        signal.signal(signal.SIGINT, lambda *_: None)  # pytest gets it too, and ends by itself
        with own_clusters():
            return subprocess.call([*PYTEST[:3], *for_pytest], cwd=ROOT)

    RESULTS.mkdir(exist_ok=True)
    runner = Runner()
    begun = time.monotonic()
    interrupted = False
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with own_clusters():
            run_stages(runner, fast=options.fast, bench_only=options.bench, jobs=options.jobs)
    except KeyboardInterrupt:
        interrupted = True
    durations = last_durations() | {r.name: round(r.seconds, 1) for r in runner.results}
    DURATIONS.write_text(json.dumps(durations, indent=1))
    say(summary(runner.results, time.monotonic() - begun, interrupted=interrupted))
    if interrupted:
        return 130
    return 0 if all(result.good for result in runner.results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
