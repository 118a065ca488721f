"""``hpresume check`` as Prolog of a real cluster, with a fault on one node."""

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

pytestmark = pytest.mark.e2e

LOG = "6,1,1000,-;Linux version 6.1\n3,2,2000,-;NVRM: Xid (PCI:0000:3b:00): {}, pid=1, text\n"

# Every node has a root of its own, so that a fault in it is not one of the machine.
PROLOG = """#!/bin/sh
PYTHONPATH={path} exec {python} -m hpresume check --profile prolog \\
    --root {folder}/$SLURMD_NODENAME --policy /dev/null --only kernel-xid \\
    >> {folder}/$SLURMD_NODENAME/log 2>&1
"""


@pytest.fixture
def folder(machine: None) -> Iterator[Path]:
    # Not below /tmp, of which every node has its own.
    folder = Path(tempfile.mkdtemp(prefix="hpresume-prolog-", dir="/var/tmp"))
    folder.chmod(0o755)
    for name, code in (("n1", 79), ("n2", 48)):
        for path, text in (
            ("proc/stat", f"cpu 1 1 1 1\nbtime {int(time.time()) - 100}\n"),
            ("dev/kmsg", LOG.format(code)),
        ):
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)
    program = folder / "prolog"
    path = os.pathsep.join(filter(None, sys.path))
    program.write_text(PROLOG.format(path=path, python=sys.executable, folder=folder))
    program.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_faulty_node_is_drained_and_the_job_runs_elsewhere(
    folder: Path, make_cluster: Callable[..., E2eCluster]
) -> None:
    cluster = make_cluster(nodes=2, overrides=(("Prolog", str(folder / "prolog")),))

    def shown(node: str) -> str:
        command = ["sinfo", "--noheader", f"--nodes={node}", "--format=%T %E"]
        return cluster.exec(command, check=True).stdout.strip()

    # The node that is tried first has a fault; the other one only a warning.
    command = ["sbatch", "--parsable", "--requeue", "-N1", "--output=/dev/null", "--wrap=sleep 60"]
    job = cluster.exec(command, user="trainer", check=True).stdout.strip()
    wait_for(
        lambda: shown("n1").startswith("drained "),
        time.monotonic() + 30,
        "n1 is not drained by its prolog",
    )
    assert "Prolog error" in shown("n1")
    assert shown("n2") in ("idle none", "mixed none", "allocated none")
    show = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    state = cluster.exec(show, check=True).stdout.strip()
    assert state == "PENDING"  # queued again, not failed

    done = cluster.exec(["srun", "-w", "n2", "hostname"], user="trainer", check=True)
    assert done.stdout.strip() == "n2"
    assert "warning  kernel-xid" in (folder / "n2" / "log").read_text()
    assert "action: reboot" in (folder / "n1" / "log").read_text()
