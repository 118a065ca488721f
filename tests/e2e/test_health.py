"""``hpresume check`` as HealthCheckProgram of a real cluster, with faults injected into one node.

Each node has a root of its own for the checks, so that a fault in it is not one
of the machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import E2eCluster, wait_for
from steps import Run

from hpresume.devcluster.lifecycle import slurm_version
from hpresume.errors import DevClusterError

pytestmark = pytest.mark.e2e

RUN_ALONE = True

INTERVAL = 5
LOG = "6,1,1000,-;Linux version 6.1\n"
XID = "3,2,2000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
MOUNTED = "/dev/sda1 / ext4 rw 0 0\nfs:/shared /shared nfs4 rw 0 0\n"

# slurmd (22.05) gives it next to no environment; this slurm.conf is not in its usual place.
PROGRAM = """#!/bin/sh
. {folder}/environment
PYTHONPATH={path} exec {python} -m hpresume check --mark --root {folder}/$SLURMD_NODENAME \\
    --policy {folder}/health.toml --only kernel-xid,mounts \\
    >> {folder}/$SLURMD_NODENAME/log 2>&1
"""


class Nodes:
    """The roots of the nodes, and the cluster that checks them."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder = folder
        for name in names:
            self.write(name, "proc/stat", f"cpu 1 1 1 1\nbtime {int(time.time()) - 100}\n")
            self.write(name, "dev/kmsg", LOG)
            self.write(name, "proc/self/mounts", MOUNTED)
        (folder / "health.toml").write_text('[mounts]\nrequired = ["/shared"]\nstrikes = 1\n')
        self.program = folder / "health-check"
        self.program.write_text(
            PROGRAM.format(
                path=os.pathsep.join(filter(None, sys.path)), python=sys.executable, folder=folder
            )
        )
        self.program.chmod(0o755)

    def write(self, node: str, name: str, text: str) -> None:
        path = self.folder / node / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def log(self, node: str) -> str:
        try:
            return (self.folder / node / "log").read_text()
        except FileNotFoundError:
            return ""

    def wait_checked(self, node: str) -> None:
        """Wait for the end of a run that began after now."""
        runs = self.log(node).count("mark: ") + 2
        wait_for(
            lambda: self.log(node).count("mark: ") >= runs,
            time.monotonic() + 6 * INTERVAL,
            f"{node} is not checked: {self.log(node)}",
        )


@pytest.fixture
def nodes(machine: None) -> Iterator[Nodes]:
    # Not below /tmp, of which every node has its own.
    folder = Path(tempfile.mkdtemp(prefix="hpresume-health-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield Nodes(folder, ("n1", "n2", "n3", "n4"))
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(nodes: Nodes, make_cluster: Callable[..., E2eCluster]) -> E2eCluster:
    made = make_cluster(
        nodes=4,
        plugin=True,
        overrides=(
            ("HealthCheckProgram", str(nodes.program)),
            ("HealthCheckInterval", str(INTERVAL)),
            ("HealthCheckNodeState", "ANY"),
        ),
    )
    path = made.exec(["printenv", "SLURM_CONF"], check=True).stdout.strip()
    (nodes.folder / "environment").write_text(f"export SLURM_CONF={path}\n")
    return made


def shown(cluster: E2eCluster, node: str) -> tuple[str, str]:
    """State and reason of a node."""
    command = ["sinfo", "--noheader", f"--nodes={node}", "--format=%T|%200E"]
    state, _, reason = cluster.exec(command, check=True).stdout.strip().partition("|")
    return state.rstrip("*"), reason.strip()


def wait_shown(cluster: E2eCluster, nodes: Nodes, node: str, state: str, limit_s: float) -> str:
    try:
        wait_for(
            lambda: shown(cluster, node)[0] == state, time.monotonic() + limit_s, "not in time"
        )
    except DevClusterError:
        log = nodes.log(node)[-2000:]
        pytest.fail(f"{node} does not become {state} but {shown(cluster, node)}: {log}")
    return shown(cluster, node)[1]


_DIES_WHEN_TOLD = """
die="$RUN_DIR/die$HPRESUME_ATTEMPT"
while [ ! -e "$die" ] && [ ! -e "$RUN_DIR/stop" ]; do sleep 0.1; done
[ ! -e "$die" ] || exit 3
"""


def test_a_fault_marks_its_node_and_training_goes_on_elsewhere(
    cluster: E2eCluster, nodes: Nodes
) -> None:
    run = Run(cluster)
    run.write("on_up.sh", _DIES_WHEN_TOLD)
    run.batch(
        "srun --auto-resume=1 -N3 -n3 {rank}; echo code=$?", "-N4", "--exclusive", "--gres=gpu:4"
    )
    run.wait_up(1, 3)
    run.wait_watched(1)
    nodes.wait_checked("n2")
    assert {shown(cluster, f"n{i}")[0] for i in range(1, 5)} == {"allocated"}

    nodes.write("n2", "dev/kmsg", LOG + XID)
    # One interval, and what a run takes on a busy machine.
    reason = wait_shown(cluster, nodes, "n2", "failing", INTERVAL + 5)
    assert reason.startswith("Action:Reboot [hpresume kernel-xid] XID 79 on GPU 0000:3b:00 at ")
    assert {shown(cluster, f"n{i}")[0] for i in (1, 3, 4)} == {"allocated"}
    assert run.ups(2) == []  # training that still runs is left alone

    run.write("die1", "")
    assert [up.node for up in run.wait_up(2, 3)] == ["n1", "n3", "n4"]
    assert "code=0" in run.finish()
    # Slurm's state is FAIL now; the mark is never taken back here.
    nodes.write("n2", "dev/kmsg", LOG)
    nodes.wait_checked("n2")
    assert shown(cluster, "n2") == ("fail", reason)


def test_a_warning_holds_a_node_until_it_is_gone(cluster: E2eCluster, nodes: Nodes) -> None:
    nodes.write("n3", "proc/self/mounts", "/dev/sda1 / ext4 rw 0 0\n")
    reason = wait_shown(cluster, nodes, "n3", "drained", 3 * INTERVAL)
    assert reason == "[hpresume mounts] /shared is not mounted"
    nodes.write("n3", "proc/self/mounts", MOUNTED)
    wait_shown(cluster, nodes, "n3", "idle", 3 * INTERVAL)
    # Slurm 23.11 and 24.11 keep the reason of a node that is resumed.
    kept = (reason,) if slurm_version() >= (23, 11) else ()
    assert shown(cluster, "n3")[1] in ("none", "(null)", "", *kept)

    # An administrator's reason stays, whatever the checks find, and when they find nothing.
    command = ["scontrol", "update", "nodename=n4", "state=drain", "reason=bad fan"]
    cluster.exec(command, check=True)
    nodes.write("n4", "dev/kmsg", LOG + XID)
    nodes.wait_checked("n4")
    assert shown(cluster, "n4") == ("drained", "bad fan")
    nodes.write("n4", "dev/kmsg", LOG)
    nodes.wait_checked("n4")
    assert shown(cluster, "n4") == ("drained", "bad fan")
    assert "left alone: its reason is not ours: bad fan" in nodes.log("n4")
