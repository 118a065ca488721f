"""What is made of the quick health check of a node that came back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpresume.resume.node_check import NodeHealth, check, judge


def printed(*results: tuple[str, str, str, bool]) -> str:
    """The output of ``hpresume check --json``."""
    fields = ("check", "status", "action", "hold")
    found = [dict(zip(fields, r, strict=True)) | {"evidence": "97 C"} for r in results]
    return json.dumps({"profile": "quick", "results": found})


GOOD = ("disk-space", "pass", "none", True)
WARNING = ("gpu-temperature", "fail", "none", False)
ILL = ("gpu-ecc", "fail", "replace", False)
FULL = ("disk-space", "fail", "none", True)
UNKNOWN = ("clock", "unknown", "none", True)

CASES = [
    ("well", 0, printed(GOOD), "", NodeHealth("n3")),
    ("a warning keeps nobody off", 0, printed(GOOD, WARNING), "", NodeHealth("n3")),
    ("an unknown neither", 0, printed(UNKNOWN), "", NodeHealth("n3")),
    ("a fault", 1, printed(GOOD, ILL), "", NodeHealth("n3", ("gpu-ecc: 97 C",))),
    ("a warning that holds", 1, printed(FULL), "", NodeHealth("n3", ("disk-space: 97 C",))),
    (
        "no such program",
        2,
        "",
        "slurmstepd: error: execve(): No such file or directory\nsrun: error: n3: exit 2\n",
        NodeHealth("n3", unknown="srun: error: n3: exit 2"),
    ),
    ("srun's own 1", 1, "", "srun: error: busy\n", NodeHealth("n3", unknown="srun: error: busy")),
    ("cut off", 137, printed(ILL)[:-9], "", NodeHealth("n3", unknown="exit code 137")),
    ("something else", 0, "[]", "", NodeHealth("n3", unknown="exit code 0")),
    ("another release's", 0, '{"results": [{}]}', "", NodeHealth("n3", unknown="exit code 0")),
]


@pytest.mark.parametrize(
    ("code", "out", "err", "wanted"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_judge(code: int, out: str, err: str, wanted: NodeHealth) -> None:
    assert judge("n3", code, out, err) == wanted


def fake_srun(folder: Path, script: str) -> str:
    path = folder / "srun"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def asked(srun: str, *nodes: str, limit_s: float = 20.0, devices: bool = False) -> list[NodeHealth]:
    environ = {"PATH": "/usr/bin:/bin", "SLURM_STEP_ID": "0"}
    return list(check(srun, 7, nodes, environ, limit_s=limit_s, devices=devices))


def test_every_node_is_asked_beside_what_holds_its_resources(tmp_path: Path) -> None:
    """With a FAKE srun that writes down how it was called."""
    answer = f"echo '{printed(GOOD)}'"
    srun = fake_srun(tmp_path, f'echo "$@ id=$SLURM_STEP_ID" >> {tmp_path}/calls; {answer}')
    assert asked(srun, "n2", "n3") == [NodeHealth("n2"), NodeHealth("n3")]
    calls = sorted((tmp_path / "calls").read_text().splitlines(), key=lambda c: "n3" in c)
    for call, node in zip(calls, ("n2", "n3"), strict=True):
        assert f"--nodelist={node} " in call
        assert "--overlap --gres=none" in call
        assert "-m hpresume check --profile quick --at-once --json" in call
        assert call.endswith(" id=")


def test_gpus_are_shared_where_they_would_be_hidden_and_done_without_where_that_fails(
    tmp_path: Path,
) -> None:
    """With a FAKE srun that cannot share the GPUs on n3."""
    answer = f"echo '{printed(GOOD)}'"
    script = f'case "$*" in *--immediate=2*n3*) echo busy >&2; exit 1;; esac; {answer}'
    srun = fake_srun(tmp_path, f'echo "$@" >> {tmp_path}/calls; {script}')
    assert asked(srun, "n2", "n3", devices=True) == [NodeHealth("n2"), NodeHealth("n3")]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 3
    assert "--gres=none" in calls[2]
    assert "--nodelist=n3 " in calls[2]


def test_a_check_that_does_not_end_is_ended(tmp_path: Path) -> None:
    (found,) = asked(fake_srun(tmp_path, "exec sleep 60"), "n3", limit_s=0.2)
    assert found == NodeHealth("n3", unknown="no answer in time")


def test_without_srun_nothing_is_known(tmp_path: Path) -> None:
    (found,) = asked(str(tmp_path / "none"), "n3")
    assert found == NodeHealth("n3", unknown=f"{tmp_path}/none: No such file or directory")
    assert found.text == f"n3 is back; its health is not known: {found.unknown}"


def test_words() -> None:
    assert NodeHealth("n3").text == "n3 is back, and healthy by the quick check"
    assert NodeHealth("n3", ("a: b", "c: d")).text == "n3 is back, but not used: a: b; c: d"
