"""The same step three times at once: plain, protected, and protected with resume_on = "any".

Whatever ends a plain step in a certain way has to end the others in the same
way, with the same exit code and without a second attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster import E2eCluster
from steps import Run

#: A batch script that takes a cancellation in its stride, so that it can tell
#: srun's exit code. The step's own process, plain or protected, is in ``pid``.
SCRIPT = """trap : TERM
bash -c 'echo $$ > $RUN_DIR/pid; exec srun {options} {{rank}}'
echo code=$?"""


class Trio:
    """Three jobs of ``nodes`` nodes each, with one step over all of them."""

    def __init__(
        self, cluster: E2eCluster, *sbatch: str, nodes: int = 2, step: str = "", on_up: str = ""
    ) -> None:
        self.plain = Run(cluster)
        self.protected = Run(cluster)
        self.eager = Run(cluster, HPRESUME_RESUME_ON="any", HPRESUME_BACKOFF="0")
        for run in self:
            if on_up:
                run.write("on_up.sh", on_up)
            protection = "" if run is self.plain else "--auto-resume=1"
            options = f"{protection} -N{nodes} -n{nodes} {step}"
            run.batch(SCRIPT.format(options=options), f"-N{nodes}", "--exclusive", *sbatch)
        for run in self:
            run.wait_up(0 if run is self.plain else 1, nodes)
        for run in (self.protected, self.eager):
            run.wait_watched(1)

    def __iter__(self) -> Iterator[Run]:
        return iter((self.plain, self.protected, self.eager))

    def ended(self, *causes: str, for_good: bool = True) -> str:
        """Assert that all three ended alike, unresumed; the exit code that their scripts saw.

        ``causes`` are those that may be in the journal. Without ``for_good`` their
        jobs go back to the queue.
        """
        for run in self:
            run.wait_output("code=", timeout=120)
            if for_good:
                run.wait_end()
        codes = [re.findall(r"^code=(\d+)$", run.output(), re.MULTILINE) for run in self]
        assert codes == [codes[0]] * 3
        (code,) = codes[0]
        for run in (self.protected, self.eager):
            (record,) = run.events("ended")
            assert record["cause"] in causes
            assert len(run.events("attempt")) == 1
            assert {up.attempt for up in run.ups()} == {1}
        return code


def kill_srun(run: Run, signal: str) -> None:
    """Send a signal to what a run's batch script sees as srun."""
    host = min(run.ups(), key=lambda up: up.rank).node
    pid = run.output("pid").strip()
    run.cluster.exec(["kill", f"-{signal}", pid], host, "trainer", check=True)


def step_of(run: Run) -> str:
    """The id of the step with the ranks, such as ``7.0``."""
    argv = ["squeue", "--steps", f"--jobs={run.job_id}", "--noheader", "--format=%i %j"]
    listed = run.cluster.exec(argv, check=True).stdout.splitlines()
    (step,) = [line.split()[0] for line in listed if line.endswith(" rank.sh")]
    return step
