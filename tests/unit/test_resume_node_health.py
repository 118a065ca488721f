"""What counts as evidence against a node, and how it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpresume.config import ResumeSettings
from hpresume.health.after_failure import PREFIX
from hpresume.resume.model import Cause, Sign, Verdict
from hpresume.resume.node_health import (
    HealthFinding,
    HealthReport,
    doubts,
    faults_in,
    is_due,
    parse_report,
    still_unhealthy,
)
from hpresume.slurm.models import Job, JobState, Node

NOW = 1_000_000.0
NODES = ("n1", "n2", "n3")
XID = HealthFinding("n2", "kernel-xid", "fail", "XID 79", "reboot", NOW)
ECC = HealthFinding("n2", "gpu-ecc", "fail", "2 errors", "replace", NOW)


def test_reading_what_nodes_print() -> None:
    text = (
        f"{PREFIX} n1 done 18\n"
        "srun: warning: something else\n"
        f"{PREFIX} n2 fail kernel-xid reboot 12.5 XID 79 on GPU 0:  gone\n"
        f"{PREFIX} n2 unknown gpu-ecc none 0.0 nvidia-smi did not answer\n"
        f"{PREFIX} n9 fail gpu-ecc replace 0.0 not of this step\n"
        f"{PREFIX} n2 fail gpu-ecc replace"
    )
    assert parse_report(text, NODES, NOW) == HealthReport(
        (
            HealthFinding(
                "n2", "kernel-xid", "fail", "XID 79 on GPU 0:  gone", "reboot", NOW - 12.5
            ),
            HealthFinding("n2", "gpu-ecc", "unknown", "nvidia-smi did not answer", "none", NOW),
        ),
        ("n2", "n3"),  # cut off in the middle, and never heard
    )


WORDS = st.sampled_from(
    [PREFIX, "n1", "n2", "fail", "unknown", "done", "reboot", "none", "0", "-1", "nan", "1e9", "é"]
)


@given(st.lists(st.lists(WORDS, max_size=8).map(" ".join)).map("\n".join) | st.text())
def test_no_output_breaks_it_or_blames_without_a_fault(text: str) -> None:
    report = parse_report(text, NODES, NOW)
    for fault in faults_in(report.findings, NOW - 100):
        assert f"{PREFIX} {fault.node} fail" in text
        assert fault.sign is Sign.UNHEALTHY
    assert isinstance(doubts(report, 10.0), str)


@pytest.mark.parametrize(
    ("finding", "counts"),
    [
        (XID, True),
        (ECC, True),
        (replace(XID, action="none"), False),
        (replace(XID, result="unknown"), False),
        (replace(XID, result="pass"), False),
        (replace(XID, action="unheard-of"), False),
        (replace(XID, since=NOW - 159), True),
        (replace(XID, since=NOW - 161), False),
    ],
)
def test_what_is_evidence(finding: HealthFinding, counts: bool) -> None:
    assert bool(faults_in([finding], started=NOW - 100)) is counts


def test_one_fault_a_node_with_the_gravest_first() -> None:
    other = replace(ECC, node="n3")
    third = replace(XID, check="gpu-count", evidence="1 of 2")
    faults = faults_in([XID, third, ECC, other], NOW)
    assert [f.node for f in faults] == ["n2", "n3"]
    assert faults[0].evidence == (
        "fails health check gpu-ecc (2 errors; action: replace),"
        " kernel-xid (XID 79; action: reboot) and 1 more"
    )


def test_what_is_not_known_is_said() -> None:
    assert doubts(HealthReport((XID,)), 10.0) == ""
    hangs = replace(XID, check="gpu-count", result="unknown", evidence="no answer", action="none")
    more = replace(hangs, check="gpu-ecc")
    report = HealthReport((hangs, more, replace(hangs, node="n1")), ("n3",))
    assert doubts(report, 10.0) == (
        "n3: no answer within 10 s; n2: gpu-count: no answer; n1: gpu-count: no answer"
    )
    assert doubts(report, 0.5, []).startswith("n3: no answer within 0.5 s")
    assert doubts(report, 10.0, ["n2"]) == ("n3: no answer within 10 s; n1: gpu-count: no answer")
    many = HealthReport((), tuple(f"n{i}" for i in range(9)))
    assert doubts(many, 10.0).endswith("; and 6 more")


RUNNING = Job(7, JobState.RUNNING)
DEFAULT = ResumeSettings()


@pytest.mark.parametrize(
    ("cause", "settings", "job", "allocates", "due"),
    [
        (Cause.APPLICATION, DEFAULT, RUNNING, False, True),
        (Cause.HANG, DEFAULT, RUNNING, False, True),
        (Cause.APPLICATION, DEFAULT, RUNNING, True, False),  # its allocation is gone
        (Cause.APPLICATION, replace(DEFAULT, health_check=0.0), RUNNING, False, False),
        (Cause.APPLICATION, DEFAULT, replace(RUNNING, state=JobState.FAILED), False, False),
        *(
            (cause, DEFAULT, RUNNING, False, False)
            for cause in Cause
            if cause not in (Cause.APPLICATION, Cause.HANG)
        ),
    ],
)
def test_when_nodes_are_checked(
    cause: Cause, settings: ResumeSettings, job: Job, allocates: bool, due: bool
) -> None:
    assert is_due(Verdict(cause), settings, job, allocates) is due


def test_an_unhealthy_node_is_good_again_after_a_boot() -> None:
    blamed = {"n1": NOW, "n2": NOW, "n3": NOW}
    nodes = {
        "n1": Node("n1", frozenset({"ALLOCATED"}), boot_time=NOW - 5),
        "n2": Node("n2", frozenset({"ALLOCATED"}), boot_time=NOW + 5),
    }
    assert still_unhealthy(blamed, nodes) == {"n1", "n3"}
