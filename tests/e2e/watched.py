"""A step that is watched, on two nodes of a job that has a third one to spare.

Which nodes these are is Slurm's choice: one that was just booted may be left out.
"""

from __future__ import annotations

import re

from cluster import E2eCluster
from steps import Run

PROTECTED = "srun --auto-resume=1 -N2 -n2 {rank}; echo code=$?"


class Watched(Run):
    """The run, its nodes, and what there is of the watch step."""

    first: str
    second: str
    spare: str

    @classmethod
    def started(cls, cluster: E2eCluster, body: str = PROTECTED, **environ: str) -> Watched:
        """A run with such a step, which is up."""
        run = cls(cluster, **environ)
        run.start(body)
        return run

    def start(self, body: str) -> None:
        """Submit, and wait until the watch step has come up on all nodes of the job."""
        self.batch(body, "-N3", "--exclusive")
        self.wait_up(1, 2)
        out = self.wait_output(", spare ")
        found = re.search(r"protecting the step on (\w+),(\w+): .*, spare (\w+)\n", out)
        assert found, out
        self.first, self.second, self.spare = found.groups()
        self.wait_watch_step()

    @property
    def nodes(self) -> tuple[str, str, str]:
        """The step's nodes, and the spare."""
        return self.first, self.second, self.spare

    def crash(self) -> None:
        """Crash the second node, which does not run the batch script."""
        assert self.ups(2) == []
        self.cluster.crash(self.second)

    def resumed(self) -> str:
        """Wait until the step runs on its first node and the spare; end it; the output."""
        assert [u.node for u in self.wait_up(2, 2)] == [self.first, self.spare]
        out = self.finish()
        assert "code=0" in out
        assert f"{self.second} is lost" in out
        return out

    def survives(self) -> str:
        """``crash`` and ``resumed``."""
        self.crash()
        return self.resumed()

    def watch_steps(self) -> list[str]:
        """Ids of the watch steps that slurmctld knows."""
        argv = ["squeue", "--steps", f"--jobs={self.job_id}", "--noheader", "--format=%i %j"]
        shown = self.cluster.exec(argv).stdout.splitlines()
        return [line.split()[0] for line in shown if line.endswith(" hpresume-watch")]

    def wait_watch_step(self, other_than: str = "") -> str:
        """Wait until a (new) watch step has an agent on every node; its id."""
        self.wait(
            lambda: self.watch_steps() not in ([], [other_than]), 20, "there is no watch step"
        )
        for node in self.nodes:
            self.wait(lambda node=node: self.agents(node) != [], 20, f"no agent on {node}")
        return self.watch_steps()[0]

    def cancel_watch_step(self) -> str:
        """Cancel it as its owner could; its id."""
        (step,) = self.watch_steps()
        self.cluster.exec(["scancel", step], user="trainer", check=True)
        return step

    def agents(self, node: str) -> list[str]:
        """Pids, inside the node, of the watch agent."""
        return self.pids(node, "resume/agent.py")

    def pids(self, node: str, pattern: str) -> list[str]:
        """The trainer's processes on a node whose command line has ``pattern``."""
        found = self.cluster.exec(["pgrep", "-u", "trainer", "-f", pattern], node)
        return found.stdout.split()
