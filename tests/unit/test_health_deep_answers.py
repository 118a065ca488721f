"""What the steps of a deep check print: no text makes a good pair or a Pass of nothing."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import asdict

import pytest
from health_node import SAMPLES, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpresume.health.deep import answers, nccl, tcp_pair
from hpresume.health.deep.matrix import Sample
from hpresume.health.model import Action, Result, Status
from hpresume.slurm.runner import Answer

PAIR = ("n1", "n2")
HOSTS = ("node-a", "node-b")
FAST = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

LAUNCH = """
srun: error: Task launch for StepId=1.7 failed on node n2: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
"""


def read(name: str = "", text: str = "", code: int = 0, stderr: str = "") -> Sample | None:
    return nccl.sample(PAIR, HOSTS, Answer(sample(name) if name else text, stderr, code))


@pytest.mark.parametrize(
    ("name", "gbps"), [("nccl-2.13.txt", 8 * 70.57), ("nccl-2.8.txt", 8 * 10.96)]
)
def test_nccl_of_several_versions(name: str, gbps: float) -> None:
    found = read(name)
    assert found == Sample(PAIR, "nccl", pytest.approx(gbps))


def test_nccl_that_fails_is_a_fault_of_the_pair() -> None:
    found = read("nccl-failure.txt", code=3)
    assert found is not None
    assert found.error.startswith("Test NCCL failure common.cu:1005 'unhandled system error")
    wrong = sample("nccl-2.13.txt").replace("values : 0 OK", "values : 7 FAILED")
    assert read(text=wrong) == Sample(PAIR, "nccl", error="all_reduce_perf got wrong results")


@pytest.mark.parametrize(
    ("name", "stderr", "code"),
    [
        ("nccl-without-mpi.txt", "", 0),
        ("", "slurmstepd-n1: error: execve(): all_reduce_perf: No such file or directory", 2),
        ("", "all_reduce_perf: error while loading shared libraries: libnccl.so.2", 127),
        ("", "", 0),
    ],
    ids=["no MPI between the processes", "not there", "cannot be loaded", "silent"],
)
def test_nccl_that_is_of_no_use_says_nothing(name: str, stderr: str, code: int) -> None:
    assert read(name, stderr=stderr, code=code) is None


def test_nccl_cut_short_is_not_known() -> None:
    text = sample("nccl-2.13.txt").partition("# Out of bounds")[0]
    found = read(text=text, code=137)
    assert found is not None
    assert (found.gbps, bool(found.doubt)) == (None, True)


def test_a_node_that_slurm_cannot_reach() -> None:
    expected = "Task launch for StepId=1.7 failed on node n2: Communication connection failure"
    assert read(stderr=LAUNCH, code=1) == Sample(PAIR, "nccl", error=expected)
    found = answers.without_result(PAIR, "tcp", Answer("", LAUNCH, 1))
    assert found == Sample(PAIR, "tcp", error=expected)


@pytest.mark.parametrize(
    "stderr",
    [
        "slurmstepd-n1: error: execve(): /opt/python: No such file or directory",
        "srun: error: Unable to confirm allocation for job 7: Invalid job id specified",
        "srun: error: Unable to create step for job 7: Job/step already completing or completed",
    ],
)
def test_what_is_no_fault_of_the_pair(stderr: str) -> None:
    found = answers.without_result(PAIR, "tcp", Answer("", stderr, 1))
    assert (found.error, bool(found.doubt)) == ("", True)


def test_results_survive_the_way() -> None:
    sent = (
        Result("gpu-ecc", Status.FAIL, "2 errors", "2", "0", "gcm", Action.REPLACE, 5.0, True),
        Result("clock", Status.PASS, "fine", left_out="x"),
    )
    text = json.dumps({"profile": "deep", "results": [asdict(result) for result in sent]})
    assert answers.results(f"a line of the site\n{text}\n") == sent
    for start in range(1, len(text)):
        assert answers.results(text[:start]) is None
    for bad in ("status", "action", "check"):
        broken = re.sub(rf'"{bad}": "[^"]*"', f'"{bad}": "?"', text, count=1)
        assert answers.results(broken) is None


@pytest.mark.parametrize("text", ["", "{}", '{"results": []}', '{"results": [1]}', "[" * 100_000])
def test_no_results(text: str) -> None:
    assert answers.results(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"up_gbps": 9, "down_gbps": 8.5, "rtt_ms": 0.1}', Sample(PAIR, "tcp", 8.5, 0.1)),
        ('{"error": "n2 to n1: timed out"}', Sample(PAIR, "tcp", error="n2 to n1: timed out")),
        ('{"doubt": "port in use"}', Sample(PAIR, "tcp", doubt="port in use")),
        ('{"up_gbps": NaN, "down_gbps": 8.5, "rtt_ms": 0.1}', None),
        ('{"up_gbps": 9, "down_gbps": -1, "rtt_ms": 0.1}', None),
        ('{"up_gbps": 9, "down_gbps": true, "rtt_ms": 0.1}', None),
        ('{"up_gbps": 9, "down_gbps": 8.5}', None),
        ("[1]", None),
    ],
)
def test_answers_of_the_tcp_test(text: str, expected: Sample | None) -> None:
    assert answers.sample(PAIR, f"motd\n{text}\n") == expected


@FAST
@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    assert answers.results(text) is None
    assert answers.sample(PAIR, text) is None
    found = read(text=text)
    assert found is None or found.gbps is None
    answers.without_result(PAIR, "tcp", Answer(text, text, 1))


@settings(FAST, max_examples=150)
@given(st.data())
def test_damaged_reports_of_nccl(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(p.name for p in SAMPLES.glob("nccl-*.txt"))))
    text = sample(name)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    found = read(text=text[:start] + data.draw(st.text(max_size=8)) + text[end:])
    assert found is None or found.gbps is None or 0 <= found.gbps < 1e16


def both_ends(port: int, address: str = "127.0.0.1", limit: float = 10.0) -> list[str]:
    """What the two ends print, each in a process of its own as in a step."""
    argv = [sys.executable, "-I", "-S", tcp_pair.__file__, "n1", address, str(port), "0.05"]
    running = [
        subprocess.Popen(
            [*argv, str(limit)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SLURMD_NODENAME": name, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"},
        )
        for name in PAIR
    ]
    return [process.communicate(timeout=60)[0] for process in running]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_two_ends_of_the_tcp_test() -> None:
    listener, connector = both_ends(free_port())
    assert listener == ""
    found = answers.sample(PAIR, connector)
    assert found is not None, connector
    assert found.gbps is not None
    assert found.gbps > 0.01
    assert found.rtt_ms is not None
    assert 0 < found.rtt_ms < 5000


def test_a_listener_without_its_port_is_not_known() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        listener, connector = both_ends(port, limit=2)
    for text in (listener + connector, connector + listener):
        found = answers.sample(PAIR, text)
        assert found is not None
        assert "cannot listen at port" in found.doubt


def test_a_partner_that_cannot_be_reached() -> None:
    _, connector = both_ends(free_port(), address="no.such.host.invalid", limit=2)
    found = answers.sample(PAIR, connector)
    assert found is not None
    assert found.error.startswith("n2 to n1 (no.such.host.invalid:")
