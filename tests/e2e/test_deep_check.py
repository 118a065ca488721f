"""``hpresume deep-check`` on a real cluster: a bad node is named, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import E2eCluster, wait_for

from hpresume.slurm import parse, reservations

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 4, "overrides": (("MessageTimeout", "4"),)}

NODES = "n[1-4]"
FEATURE = "hpresume_deep"
FEATURES = {"n1": ((), ()), "n2": (("a100", "old"), ("a100",)), "n3": ((), ()), "n4": ((), ())}

POLICY = """
[cpu-stress]
seconds = 1
[pair-network]
seconds = 0.3
patience_s = 5
min_percent = 20
"""

#: Stands for NVIDIA's program, which needs GPUs: the format of nccl-tests 2.13, n2 slow.
FAKE_NCCL = """#!/bin/bash
[ "$SLURM_PROCID" = 0 ] || exit 0
speed=200; rank=0
for host in $(scontrol show hostnames "$SLURM_STEP_NODELIST"); do
    echo "#  Rank  $rank Group  0 Pid   101 on $host device  0 [0x0f] NVIDIA A100-SXM4-40GB"
    [ $host != n2 ] || speed=20
    rank=$((rank + 1))
done
row="536870912 134217728 float sum -1"
echo "  $row    4941.0  108.66  $speed.74      0    4931.0  108.86  $speed.12      0"
echo "# Out of bounds values : 0 OK"
echo "# Avg bus bandwidth    : $speed.43"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not below /tmp, of which every node has its own.
    made = Path(tempfile.mkdtemp(prefix="hpresume-deep-", dir="/var/tmp"))
    made.chmod(0o755)
    (made / "policy.toml").write_text(POLICY)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def features(cluster: E2eCluster) -> None:
    """n2 has features of the administrator, one of them not active."""
    update = ["scontrol", "update", "nodename=n2", "availablefeatures=a100,old"]
    cluster.exec([*update, "activefeatures=a100"], check=True)


def argv(folder: Path, *args: str) -> list[str]:
    command = [sys.executable, "-m", "hpresume", "deep-check"]
    return [*command, "--policy", str(folder / "policy.toml"), *args]


