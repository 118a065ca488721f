"""The kernel log from journald, for those who may not read /dev/kmsg."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from health_node import NOW, FakeNode
from hypothesis import given
from hypothesis import strategies as st

from hpresume.health.checks.journal import Record, parse
from hpresume.health.model import Action, Status

BOOT = NOW - 10_000
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."


def line(message: Any, **fields: Any) -> str:
    """A record as journalctl of systemd 252 prints it."""
    values = {
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "PRIORITY": "3",
        "_SOURCE_MONOTONIC_TIMESTAMP": "9000000000",
        "__REALTIME_TIMESTAMP": "1",
        "MESSAGE": message,
        **fields,
    }
    return json.dumps({name: value for name, value in values.items() if value is not None})


@pytest.fixture
def node(tmp_path: Path, mocker: Any) -> FakeNode:
    """A node whose /dev/kmsg may not be read."""
    node = FakeNode(tmp_path)
    node.file("/proc/stat", f"cpu 1 2 3 4\nbtime {int(BOOT)}\n")
    mocker.patch("hpresume.health.checks.kernel_log._read", side_effect=PermissionError)
    return node


def test_what_journald_has_counts(node: FakeNode) -> None:
    node.says("journalctl", f"{line('Linux version 6.1')}\n{line(XID)}\n")
    result = node.check("kernel-xid")
    assert (result.status, result.action, result.since) == (
        Status.FAIL,
        Action.REBOOT,
        BOOT + 9_000,
    )
    assert result.left_out == ""
    node.says("journalctl", line("Linux version 6.1"))
    assert node.check("kernel-xid").status is Status.PASS


def test_the_journal_of_the_nodes_own_root_is_asked(node: FakeNode) -> None:
    node.tool("journalctl", f'echo "$@" > {node.root}/asked')
    node.check("kernel-xid")
    asked = (node.root / "asked").read_text().split()
    assert asked[:5] == ["-k", "-b", "--lines=5000", "-o", "json"]
    assert asked[-1] == f"--root={node.root}"


def test_an_empty_journal_is_one_that_may_not_be_read(node: FakeNode) -> None:
    for said in ("", "-- No entries --\n", "Keine Einträge\n"):
        node.says("journalctl", said, stderr="Hint: You are currently not seeing messages")
        result = node.check("kernel-xid")
        assert result.status is Status.SKIPPED
        assert "group adm or systemd-journal" in result.left_out


def test_without_journald(node: FakeNode) -> None:
    assert "root" in node.check("kernel-xid").left_out


def test_a_journal_that_is_not_whole_is_not_known(node: FakeNode) -> None:
    node.says("journalctl", line("Linux version 6.1"), 1, "Journal file corrupted")
    assert node.check("kernel-xid").status is Status.UNKNOWN
    node.tool("journalctl", f"head -c 9000000 /dev/zero | tr '\\0' ' '\necho\necho '{line('x')}'")
    assert node.check("kernel-xid").status is Status.SKIPPED  # nothing readable in what was kept
    node.tool("journalctl", f"echo '{line('x')}'; head -c 9000000 /dev/zero")
    result = node.check("kernel-xid")
    assert (result.status, "more than 8 MiB" in result.evidence) == (Status.UNKNOWN, True)
    node.tool("journalctl", "sleep 60")
    assert node.check("kernel-xid", timeout_s=0.3).status is Status.UNKNOWN


@pytest.mark.parametrize(
    "record",
    [
        line(XID, SYSLOG_FACILITY="1"),
        line(XID, SYSLOG_FACILITY=None),
        line(XID, _TRANSPORT="syslog"),
        line(XID, _TRANSPORT=None),
        line(XID, _SOURCE_MONOTONIC_TIMESTAMP=None),
        line(XID, _SOURCE_MONOTONIC_TIMESTAMP="-5"),
        line(XID, _SOURCE_MONOTONIC_TIMESTAMP="9" * 40),
        line(XID, MESSAGE=None),
        line(["x"]),
        line([300]),
        line(XID)[:-1],
        "[" * 100_000,
        "{" * 100_000,
        '{"a":' * 20_000,
    ],
)
def test_what_is_no_record_of_the_kernel(record: str) -> None:
    assert parse(record, BOOT) == ()


def test_a_message_that_is_not_printable() -> None:
    assert parse(line(list(b"caf\xe9 \xff")), BOOT) == (Record(BOOT + 9_000, "caf� �"),)
    assert parse(line("one\ntwo"), BOOT) == (Record(BOOT + 9_000, "one"),)


def test_a_journal_of_months_does_not_hide_what_is_new(node: FakeNode) -> None:
    """With a FAKE journalctl that has more to say than anybody reads, but for the newest."""
    old = line("x" * 500)
    node.says("all", f"{old}\n" * 20_000 + f"{line(XID)}\n")
    node.tool(
        "journalctl",
        f"for word; do case $word in --lines=*) lines=${{word#*=}};; esac; done\n"
        f"tail -n ${{lines:-+1}} {node.root.parent}/all.said",
    )
    result = node.check("kernel-xid")
    assert (result.status, result.measured) == (Status.FAIL, "XID 79")


@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    assert parse(text, BOOT) == ()


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.lists(st.integers())


@given(
    st.dictionaries(
        st.sampled_from(
            ["MESSAGE", "_TRANSPORT", "SYSLOG_FACILITY", "_SOURCE_MONOTONIC_TIMESTAMP"]
        ),
        VALUES,
    )
)
def test_any_record(fields: dict[str, Any]) -> None:
    parse(line(XID, **fields), BOOT)
