"""The examples as a user runs them, on this machine instead of on nodes."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SYSTEM_PATH = "/usr/bin:/bin"


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def kill_with_children(pid: int) -> None:
    """What the loss of a node does; torchrun's workers are in sessions of their own."""
    os.kill(pid, signal.SIGSTOP)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[1] == str(pid):
                kill_with_children(int(stat.parent.name))
    os.kill(pid, signal.SIGKILL)


def fake_tool(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


# ---------------------------------------------------------------- the scripts


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], ["--auto-resume=1", "train_auto_resume.sh"]),
        (
            ["-N", "3", "./my train.sh", "a b"],
            ["--auto-resume=1", "-N", "3", "./my train.sh", "a b"],
        ),
    ],
)
def test_batch_script_hands_its_arguments_to_srun(tmp_path, args, expected):
    fake_tool(tmp_path / "bin", "srun", 'for a; do echo "$a"; done; exit 7')
    done = subprocess.run(
        ["bash", EXAMPLES / "batch.sh", *args],
        env={"PATH": f"{tmp_path}/bin:{SYSTEM_PATH}"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == expected
    assert done.returncode == 7


SCONTROL = r"""case $* in
(*step*) printf 'StepId=7.0 UserId=0\n   State=RUNNING NodeList=n[1-2]\n' ;;
(*node*) printf 'NodeName=n1\n   NodeAddr=10.0.0.1 NodeHostName=n1\n' ;;
esac"""
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NNODES": "2", "SLURMD_NODENAME": "n2"}


def test_train_auto_resume_starts_torchrun(tmp_path):
    fake_tool(tmp_path / "bin", "scontrol", SCONTROL)
    fake_tool(tmp_path / "bin", "torchrun", 'for a; do echo "arg $a"; done')
    done = subprocess.run(
        [EXAMPLES / "train_auto_resume.sh", "--epochs", "3"],
        env={"PATH": f"{tmp_path}/bin:{SYSTEM_PATH}", "MASTER_PORT": "23456"} | STEP,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, *words = done.stdout.splitlines()
    assert first.startswith("node 1 of 2 (")
    assert first.endswith("master n1 at 10.0.0.1:23456, attempt 1")
    assert [word.removeprefix("arg ") for word in words] == [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--node-rank=1",
        "--master-addr=10.0.0.1",
        "--master-port=23456",
        "--max-restarts=0",
        str(EXAMPLES / "train_ddp.py"),
        "--checkpoint",
        "digits-7.pt",
        "--epochs",
        "3",
    ]


@pytest.mark.parametrize("script", ["train_auto_resume.sh", "train_numpy.sh"])
def test_training_does_not_start_where_the_nodes_are_not_known(tmp_path, script):
    fake_tool(tmp_path / "bin", "scontrol", "exit 1")
    fake_tool(tmp_path / "bin", "torchrun", "echo started")
    fake_tool(tmp_path / "bin", "python3", "echo started")
    done = subprocess.run(
        [EXAMPLES / script],
        env={"PATH": f"{tmp_path}/bin:{SYSTEM_PATH}", "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert "the nodes are not known" in done.stderr


# ---------------------------------------------------------------- ranks on this machine


class Ranks:
    """The ranks of one attempt, with their output in a file each."""

    def __init__(self, folder: Path, attempt: int = 1):
        self.folder, self.attempt, self.port = folder, attempt, free_port()
        self.processes: list[subprocess.Popen] = []

    def start(self, argv, environ):
        number = len(self.processes)
        with self.output_file(number).open("w") as output:
            process = subprocess.Popen(
                [str(word) for word in argv],
                cwd=self.folder,
                env=os.environ | {"HPRESUME_ATTEMPT": str(self.attempt)} | environ,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)

    def start_numpy(self, count, *args, only=None):
        for rank in range(count) if only is None else only:
            environ = {
                "SLURM_JOB_ID": "7",
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.port),
                "NNODES": str(count),
                "OPENBLAS_NUM_THREADS": "1",
            }
            self.start([sys.executable, EXAMPLES / "train_numpy.py", *args], environ)
        return self

    def output_file(self, number):
        return self.folder / f"attempt{self.attempt}.{number}.out"

    def output(self, number=0):
        return self.output_file(number).read_text()

    def epochs(self):
        return [int(number) for number in re.findall(r"^epoch=(\d+) ", self.output(), re.M)]

    def wait_for_epoch(self, epoch, timeout=60):
        deadline = time.monotonic() + timeout
        while epoch not in self.epochs():
            assert time.monotonic() < deadline, self.output()
            assert self.processes[0].poll() is None, self.output()
            time.sleep(0.02)

    def wait(self, timeout=60):
        return [process.wait(timeout) for process in self.processes]

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                kill_with_children(process.pid)
            process.wait()


@pytest.fixture
def attempts(tmp_path):
    """Make the ranks of an attempt; none of them outlives the test."""
    pytest.importorskip("numpy")
    pytest.importorskip("sklearn")
    made = []

    def make(attempt=1, folder=tmp_path):
        folder.mkdir(exist_ok=True)
        made.append(Ranks(folder, attempt))
        return made[-1]

    yield make
    for ranks in made:
        ranks.end()


def weights(checkpoint):
    import numpy as np

    with np.load(checkpoint) as saved:
        return int(saved["epoch"]), saved["weights"].tobytes(), saved["momentum"].tobytes()


EPOCHS = 8
ARGS = ("--epochs", EPOCHS, "--checkpoint", "c.npz")


def test_training_learns_and_says_so(attempts, tmp_path):
    ranks = attempts().start_numpy(3, *ARGS)
    assert ranks.wait() == [0, 0, 0]
    for rank in range(3):
        first = ranks.output(rank).splitlines()[0]
        assert first == f"rank {rank} of 3 up on {socket.gethostname()} attempt 1"
    lines = ranks.output().splitlines()[1:]
    for number, line in enumerate(lines[:-1], start=1):
        assert re.fullmatch(rf"epoch={number} loss=\d+\.\d{{4}} nodes=3 attempt=1", line)
    assert len(lines) == EPOCHS + 1
    assert float(re.search(r"accuracy=(\S+)", lines[-1])[1]) > 0.8
    assert sorted(path.name for path in tmp_path.glob("*c.npz*")) == ["c.npz"]


@pytest.mark.parametrize("killed", [0, 2], ids=["master", "another rank"])
def test_resumed_training_ends_as_an_uninterrupted_one(attempts, tmp_path, killed):
    whole = attempts(1, tmp_path / "whole").start_numpy(3, *ARGS)
    assert whole.wait() == [0, 0, 0]

    first = attempts(1).start_numpy(3, *ARGS, "--epoch-seconds", "0.4")
    first.wait_for_epoch(3)
    first.processes[killed].kill()
    assert all(first.wait())
    last = first.epochs()[-1]
    assert 3 <= last < EPOCHS

    second = attempts(2).start_numpy(3, *ARGS)
    assert second.wait() == [0, 0, 0]
    assert f"resumed after epoch={last} from c.npz" in second.output()
    assert second.epochs() == list(range(last + 1, EPOCHS + 1))
    assert "nodes=3 attempt=2" in second.output()
    assert weights(tmp_path / "c.npz") == weights(tmp_path / "whole/c.npz")


def test_finished_training_is_not_repeated(attempts):
    assert attempts(1).start_numpy(1, *ARGS).wait() == [0]
    again = attempts(2).start_numpy(1, *ARGS)
    assert again.wait() == [0]
    assert again.epochs() == []
    assert f"done epochs={EPOCHS}" in again.output()


def test_rank_that_falls_silent_is_waited_for_within_the_bound(attempts):
    ranks = attempts().start_numpy(3, *ARGS, "--epoch-seconds", "0.3", "--peer-timeout", "2")
    ranks.wait_for_epoch(1)
    ranks.processes[1].send_signal(signal.SIGSTOP)
    assert ranks.processes[0].wait(30) == 1
    assert ranks.output().splitlines()[-1] == "rank 0: a rank was silent for 2 s"


def test_rank_without_a_master_ends(attempts):
    ranks = attempts().start_numpy(2, *ARGS, "--peer-timeout", "1", only=[1])
    assert ranks.wait() == [1]
    assert re.search(
        r"^rank 1: rank 0 at 127\.0\.0\.1:\d+ does not answer .* after 1 s$", ranks.output(), re.M
    )


def test_strangers_do_not_join(attempts):
    """A scanner of ports, and a rank that an earlier attempt has left behind."""
    ranks = attempts(2)
    stale = attempts(1)
    stale.port = ranks.port
    stale.start_numpy(2, *ARGS, "--peer-timeout", "6", only=[1])
    ranks.start_numpy(2, *ARGS, "--epoch-seconds", "0.1", only=[0])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", ranks.port), 1) as scanner:
                scanner.sendall(b"GET / HTTP/1.0\r\n\r\n" * 4)
            break
        except OSError:
            time.sleep(0.05)
    ranks.start_numpy(2, *ARGS, "--epoch-seconds", "0.1", only=[1])
    assert ranks.wait() == [0, 0]
    assert ranks.epochs() == list(range(1, EPOCHS + 1))
    assert stale.wait() == [1]


def test_what_is_no_checkpoint_is_named(attempts, tmp_path):
    (tmp_path / "c.npz").write_text("something else")
    ranks = attempts().start_numpy(1, *ARGS)
    assert ranks.wait() == [1]
    assert ranks.output().splitlines()[-1].startswith("c.npz is no checkpoint of this program: ")


# ---------------------------------------------------------------- the parts


@pytest.fixture
def example_module(monkeypatch):
    """Import a module of the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name):
        for known in ("atomic", "digits", "train_numpy"):
            monkeypatch.delitem(sys.modules, known, raising=False)
        return importlib.import_module(name)

    return load


def test_checkpoint_is_replaced_whole_or_not_at_all(example_module, tmp_path):
    atomic = example_module("atomic")
    path = tmp_path / "c"
    atomic.replace(path, lambda file: file.write(b"first"))

    def fail(file):
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        atomic.replace(path, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert path.read_bytes() == b"first"
    atomic.replace(path, lambda file: file.write(b"second"))
    assert path.read_bytes() == b"second"


def test_later_checkpoint_is_kept(example_module, tmp_path):
    """What a cut off rank 0 of an earlier attempt writes when it is let go on."""
    pytest.importorskip("sklearn")
    training = example_module("train_numpy")
    path = tmp_path / "c.npz"
    start = training.untrained()
    for epoch in (3, 2):
        training.save(path, training.State(epoch, start.weights, start.momentum))
    assert training.load(path).epoch == 3


def test_state_survives_its_way_through_the_network(example_module):
    pytest.importorskip("sklearn")
    training = example_module("train_numpy")
    start = training.untrained()
    again = training.State.of(training.State(7, start.weights, start.weights * 2).flat())
    assert again.epoch == 7
    assert (again.weights == start.weights).all()
    assert (again.momentum == start.weights * 2).all()


def test_gradient_is_the_slope_of_the_loss(example_module):
    np = pytest.importorskip("numpy")
    pytest.importorskip("sklearn")
    training, digits = example_module("train_numpy"), example_module("digits")
    images, labels = (part[:5] for part in digits.load())
    weights_now = training.first_weights()
    _, gradient = training.loss_and_gradient(weights_now, images, labels)
    for index in np.random.default_rng(1).choice(len(weights_now), 20, replace=False):
        step = np.zeros_like(weights_now)
        step[index] = 1e-6
        up, _ = training.loss_and_gradient(weights_now + step, images, labels)
        down, _ = training.loss_and_gradient(weights_now - step, images, labels)
        assert gradient[index] == pytest.approx((up - down) / 2e-6, abs=1e-4)


def test_digits_are_scikit_learns(example_module):
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = example_module("digits").load()
    expected_images, expected_labels = datasets.load_digits(return_X_y=True)
    assert (images * 16.0 == expected_images).all()
    assert (labels == expected_labels).all()


# ---------------------------------------------------------------- torchrun


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="PyTorch is not installed")
def test_torchrun_training_resumes(attempts, tmp_path):
    """Two torchrun, as on two nodes; one of them dies with its rank in mid-training."""

    def start(ranks, *args):
        for node in range(2):
            argv = [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}", "--max-restarts=0"),
                *("--master-addr=127.0.0.1", f"--master-port={ranks.port}"),
                *(EXAMPLES / "train_ddp.py", "--checkpoint", "c.pt", *args),
            ]
            ranks.start(argv, {"NNODES": "2", "OMP_NUM_THREADS": "1"})
        return ranks

    first = start(attempts(1), "--epochs", 12, "--epoch-seconds", 0.5)
    first.wait_for_epoch(3, timeout=180)
    kill_with_children(first.processes[1].pid)
    assert all(first.wait(180))
    last = first.epochs()[-1]

    second = start(attempts(2), "--epochs", 12)
    assert second.wait(180) == [0, 0], second.output()
    assert f"resumed after epoch={last} from c.pt" in second.output()
    assert second.epochs() == list(range(last + 1, 13))
    assert re.search(r"^epoch=12 loss=\d+\.\d{4} nodes=2 attempt=2$", second.output(), re.M)
    assert re.search(r"^done epochs=12 accuracy=0\.[89]", second.output(), re.M)
