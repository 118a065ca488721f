"""Errors of InfiniBand ports within a window, from counters kept between runs."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from health_node import NOW, FakeNode, check_named, policy_of
from hypothesis import given
from hypothesis import strategies as st

from hpresume.health import history
from hpresume.health.checks.infiniband_errors import PortErrors, judge, parse_rate
from hpresume.health.env import Env
from hpresume.health.history import Growth, Point, extended, growth
from hpresume.health.model import Action, Result, Status
from hpresume.health.runner import examine

WINDOW = 10_800.0
AT = "/sys/class/infiniband/mlx5_0/ports/1"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    node.file("/proc/sys/kernel/random/boot_id", "boot-1\n")
    port(node, 0, 0)
    return node


def port(
    node: FakeNode, symbols: object, downed: object, rate: str = "100 Gb/sec (4X EDR)"
) -> None:
    for name, text in (
        ("link_layer", "InfiniBand"),
        ("rate", rate),
        ("counters/symbol_error", symbols),
        ("counters/link_downed", downed),
    ):
        node.file(f"{AT}/{name}", f"{text}\n")


def look(node: FakeNode, now: float, *, root: bool = True, **limits: Any) -> Result:
    """One run at a time."""
    policy = policy_of("infiniband-errors", **limits)
    env = Env(policy, time.monotonic() + 5, str(node.root), node.environ, root, now=now)
    return examine(check_named("infiniband-errors"), env, now)


def test_the_first_run_has_nothing_to_compare_with(node: FakeNode) -> None:
    result = look(node, NOW)
    assert result.status is Status.SKIPPED
    assert "no earlier counters since the boot" in result.evidence
    assert look(node, NOW + 60).status is Status.PASS


def test_a_node_without_infiniband(tmp_path: Path) -> None:
    assert look(FakeNode(tmp_path), NOW).status is Status.SKIPPED
    assert not (tmp_path / "root/var").exists()


def test_link_losses_within_the_window(node: FakeNode) -> None:
    look(node, NOW)
    port(node, 0, 3)
    assert look(node, NOW + 60).status is Status.PASS
    port(node, 0, 4)
    result = look(node, NOW + 120)
    assert (result.status, result.action, result.hold) == (Status.FAIL, Action.NONE, False)
    assert result.evidence == "mlx5_0/1: link lost 4 times within 120 s"
    assert (result.threshold, result.source) == ("3 in the window", "Azure node health checks")
    # Old losses leave the window.
    assert look(node, NOW + 120 + WINDOW).status is Status.SKIPPED
    assert look(node, NOW + 180 + WINDOW).status is Status.PASS


def test_symbol_errors_by_the_rate_of_the_link(node: FakeNode) -> None:
    look(node, NOW)
    port(node, 1080, 0)  # 1e-12 of 100 Gb/s in 10,800 s
    assert look(node, NOW + 60).status is Status.PASS
    port(node, 1081, 0)
    result = look(node, NOW + 120)
    assert result.status is Status.FAIL
    assert result.evidence == "mlx5_0/1: 1081 symbol errors within 120 s"
    assert result.threshold == "1080 in 10800 s at 100 Gb/s"
    port(node, 1081, 0, "400 Gb/sec (4X NDR)")
    assert look(node, NOW + 180).status is Status.PASS


def test_nothing_from_before_the_boot_counts(node: FakeNode) -> None:
    look(node, NOW)
    port(node, 0, 200)
    node.file("/proc/sys/kernel/random/boot_id", "boot-2\n")
    assert look(node, NOW + 60).status is Status.SKIPPED
    assert look(node, NOW + 120).status is Status.PASS
    node.file("/proc/sys/kernel/random/boot_id", "")
    assert look(node, NOW + 180).status is Status.UNKNOWN


def test_counters_that_were_reset_begin_anew(node: FakeNode) -> None:
    port(node, 500, 3)
    look(node, NOW)
    port(node, 0, 1)
    assert look(node, NOW + 60).status is Status.SKIPPED
    port(node, 0, 2)
    assert look(node, NOW + 120).status is Status.PASS


@pytest.mark.parametrize(
    ("symbols", "downed", "rate", "words"),
    [
        (0xFFFF, 0, "100 Gb/sec", "symbol_error is full (65535): reset it"),
        (0, 0xFF, "100 Gb/sec", "link_downed is full (255)"),
        (0, "garbage", "100 Gb/sec", "link_downed cannot be read"),
        (0, 0, "fast", "its rate cannot be read"),
    ],
)
def test_what_cannot_be_known_is_no_pass(
    node: FakeNode, symbols: int, downed: object, rate: str, words: str
) -> None:
    port(node, symbols, downed, rate)
    look(node, NOW)
    result = look(node, NOW + 60)
    assert (result.status, words in result.evidence) == (Status.UNKNOWN, True), result.evidence


def test_users_without_root_read_and_write_nothing(node: FakeNode) -> None:
    state = node.root / history.STATE_FILE.lstrip("/")
    result = look(node, NOW, root=False)
    assert result.status is Status.SKIPPED
    assert "runs as root keep them" in result.left_out
    assert not state.exists()
    look(node, NOW)
    before = state.read_bytes()
    assert look(node, NOW + 600, root=False).status is Status.PASS
    assert state.read_bytes() == before


def test_a_state_that_cannot_be_kept_is_not_known(node: FakeNode) -> None:
    node.file("/var/lib", "a file")
    assert "counters cannot be kept" in look(node, NOW).evidence


def test_the_file_stays_small_and_whole(node: FakeNode) -> None:
    state = node.root / history.STATE_FILE.lstrip("/")
    for run in range(1000):
        look(node, NOW + 60 * run)
    kept = json.loads(state.read_text())
    assert kept["boot"] == "boot-1"
    assert {len(points) for points in kept["counters"].values()} <= set(range(30, 39))
    assert list(state.parent.iterdir()) == [state]
    for content in (b"", b"\0\xff", b"{}", b"[" * 100_000, state.read_bytes()[:-9]):
        state.write_bytes(content)
        assert look(node, NOW + 60_000).status is Status.SKIPPED
        assert json.loads(state.read_text())["boot"] == "boot-1"


POINTS = st.lists(st.builds(Point, st.floats(0, 30_000), st.integers(0, 100)), max_size=50).map(
    tuple
)


@given(POINTS, st.integers(0, 200), st.floats(0, 30_000))
def test_growth_is_within_the_window(points: tuple[Point, ...], value: int, now: float) -> None:
    found = growth(points, value, now, WINDOW)
    if found is not None:
        assert 0 <= found.count <= value
        assert 0 < found.seconds <= WINDOW
    kept = extended({"x": points}, {"x": value}, now, WINDOW)["x"]
    assert 1 <= len(kept) <= 39
    assert [p.time for p in kept] == sorted(p.time for p in kept)
    assert [p.value for p in kept] == sorted(p.value for p in kept)
    assert all(now - WINDOW <= p.time <= now for p in kept)


@given(st.binary(max_size=200))
def test_any_content(content: bytes) -> None:
    assert history.parse(content, "boot-1") == {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=10,
    )
)
def test_any_document(document: object) -> None:
    content = json.dumps({"boot": "b", "counters": {"x": document, "y": [document]}}).encode()
    for points in history.parse(content, "b").values():
        growth(points, 5, NOW, WINDOW)
    assert history.parse(content, "") == history.parse(content, "other") == {}


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100 Gb/sec (4X EDR)", 100.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("", None), ("Gb/sec", None)],
)
def test_rates(text: str, rate: float | None) -> None:
    assert parse_rate(text) == rate


@given(st.text(max_size=40))
def test_any_rate(text: str) -> None:
    parse_rate(text)


def test_faults_of_one_port_are_not_hidden_by_doubts_of_another() -> None:
    bad = PortErrors("a/1", 100.0, Growth(0, 60), Growth(9, 60))
    dark = replace(bad, name="b/1", link_downed=None, doubt="b/1: link_downed cannot be read")
    policy = policy_of("infiniband-errors")
    assert judge((dark, bad), policy, NOW).status is Status.FAIL
    assert judge((dark,), policy, NOW).status is Status.UNKNOWN
