"""What happens beside a protected step: the step goes on, and stays protected."""

from __future__ import annotations

import signal
import time

import pytest
from cluster import E2eCluster
from steps import Run
from watched import Watched

from hpresume.devcluster import daemons
from hpresume.resume.journal import past_of

pytestmark = pytest.mark.e2e

#: A node that reboots is taken back as if nothing had been.
CLUSTER = {
    "nodes": 5,
    "gpus_per_node": 0,
    "plugin": True,
    "overrides": (("ReturnToService", "2"),),
}


def kill_slurmctld(run: Run) -> None:
    """Kill slurmctld with -9, once it has written down that the job runs."""
    cluster = run.cluster
    began, saved = max(u.t for u in run.ups()), cluster.layout.controller_state / "job_state"
    run.wait(lambda: saved.exists() and saved.stat().st_mtime > began, 20, "no state is saved")
    init = cluster._store.running_init("ctl")
    daemon = daemons.find_daemon("slurmctld", "ctl", init, cluster.layout)
    assert daemon is not None
    daemon.kill(signal.SIGKILL)
    assert daemon.wait_gone(10)


def test_slurmctld_and_slurmd_are_restarted(cluster: E2eCluster) -> None:
    run = Watched.started(cluster)
    watch = run.watch_steps()
    cluster.restart_daemon("slurmctld")
    cluster.restart_daemon("slurmd", run.second)
    kill_slurmctld(run)
    cluster.restart_daemon("slurmctld")
    run.wait(lambda: run.watch_steps() == watch, 20, "the watch step is another one")
    run.survives()


def test_a_node_is_lost_while_slurmctld_is_away(cluster: E2eCluster) -> None:
    run = Watched.started(cluster)
    kill_slurmctld(run)
    run.crash()
    run.wait_output(f"{run.second} silent, and Slurm cannot be asked", timeout=60)
    cluster.restart_daemon("slurmctld")
    run.resumed()


def test_the_supervisor_is_killed(cluster: E2eCluster) -> None:
    run = Watched.started(cluster)
    (record,) = run.events("attempt")
    cluster.exec(["kill", "-KILL", str(record["pid"])], record["host"], check=True)
    run.wait_output("code=137", timeout=10)
    for node in run.nodes:
        for program in ("rank.sh", "resume/agent.py"):
            run.wait(
                lambda node=node, program=program: not run.pids(node, program),
                10,
                f"{program} lives on {node}",
            )
    run.wait_end()
    # The journal has an attempt without an end.
    assert [r["event"] for r in run.journal()] == ["attempt", "watched"]
    past = past_of(run.journal(), record["step"])
    assert past.open_attempt == record
    assert past.attempts == 1


def test_the_watch_step_is_cancelled(cluster: E2eCluster) -> None:
    run = Watched.started(cluster)
    cancelled = run.cancel_watch_step()
    run.wait_output("the watch step ended (")
    run.wait_watch_step(other_than=cancelled)
    out = run.survives()
    assert out.count("; it is started again") == 1
    assert "is silent but its address answers" not in out


def test_a_node_is_lost_while_the_watch_step_is_away(cluster: E2eCluster) -> None:
    run = Watched.started(cluster)
    run.cancel_watch_step()
    run.wait_output("the watch step ended (")
    run.survives()


def test_the_watch_step_is_cancelled_again_and_again(cluster: E2eCluster) -> None:
    run = Watched.started(cluster)
    for _ in range(2):
        run.wait_watch_step(other_than=run.cancel_watch_step())
    run.cancel_watch_step()
    run.wait_output("the watch step does not run (")
    out = run.survives()
    assert out.count("the watch step does not run (") == 1


def test_a_node_that_is_only_slow(cluster: E2eCluster) -> None:
    """Its agent does not get to run, and its slurmd is restarted: nothing is killed."""
    run = Watched.started(cluster)
    slow = run.agents(run.second)
    cluster.exec(["kill", "-STOP", *slow], run.second, check=True)
    words = f"{run.second} is silent but its address answers; the step goes on"
    run.wait_output(words)
    cluster.restart_daemon("slurmd", run.second)
    # The supervisor looks at a silent node every two seconds.
    until = time.monotonic() + 5
    run.wait(lambda: time.monotonic() > until or "attempt 1 ended" in run.output(), 10, "")
    cluster.exec(["kill", "-CONT", *slow], run.second, check=True)
    assert run.survives().count(words) == 1


def test_a_node_is_booted_again_before_it_is_missed(cluster: E2eCluster) -> None:
    """Slurm goes on with the job; the reset connections end the step."""
    run = Watched.started(cluster, HPRESUME_HEARTBEAT_TIMEOUT="60")
    cluster.crash(run.second)
    cluster.boot(run.second, report_boot=True)
    assert [u.node for u in run.wait_up(2, 2)] == [run.first, run.second]
    out = run.finish()
    assert "code=0" in out
    assert f"node failure: {run.second} was booted again" in out