def environ(**more: str) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def deep_check(
    cluster: E2eCluster, folder: Path, *args: str, path: str = ""
) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and what it said meanwhile."""
    more = {"PATH": f"{path}{os.environ['PATH']}"}
    done = cluster.exec(argv(folder, "--json", *args), env=environ(**more), timeout=200)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def node(cluster: E2eCluster, name: str) -> Any:
    shown = cluster.exec(["scontrol", "-o", "show", "node", name], check=True).stdout
    return parse.nodes(shown)[name]


def left_behind(cluster: E2eCluster) -> list[str]:
    """What of a deep check is there now: reservations, jobs, features."""
    shown = cluster.exec(["scontrol", "-o", "show", "reservation"], check=True).stdout
    found = [name for name in reservations.parse(shown) if name.startswith("hpresume-deep")]
    jobs = cluster.exec(["squeue", "-h", "--states=R,PD", "-o", "%j"], check=True).stdout.split()
    found += [f"job {name}" for name in jobs if name.startswith("hpresume-deep")]
    for name, (available, active) in FEATURES.items():
        now = node(cluster, name)
        if (now.available_features, now.features) != (available, active):
            found.append(f"{name}: {now.available_features} {now.features}")
    return found


def states(cluster: E2eCluster) -> dict[str, str]:
    return {name: state.rstrip("*") for name, state in cluster.node_states().items()}


def start(cluster: E2eCluster, folder: Path, *args: str) -> subprocess.Popen[str]:
    """A run in the background, once it is in the deep profile."""
    process = cluster.popen(
        argv(folder, *args),
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def at_work() -> bool:
        assert process.poll() is None, process.communicate()[0]
        steps = cluster.exec(["squeue", "-h", "--steps", "-o", "%j"], check=True).stdout
        return "python" in steps

    wait_for(at_work, time.monotonic() + 30, "the deep check does not start its steps")
    return process


def test_a_node_with_a_bad_network_is_named_and_marked(
    cluster: E2eCluster, folder: Path, features: None
) -> None:
    slow = ["tc", "qdisc", "add", "dev", "eth0", "root"]
    slow += ["tbf", "rate", "20mbit", "burst", "32kb", "latency", "400ms"]
    cluster.exec(slow, "n3", check=True)
    try:
        code, found, said = deep_check(cluster, folder, NODES)
    finally:
        cluster.exec(["tc", "qdisc", "del", "dev", "eth0", "root"], "n3")
    assert (code, found["bad_nodes"], found["bad_links"]) == (1, ["n3"], []), found["pairs"]
    assert {tuple(sorted(p["pair"])) for p in found["pairs"] if p["status"] == "slow"} == {
        ("n1", "n3"),
        ("n2", "n3"),
        ("n3", "n4"),
    }
    ran = {r["check"]: r["status"] for r in found["nodes"]["n1"]["results"]}
    assert (ran["cpu-stress"], ran["pair-network"]) == ("pass", "pass")
    assert "set FAIL" in said

    wait_for(
        lambda: states(cluster) == {"n1": "idle", "n2": "idle", "n3": "fail", "n4": "idle"},
        time.monotonic() + 20,
        f"not given back: {states(cluster)}",
    )
    reason = node(cluster, "n3").reason
    assert reason.startswith("Action:Reboot [hpresume pair-network] 3 of 3 pairs bad: with n"), (
        reason
    )
    assert left_behind(cluster) == []


def test_interrupted_runs_leave_nothing_and_busy_nodes_are_left_alone(
    cluster: E2eCluster, folder: Path, features: None
) -> None:
    (folder / "policy.toml").write_text(POLICY.replace("seconds = 1", "seconds = 120"))
    run = start(cluster, folder, NODES)
    assert node(cluster, "n2").features == ("a100", FEATURE)
    assert node(cluster, "n2").available_features == ("a100", "old", FEATURE)
    second = cluster.exec(argv(folder, "n1"), env=environ())
    assert (second.returncode, second.stderr) == (
        2,
        "hpresume: a deep check runs on this host already: wait for it\n",
    )
    cluster.send_signal(run, signal.SIGTERM)
    run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM
    assert left_behind(cluster) == []
    wait_for(
        lambda: set(states(cluster).values()) == {"idle"}, time.monotonic() + 30, "not idle again"
    )

    run = start(cluster, folder, NODES)
    cluster.send_signal(run, signal.SIGKILL)
    run.communicate(timeout=60)
    assert len(left_behind(cluster)) == 6  # reservation, job, the feature of four nodes

    # Whoever cleans up does so even if it finds no node to check.
    (folder / "policy.toml").write_text(POLICY)
    failed = cluster.exec(argv(folder, "n9"), env=environ())
    said = "Slurm knows no node n9: nothing is checked"
    assert (failed.returncode, said in failed.stderr) == (2, True), failed.stderr
    assert left_behind(cluster) == []
    wait_for(
        lambda: set(states(cluster).values()) == {"idle"}, time.monotonic() + 30, "not idle again"
    )

    job = cluster.exec(
        ["sbatch", "--parsable", "-w", "n4", "--wrap", "sleep 300", "-o", "/dev/null"],
        user="trainer",
        check=True,
    ).stdout.strip()
    wait_for(lambda: states(cluster)["n4"] != "idle", time.monotonic() + 10, "no job on n4")
    code, found, _ = deep_check(cluster, folder, NODES)
    assert code == 0, found
    assert list(found["left_out"]) == ["n4"]
    assert "left to its jobs" in found["left_out"]["n4"]
    assert list(found["nodes"]) == ["n1", "n2", "n3"]
    assert cluster.jobs() == [job]
    assert left_behind(cluster) == []

    # With a wait it takes the node once the job has ended, which goes on until then.
    run = cluster.popen(
        argv(folder, "--wait", "120", "--only", "pair-network", "n[3-4]"),
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "waiting for n4 to become idle\n"
    assert cluster.jobs() == [job]
    cluster.exec(["scancel", job], check=True)
    said, _ = run.communicate(timeout=100)
    assert (run.returncode, "pairs: 1 good" in said) == (0, True), said
    assert left_behind(cluster) == []


def test_nccl_where_it_is_present(cluster: E2eCluster, folder: Path, features: None) -> None:
    tool = folder / "all_reduce_perf"
    tool.write_text(FAKE_NCCL)
    tool.chmod(0o755)
    arguments = ("--only", "pair-network", "--no-mark", NODES)
    code, found, _ = deep_check(cluster, folder, *arguments, path=f"{folder}:")
    assert {pair["tool"] for pair in found["pairs"]} == {"nccl"}
    assert (code, found["bad_nodes"], found["bad_links"]) == (1, ["n2"], []), found["pairs"]
    wait_for(
        lambda: set(states(cluster).values()) == {"idle"}, time.monotonic() + 20, "marked, or held"
    )
    assert left_behind(cluster) == []


def test_nodes_that_are_reserved_soon_are_left_alone(
    cluster: E2eCluster, folder: Path, features: None
) -> None:
    when = {"soon": ("n2", "now+120"), "later": ("n1", "now+3days")}
    for name, (host, start) in when.items():
        reserve = ["scontrol", "create", "reservation", f"reservationname={name}", "users=root"]
        reserve += [f"nodes={host}", f"starttime={start}", "duration=10"]
        cluster.exec(reserve, check=True)
    try:
        code, found, _ = deep_check(cluster, folder, "--only", "mounts", "n[1-2]")
    finally:
        for name in when:
            cluster.exec(["scontrol", "delete", f"reservationname={name}"])
    assert (code, list(found["nodes"])) == (0, ["n1"])
    assert found["left_out"] == {"n2": "reservation soon has it before the check would end"}
    assert left_behind(cluster) == []


def test_a_node_lost_in_the_middle_is_named(
    cluster: E2eCluster, folder: Path, features: None
) -> None:
    text = POLICY.replace("seconds = 1", "seconds = 4") + "rounds = 2\n"
    (folder / "policy.toml").write_text(text)
    run = start(cluster, folder, NODES)
    cluster.disconnect("n3")
    said, _ = run.communicate(timeout=200)
    assert run.returncode == 1, said
    assert "n3: 1 fail, 1 unknown" in said
    assert "mark: n3 set FAIL: Action:Reboot [hpresume pair-network] 2 of 2 pairs bad" in said
    assert left_behind(cluster) == []
    wait_for(
        lambda: {s for n, s in states(cluster).items() if n != "n3"} == {"idle"},
        time.monotonic() + 20,
        f"not given back: {states(cluster)}",
    )
