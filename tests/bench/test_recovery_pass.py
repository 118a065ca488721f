"""One pass of node recovery over ten thousand nodes of a real slurmctld."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import E2eCluster, wait_for
from measure import hold, report, slowness

pytestmark = pytest.mark.bench

RUN_ALONE = True
NODES = 10_000
ON_A_LINE = 250
PASSES = 15


def cloud_nodes() -> list[str]:
    """CLOUD nodes: they are there for slurmctld without a slurmd.

    With addresses in numbers: slurmctld of 24.11 looks up the name of every node.
    """
    common = "CPUs=8 RealMemory=1000 Gres=gpu:4 State=CLOUD"
    return [
        f"NodeName=cn[{first}-{first + ON_A_LINE - 1}] "
        f"NodeAddr=127.77.{first // ON_A_LINE}.[1-{ON_A_LINE}] {common}"
        for first in range(1, NODES + 1, ON_A_LINE)
    ]


def test_ten_thousand_nodes(machine: None, tmp_path: Path) -> None:
    more = ("info", *cloud_nodes(), f"PartitionName=cloud Nodes=cn[1-{NODES}]")
    cluster = E2eCluster.start(nodes=2, overrides=(("SlurmctldDebug", "\n".join(more)),))
    try:
        # Those that are powered down are shown with this only; not before the cluster is up,
        # since sinfo takes longer for so many than its start may.
        with open(cluster.layout.slurm_conf, "a") as conf:
            conf.write("PrivateData=cloud\n")
        cluster.restart_daemon("slurmctld")
        _measure(cluster, tmp_path)
    finally:
        cluster.down()


def _measure(cluster: E2eCluster, folder: Path) -> None:
    def all_there() -> bool:
        done = cluster.exec(["scontrol", "-o", "show", "node"])
        return done.stdout.count("NodeName=cn") == NODES

    def mark(nodes: str, state: str, reason: str) -> None:
        argv = ["scontrol", "update", f"nodename={nodes}", f"state={state}", f"reason={reason}"]
        cluster.exec(argv, check=True)

    wait_for(all_there, time.monotonic() + 60.0, "not all nodes are there")
    # A usual day: some nodes that people have, an order that waits, one that was misspelt.
    mark("cn[1-100]", "drain", "the fan is loud")
    mark("cn200", "fail", "action:replace")
    argv = ["scontrol", "create", "reservation", "reservationname=work", "users=root"]
    argv += ["nodes=cn300", "starttime=now", "duration=60", "flags=maint"]
    cluster.exec(argv, check=True)
    mark("cn300", "fail", "Action:Replace")

    before = slowness()
    script = str(Path(__file__).with_name("recovery_passes.py"))
    done = subprocess.run(
        [sys.executable, script, cluster.name, str(folder / "c.db"), str(PASSES)],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    bound = round((before + slowness()) / 2, 2)
    hold(
        report(f"recovery, {NODES} nodes: a pass", found["seconds"], "s", bound),
        report(f"recovery, {NODES} nodes: memory", [found["peak_mb"]], "MB", 200.0),
    )
