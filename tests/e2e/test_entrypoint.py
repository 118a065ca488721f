"""Both entry point helpers and the examples in real steps, as an ordinary user."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import E2eCluster
from steps import Run

from hpresume.devcluster.spec import CONTROLLER

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 4, "gpus_per_node": 4, "plugin": True}

ROOT = Path(__file__).parent.parent.parent
HELPER = ROOT / "scripts/hpresume-env.sh"
COMMAND = Path(sys.executable).parent / "hpresume"
NAMES = ("NODE_LIST", "MASTER_NODE", "MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK")

# Every task writes what it finds in each way into a file of its own. The last three are the
# pipelines of HyperPod's documentation, with the comments moved off the continuation lines.
PROBE = f"""#!/bin/bash
report=$RUN_DIR/$1.$SLURM_PROCID; shift
show() {{ for name in {" ".join(NAMES)}; do echo "$1 $name ${{!name-}}"; done; }}
(
    echo "task node $SLURMD_NODENAME"; echo "task id $SLURM_NODEID"
    (eval "$({COMMAND} env)" && show python)
    (. {HELPER} && show bash)
    dash -euc '. {HELPER}; for name in {" ".join(NAMES)}; do eval "echo dash $name \\$$name"; done'
    [ -z "${{WITHOUT_SEED-}}" ] || exit 0
    NODE_LIST=$(scontrol show jobid=$SLURM_JOBID |
        awk -F= '/NodeList=/{{print $2}}' |
        grep -v Exc)
    MASTER_NODE=$(scontrol show hostname $NODE_LIST |
        head -n 1)
    MASTER_ADDR=$(scontrol show node=$MASTER_NODE |
        awk -F= '/NodeAddr=/{{print $2}}' |
        awk '{{print $1}}')
    echo "seed NODE_LIST $(scontrol show hostnames $NODE_LIST | paste -sd,)"
    echo "seed MASTER_NODE $MASTER_NODE"; echo "seed MASTER_ADDR $MASTER_ADDR"
    echo "resolved address $(getent ahostsv4 "$MASTER_ADDR" | awk '{{ print $1; exit }}')"
) > "$report.tmp" 2> "$report.err"
mv "$report.tmp" "$report"
"""


@dataclass(frozen=True)
class Report:
    """What one task found, by the way it looked."""

    found: dict[str, dict[str, str]]
    errors: str

    @property
    def node(self) -> str:
        return self.found["task"]["node"]

    @property
    def values(self) -> dict[str, str]:
        """What all helpers agree on."""
        assert self.found["python"] == self.found["bash"] == self.found["dash"], self.errors
        return self.found["python"]


def read(run: Run, name: str, tasks: int, timeout: float = 40.0) -> list[Report]:
    """The reports of all tasks of a step."""
    paths = [run.dir / f"{name}.{rank}" for rank in range(tasks)]
    run.wait(lambda: all(path.exists() for path in paths), timeout, f"no reports of step {name}")
    reports = []
    for path in paths:
        found: dict[str, dict[str, str]] = {}
        for line in path.read_text().splitlines():
            way, key, value = (*line.split(" ", 2), "")[:3]
            found.setdefault(way, {})[key] = value
        reports.append(Report(found, path.with_name(f"{path.name}.err").read_text()))
    return reports


def check(reports: list[Report], job_nodes: list[str] | None = None) -> list[str]:
    """The nodes of the step, on which the tasks were and which all of them found."""
    by_id = {int(report.found["task"]["id"]): report.node for report in reports}
    nodes = [by_id[index] for index in sorted(by_id)]
    for report in reports:
        values = report.values
        assert values["NODE_LIST"].split(",") == nodes
        assert values["MASTER_NODE"] == nodes[0]
        assert values["NNODES"] == str(len(nodes))
        assert values["NODE_RANK"] == report.found["task"]["id"]
        assert values["MASTER_PORT"] == reports[0].values["MASTER_PORT"]
        seed = report.found["seed"]
        assert seed["NODE_LIST"].split(",") == (job_nodes or nodes)
        assert (seed["MASTER_NODE"], seed["MASTER_ADDR"]) == (
            values["MASTER_NODE"],
            values["MASTER_ADDR"],
        )
        assert report.found["resolved"]["address"].count(".") == 3
        assert report.errors == ""
    return nodes


@pytest.fixture
def run(cluster: E2eCluster) -> Iterator[Run]:
    run = Run(cluster)
    run.write("probe.sh", PROBE)
    yield run
    run.stop()


ALL = ["n1", "n2", "n3", "n4"]


def test_tasks_find_the_nodes_of_their_own_step(run: Run) -> None:
    run.batch(
        "export SLURM_OVERLAP=1\n"
        "srun -N4 -n4 ./probe.sh all\n"
        "srun -N3 -n6 --overcommit ./probe.sh some\n"
        "srun -N2 -n2 -w n4,n2 ./probe.sh named\n"
        "srun -N2 -n2 -r2 ./probe.sh late & srun -N2 -n2 ./probe.sh early; wait",
        "-N4", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    assert check(read(run, "all", 4)) == ALL
    assert len(check(read(run, "some", 6), ALL)) == 3
    named = read(run, "named", 2)
    assert [report.values["NODE_LIST"] for report in named] == ["n2,n4", "n2,n4"]
    late, early = read(run, "late", 2), read(run, "early", 2)
    assert [r[0].values["NODE_LIST"] for r in (late, early)] == ["n3,n4", "n1,n2"]
    ports = [r[0].values["MASTER_PORT"] for r in (read(run, "all", 4), named, late, early)]
    assert len(set(ports)) == len(ports)


def test_after_a_shrink_the_removed_node_is_gone(run: Run) -> None:
    run.batch(
        "scontrol update jobid=$SLURM_JOB_ID NodeList=n1,n3,n4\n"
        "rm -f slurm_job_*\n"
        "srun -N3 -n3 ./probe.sh shrunk\n"
        "SLURM_PROCID=0 ./probe.sh batch",
        "-N4", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    reports = read(run, "shrunk", 3)
    assert check(reports) == ["n1", "n3", "n4"]
    (batch,) = read(run, "batch", 1)
    assert batch.values["NODE_LIST"] == "n1,n3,n4"
    assert batch.values["NODE_RANK"] == "0"


def test_every_attempt_finds_its_own_nodes(run: Run, cluster: E2eCluster) -> None:
    run.write("on_up.sh", './probe.sh "attempt$HPRESUME_ATTEMPT"')
    run.batch(
        "srun --auto-resume=1 -N3 -n3 --gres=gpu:4 {rank}; echo code=$?",
        "-N4", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    first = read(run, "attempt1", 3)
    assert check(first, ALL) == ["n1", "n2", "n3"]
    run.wait_watched(1)
    cluster.crash("n2")
    second = read(run, "attempt2", 3)
    assert check(second) == ["n1", "n3", "n4"]
    assert first[0].values["MASTER_PORT"] != second[0].values["MASTER_PORT"]
    assert "code=0" in run.finish()


def test_address_is_what_slurm_says_now(run: Run, cluster: E2eCluster) -> None:
    address = cluster.exec(["getent", "ahostsv4", "n1"], check=True).stdout.split()[0]
    run.batch(
        "srun -N2 -n2 ./probe.sh before\n"
        "while [ ! -e changed ]; do sleep 0.1; done\n"
        "srun -N2 -n2 ./probe.sh after",
        "-N2", "-w", "n1,n2",
    )  # fmt: skip
    before = read(run, "before", 2)
    check(before)
    assert before[0].values["MASTER_ADDR"] == "n1"
    update = ["scontrol", "update", "nodename=n1"]
    cluster.exec([*update, f"nodeaddr={address}"], check=True)
    try:
        run.write("changed", "")
        after = read(run, "after", 2)
        check(after)
        assert after[1].values["MASTER_ADDR"] == address
    finally:
        cluster.exec([*update, "nodeaddr=n1"], check=True)


def test_without_slurmctld_the_step_says_where_it_is(run: Run, cluster: E2eCluster) -> None:
    run.batch(
        "export HPRESUME_ENV_TIMEOUT=3 WITHOUT_SEED=1\n"
        "srun -N3 -n3 bash -c 'while [ ! -e gone ]; do sleep 0.1; done; exec ./probe.sh alone'",
        "-N4", "--exclusive", "--gres=gpu:4",
    )  # fmt: skip
    run.wait(
        lambda: f"{run.job_id}.0" in cluster.exec(["squeue", "-s", "-h", "-o", "%i"]).stdout,
        20,
        "the step does not start",
    )
    for pid in cluster.pids_on(CONTROLLER):
        with suppress(OSError):  # other processes come and go there
            if Path(f"/proc/{pid}/comm").read_text() == "slurmctld\n":
                os.kill(pid, signal.SIGKILL)
    run.write("gone", "")
    try:
        reports = read(run, "alone", 3, timeout=60)
    finally:
        cluster.restart_daemon("slurmctld")
    for rank, report in enumerate(reports):
        assert report.values["NODE_LIST"] == "n1,n2,n3"
        assert report.values["MASTER_ADDR"] == "n1"
        assert report.values["NODE_RANK"] == str(rank)
        assert "hpresume env: scontrol" in report.errors
        assert "hpresume-env.sh: scontrol" in report.errors


def test_shell_of_an_allocation(run: Run, cluster: E2eCluster) -> None:
    shown = "; ".join(f'echo "${{{name}--}}"' for name in NAMES)
    script = f". {HELPER}; {shown}; unset MASTER_PORT; {COMMAND} env --format=json"
    argv = ["salloc", "-Q", "-N2", "-w", "n2,n3", "dash", "-euc", script]
    done = cluster.exec(argv, user="trainer", cwd=run.dir, check=True)
    *values, as_json = done.stdout.splitlines()
    assert values == ["n2,n3", "n2", "n2", values[3], "2", "-"]
    assert json.loads(as_json) == {
        "NODE_LIST": ["n2", "n3"],
        "MASTER_NODE": "n2",
        "MASTER_ADDR": "n2",
        "MASTER_PORT": int(values[3]),
        "NNODES": 2,
        "NODE_RANK": None,
        "source": "job",
    }


# ---------------------------------------------------------------- the examples


def epochs(output: str) -> list[tuple[int, int]]:
    """Attempt and number of every epoch that the output tells of."""
    lines = re.finditer(r"^epoch=(\d+) loss=\S+ nodes=\d+ attempt=(\d+)$", output, re.M)
    return [(int(line[2]), int(line[1])) for line in lines]


def check_resumed(output: str, last: int) -> None:
    """The second attempt went on where the first one ended, up to epoch ``last``."""
    first = [epoch for attempt, epoch in epochs(output) if attempt == 1]
    second = [epoch for attempt, epoch in epochs(output) if attempt == 2]
    saved = int(re.search(r"resumed after epoch=(\d+)", output)[1])  # type: ignore[index]
    # An epoch may be saved and not yet printed when the node is lost.
    assert saved - first[-1] in (0, 1)
    assert second == list(range(saved + 1, last + 1))
    assert re.search(rf"^done epochs={last} accuracy=0\.[89]\d* attempt=2$", output, re.M)


def test_salloc_survives_the_loss_of_the_master(run: Run, cluster: E2eCluster) -> None:
    """Two ranks a node; the node of rank 0 is lost."""
    pytest.importorskip("sklearn")
    train = ROOT / "examples/train_numpy.sh"
    # No "-w": the job keeps n1 as its first node, the node that is lost.
    argv = [
        *("salloc", "-Q", "-N4", "--exclusive", "srun", "--auto-resume=1", "-N3", "-n6"),
        *("--overcommit", "-o", "out", str(train), "--epochs", "12", "--epoch-seconds", "0.7"),
    ]
    environ = {"PYTHON": sys.executable, "CHECKPOINT": "c.npz"}
    with cluster.popen(argv, user="trainer", cwd=run.dir, env=environ) as salloc:
        run.wait(lambda: (1, 3) in epochs(run.output()), 40, "the training does not begin")
        cluster.crash("n1")
        assert salloc.wait(90) == 0
    check_resumed(run.output(), 12)
    hosts = re.findall(r"^rank \d of 6 up on (\S+) attempt 2$", run.output(), re.M)
    assert sorted(hosts) == ["n2", "n2", "n3", "n3", "n4", "n4"]


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="PyTorch is not installed")
def test_torchrun_survives_the_loss_of_a_node(run: Run, cluster: E2eCluster) -> None:
    """examples/batch.sh as it stands, with a spare."""
    torchrun = run.write(
        "torchrun", f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    )
    argv = [
        *("sbatch", "--parsable", "--nodes=4", "--gres=gpu:4", "--output=out"),
        *(str(ROOT / "examples/batch.sh"), "-N", "3", str(ROOT / "examples/train_auto_resume.sh")),
        *("--epochs", "12", "--epoch-seconds", "1"),
    ]
    environ = {"TORCHRUN": str(torchrun), "OMP_NUM_THREADS": "1"}
    done = cluster.exec(argv, user="trainer", cwd=run.dir, env=environ, check=True)
    run.job_id = int(done.stdout.strip())
    run.wait(lambda: (1, 3) in epochs(run.output()), 240, "the training does not begin")
    cluster.crash("n3")
    run.wait(lambda: "done epochs=" in run.output(), 240, "the training does not end")
    output = run.wait_end()
    check_resumed(output, 12)
    assert "node 2 of 3 (n4): master n1 at n1:" in output
