"""The subprocess seam: environment, time limit, and what Slurm's texts mean."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpresume.errors import (
    MissingDependencyError,
    SlurmDeniedError,
    SlurmError,
    SlurmNotFoundError,
    SlurmTimeoutError,
    SlurmTransientError,
)
from hpresume.slurm.answers import TABLE, classify
from hpresume.slurm.runner import Answer, Runner, failure, tool_environment


def test_environment_keeps_the_way_to_slurm_and_drops_the_surrounding_job() -> None:
    environ = {
        "PATH": "/usr/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JWT": "token",
        "SLURM_JOB_ID": "7",
        "SLURM_CLUSTERS": "other",
        "SLURM_BITSTR_LEN": "3",
        "SQUEUE_FORMAT": "%A",
        "SCONTROL_ALL": "1",
        "SALLOC_PARTITION": "x",
        "SBATCH_QOS": "x",
        "LC_ALL": "de_DE.UTF-8",
        "SLURM_TIME_FORMAT": "relative",
    }
    assert tool_environment(environ) == {
        "PATH": "/usr/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JWT": "token",
        "LC_ALL": "C",
        "SLURM_TIME_FORMAT": "%s",
    }


def test_run_gives_both_streams_and_the_exit_code() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    answer = Runner().run([sys.executable, "-c", code], 10)
    assert (answer.stdout, answer.stderr, answer.returncode) == ("out\n", "err\n", 3)


def test_output_that_is_not_utf8_is_read_all_the_same() -> None:
    code = r"import os; os.write(1, b'caf\xe9')"
    assert Runner().check([sys.executable, "-c", code], 10) == "caf\ufffd"


def test_time_limit_ends_the_whole_process_group(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {pid_file}; wait"
    started = time.monotonic()
    with pytest.raises(SlurmTimeoutError, match=r"no answer within 0\.5 s"):
        Runner().run(["sh", "-c", script], 0.5)
    assert time.monotonic() - started < 5
    grandchild = int(pid_file.read_text())
    deadline = time.monotonic() + 5
    while _runs(grandchild) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(grandchild)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_tool_gets_no_terminal_input() -> None:
    assert Runner().check(["cat"], 5) == ""


def test_missing_tool_is_a_missing_dependency() -> None:
    with pytest.raises(MissingDependencyError, match="no-such-tool is not on PATH") as caught:
        Runner({"PATH": os.defpath}).run(["no-such-tool"], 5)
    # To a supervisor it is one more trouble with Slurm, not a reason to end a step.
    assert isinstance(caught.value, SlurmError)


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_no_room_for_one_more_process_passes(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(subprocess, "Popen", no_process)
    with pytest.raises(SlurmTransientError, match="true cannot be started"):
        Runner({"PATH": os.defpath}).run(["true"], 5)


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        # 22.05, as printed by the tools
        (
            "Job update not available right now, the DB index is being set, try again in a bit"
            " for job 1",
            SlurmTransientError,
            "DB index",
        ),
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            SlurmTransientError,
            "connect failure",
        ),
        ("slurm_update error: Slurm backup controller in standby mode", SlurmTransientError, ""),
        ("scontrol: error: Socket timed out on send/recv operation", SlurmTransientError, ""),
        ("Zero Bytes were transmitted or received", SlurmTransientError, ""),
        ("Rate limit exceeded, please retry momentarily", SlurmTransientError, ""),
        ("Job can not be altered now, try again later for job 1", SlurmTransientError, ""),
        (
            'scontrol: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": '
            "No such file or directory (Did you start munged?)\n"
            "slurm_load_jobs error: Protocol authentication error",
            SlurmTransientError,
            "munge.socket",
        ),
        ("slurm_load_jobs error: Invalid job id specified", SlurmNotFoundError, ""),
        ("NodeName=n1 State=IDLE\n\nNode n99 not found", SlurmNotFoundError, "Node n99 not found"),
        ("Job step 2. not found", SlurmNotFoundError, ""),
        ("Job 77 not found", SlurmNotFoundError, ""),
        ("slurm_update error: Invalid node name specified", SlurmNotFoundError, ""),
        ("Access/permission denied for job 1", SlurmDeniedError, ""),
        ("Requested operation is presently disabled for job 1", SlurmDeniedError, ""),
        ("Only batch jobs are accepted or processed for job 2", SlurmDeniedError, ""),
        (
            "salloc: error: Job submit/allocate failed: "
            "Requested operation not supported on this system",
            SlurmDeniedError,
            "",
        ),
        ("Unspecified error for job 3", SlurmError, "Unspecified error"),
        (
            "salloc: Pending job allocation 15\n"
            "salloc: error: Job submit/allocate failed: Requested node configuration is not "
            "available\nsalloc: Job allocation 15 has been revoked.",
            SlurmError,
            "configuration is not available",
        ),
        ("", SlurmError, ""),
    ],
)
def test_what_slurms_texts_mean(text: str, kind: type[SlurmError], line: str) -> None:
    found, said = classify(text)
    assert found is kind
    assert line in said


def test_every_row_of_the_table_has_a_class_of_its_own_kind() -> None:
    kinds = {kind for _, kind in TABLE}
    assert kinds == {SlurmTransientError, SlurmNotFoundError, SlurmDeniedError}


def test_failure_names_the_command_and_slurms_words() -> None:
    code = "import sys; sys.exit('slurm_load_jobs error: Invalid job id specified')"
    with pytest.raises(SlurmNotFoundError, match="Invalid job id specified"):
        Runner().check([sys.executable, "-c", code], 10)


def test_a_host_without_slurm_conf_is_told_what_is_missing() -> None:
    said = (  # 22.05.8 where nothing is configured
        "scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "scontrol: error: fetch_config: DNS SRV lookup failed\n"
        "scontrol: error: _establish_config_source: failed to fetch config\n"
        "scontrol: fatal: Could not establish a configuration source\n"
    )
    error = failure(("scontrol", "show", "node"), Answer("", said, 1))
    assert type(error) is SlurmError
    assert str(error) == (
        "scontrol show node: no slurm.conf is found here: "
        "set SLURM_CONF where it is not in its usual place"
    )
