"""The kernel log: XID errors by the policy's table, machine checks, hung tasks."""

from pathlib import Path

import pytest
from health_node import NOW, FakeNode, policy_of

from hpresume.health.checks.kernel_log import KernelLog, judge_xid, parse, xid_class
from hpresume.health.model import Action, Status

BOOT = NOW - 10_000
OTHER = "6,1,1000,-;Linux version 6.1"


def log(*messages: str, seconds: float = 9_000) -> KernelLog:
    lines = [OTHER, *(f"3,2,{int(seconds * 1e6)},-;{message}" for message in messages)]
    return KernelLog(BOOT, parse("\n".join(lines), BOOT))


def xid(code: int, text: str = "pid=1, name=python, GPU has fallen off the bus.") -> str:
    return f"NVRM: Xid (PCI:0000:3b:00): {code}, {text}"


@pytest.mark.parametrize(
    ("message", "status", "action"),
    [
        (xid(79), Status.FAIL, Action.REBOOT),
        (xid(62), Status.FAIL, Action.REPLACE),
        (xid(54), Status.FAIL, Action.REPLACE),
        (xid(48), Status.FAIL, Action.NONE),
        (xid(9999), Status.FAIL, Action.NONE),
        (xid(13), Status.PASS, Action.NONE),
        (xid(63), Status.PASS, Action.NONE),
        (
            xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
            Status.FAIL,
            Action.REBOOT,
        ),
        (
            xid(154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"),
            Status.PASS,
            Action.NONE,
        ),
        ("INFO: task NVRM: Xid (PCI:0000:3b:00): 79, x", Status.PASS, Action.NONE),
    ],
)
def test_xid(message: str, status: Status, action: Action) -> None:
    result = judge_xid(log(message), policy_of("kernel-xid"), NOW)
    assert (result.status, result.action) == (status, action)


def test_the_worst_xid_leads_and_says_where_and_since_when() -> None:
    result = judge_xid(log(xid(48), xid(79), xid(62)), policy_of("kernel-xid"), NOW)
    assert result.action is Action.REPLACE
    assert result.evidence.startswith("XID 62 on GPU 0000:3b:00 at 2023-11-14T")
    assert result.since == BOOT + 9_000
    assert "NVSentinel" in result.source


def test_the_policy_decides_what_a_code_stands_for() -> None:
    codes = {"74": "replace", "154": "ignore"}
    assert xid_class("74", "", policy_of("kernel-xid", codes=codes)) == "replace"
    assert xid_class(
        "154", "… to (Node Reboot Required)", policy_of("kernel-xid", codes=codes)
    ) == ("ignore")


def test_old_evidence_does_not_count() -> None:
    policy = policy_of("kernel-xid", max_age_s=600)
    assert judge_xid(log(xid(79), seconds=9_500), policy, NOW).status is Status.FAIL
    assert judge_xid(log(xid(79), seconds=9_300), policy, NOW).status is Status.PASS


def test_what_a_process_writes_is_no_evidence() -> None:
    text = f"{OTHER}\n12,3,5000,-;{xid(79)}\n{OTHER}"
    assert judge_xid(KernelLog(BOOT, parse(text, BOOT)), policy_of("kernel-xid"), NOW).status is (
        Status.PASS
    )


def test_an_empty_log_says_nothing() -> None:
    result = judge_xid(KernelLog(BOOT, parse("garbage\n\0", BOOT)), policy_of("kernel-xid"), NOW)
    assert result.status is Status.UNKNOWN


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    node.file("/proc/stat", f"cpu 1 2 3 4\nbtime {int(BOOT)}\n")
    return node


@pytest.mark.parametrize(
    ("name", "message", "action"),
    [
        (
            "kernel-machine-check",
            "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00",
            Action.REPLACE,
        ),
        ("kernel-machine-check", "{1}[Hardware Error]: event severity: fatal", Action.REPLACE),
        (
            "kernel-machine-check",
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0 (channel:0 page:0x12 offset:0x0)",
            Action.REPLACE,
        ),
        (
            "kernel-hung-task",
            "INFO: task kworker/3:1:77 blocked for more than 120 seconds.",
            Action.NONE,
        ),
        (
            "kernel-hung-task",
            "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:9]",
            Action.NONE,
        ),
        (
            "kernel-neuron",
            "neuron:ts_report: NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR instance-id=i",
            Action.REPLACE,
        ),
    ],
)
def test_other_messages(node: FakeNode, name: str, message: str, action: Action) -> None:
    node.file("/dev/kmsg", f"{OTHER}\n2,9,9000000000,-;{message}\n SUBSYSTEM=pci\n")
    result = node.check(name)
    assert (result.status, result.action) == (Status.FAIL, action)
    assert message[:30] in result.evidence
    node.file("/dev/kmsg", f"{OTHER}\n4,9,9000000000,-;EDAC MC0: 1 CE memory read error on x\n")
    assert node.check(name).status is Status.PASS


@pytest.mark.parametrize("name", [
    "NVRM: Xid (PCI:", "NVRM: Xid (1): ", "NVRM: Xid (1):7", "EDAC MC0: 1 UE ", "EDAC MC0: 1 UE",
    "NEURON_HW_ERR=X", "neuron:a: NEURO", "mce: [Hardware ", "Memory failure:", "INFO: task a b",
])  # fmt: skip
@pytest.mark.parametrize(
    "message",
    [
        "{} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "{}[79]: segfault at 0 ip 0 sp 0 error 4 in (1): 79, X_ERROR on page:0x1 UE [5000+1000]",
        "{}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL)",
        "INFO: lockup of {}:79",
    ],
)
def test_a_users_name_is_no_evidence(node: FakeNode, name: str, message: str) -> None:
    assert len(name) <= 15  # as many as the kernel keeps
    node.file("/dev/kmsg", f"{OTHER}\n2,9,9000000000,-;{message.format(name)}\n")
    for check in ("kernel-xid", "kernel-neuron", "kernel-machine-check", "kernel-hung-task"):
        assert node.check(check).status is Status.PASS


def test_without_a_log_or_a_boot_time(node: FakeNode) -> None:
    assert node.check("kernel-xid").status is Status.SKIPPED
    node.file("/dev/kmsg", OTHER)
    assert node.check("kernel-xid").status is Status.PASS
    node.file("/proc/stat", "")
    assert node.check("kernel-xid").status is Status.UNKNOWN


def test_a_user_without_the_right_is_told(node: FakeNode, mocker: object) -> None:
    mocker.patch("os.open", side_effect=PermissionError)  # type: ignore[attr-defined]
    result = node.check("kernel-xid")
    assert result.status is Status.SKIPPED
    assert "root" in result.left_out
