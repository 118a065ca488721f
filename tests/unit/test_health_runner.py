"""The runner: time limits, side by side, nothing a check does gets out; strikes."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from health_node import NOW, FakeNode, policy_of

from hpresume.health import strikes
from hpresume.health.env import Answer, Broken, Env
from hpresume.health.model import Absent, Action, AnyCheck, Check, Result, Status, passed
from hpresume.health.policy import Policy
from hpresume.health.runner import Node, run
from hpresume.health.strikes import Strike


def make(name: str, gather: object, load: bool = False) -> AnyCheck:
    return Check(name, "test", gather, lambda raw, policy, now: passed(policy, str(raw)), load)  # type: ignore[arg-type]


def outcome(*checks: AnyCheck, **settings: object) -> list[tuple[Status, str]]:
    limits = {
        check.name: replace(policy_of("clock"), name=check.name, **settings)  # type: ignore[arg-type]
        for check in checks
    }
    return [(r.status, r.evidence) for r in run(checks, Policy(limits), Node(), NOW)]


def raises(env: Env) -> str:
    raise RuntimeError("boom")


def test_outcomes() -> None:
    checks = (
        make("good", lambda env: "fine"),
        make("absent", lambda env: Absent("no such thing")),
        make("broken", lambda env: Broken("it broke")),
        make("raises", raises),
    )
    assert outcome(*checks) == [
        (Status.PASS, "fine"),
        (Status.SKIPPED, "no such thing"),
        (Status.UNKNOWN, "it broke"),
        (Status.UNKNOWN, "the check itself failed: RuntimeError: boom"),
    ]
    assert outcome(checks[0], enabled=False) == [(Status.SKIPPED, "switched off by the policy")]


def test_a_check_that_hangs_is_given_up(mocker: object) -> None:
    mocker.patch("hpresume.health.runner._SLACK_S", 0.0)  # type: ignore[attr-defined]
    end = threading.Event()
    checks = (make("hangs", lambda env: end.wait(20)), make("good", lambda env: "fine"))
    found = outcome(*checks, timeout_s=0.1)
    end.set()
    assert found[0] == (Status.UNKNOWN, "no result within its time limit of 0.1 s")
    assert found[1][0] is Status.PASS


def test_checks_run_side_by_side_but_load_alone() -> None:
    together = threading.Barrier(2, timeout=5)
    running: list[str] = []

    def meets(env: Env) -> str:
        together.wait()
        running.append("light")
        return "met"

    def alone(env: Env) -> str:
        assert running == ["light", "light"]
        return "alone"

    checks = (make("deep", alone, load=True), make("a", meets), make("b", meets))
    assert [text for _, text in outcome(*checks)] == ["alone", "met", "met"]


def test_a_question_is_asked_once(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    count = tmp_path / "count"
    node.tool("ask", f"echo x >> {count}; echo answer")
    env = node.env(policy_of("clock"))
    for _ in range(3):
        assert env.run("ask", "it") == Answer("ask", "answer\n")
    assert count.read_text() == "x\n"


def test_a_tools_children_die_with_it(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    pid = tmp_path / "pid"
    node.tool("ask", f"sleep 60 & echo $! > {pid}; wait")
    assert isinstance(node.env(policy_of("clock"), 0.3).run("ask"), Broken)
    for _ in range(100):
        stat = Path(f"/proc/{pid.read_text().strip()}/stat")
        if not stat.exists() or " Z " in stat.read_text():
            return
        time.sleep(0.02)
    pytest.fail("the child lives")


def test_tools_speak_the_parsers_language(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.environ |= {"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"}
    node.tool("ask", 'printf "%s %s" "$LC_ALL" "$LANGUAGE"')
    answer = node.env(policy_of("clock")).run("ask")
    assert isinstance(answer, Answer)
    assert answer.stdout == "C C"


def test_a_tool_that_is_no_program(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    (node.bin / "ask").write_bytes(b"\0\0")
    (node.bin / "ask").chmod(0o755)
    assert isinstance(node.env(policy_of("clock")).run("ask"), Broken)


# -- strikes

FAIL = Result("mounts", Status.FAIL, "/x is not mounted", action=Action.REBOOT, hold=True)


def policy() -> Policy:
    return Policy({"mounts": replace(policy_of("mounts"), strikes=2)})


def test_a_fault_counts_from_its_second_strike_on() -> None:
    (first,), state = strikes.counted([FAIL], {}, policy(), NOW)
    assert (first.status, first.action, first.hold) == (Status.FAIL, Action.NONE, False)
    assert first.evidence.startswith("strike 1 of 2: ")
    (second,), state = strikes.counted([FAIL], state, policy(), NOW + 60)
    assert (second.action, second.hold, second.since) == (Action.REBOOT, True, NOW)
    (set_back,), _ = strikes.counted([FAIL], state, policy(), NOW - 500)
    assert set_back.since == NOW - 500
    good = replace(FAIL, status=Status.PASS)
    assert strikes.counted([good], state, policy(), NOW)[1] == {}
    unknown = replace(FAIL, status=Status.UNKNOWN)
    assert strikes.counted([unknown], state, policy(), NOW)[1] == state


def test_the_state_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "health.json")
    assert strikes.read(path) == {}
    strikes.write(path, {"mounts": Strike(2, 5.0)})
    assert strikes.read(path) == {"mounts": Strike(2, 5.0)}
    assert os.listdir(tmp_path / "run") == ["health.json"]


def test_a_state_that_cannot_be_kept_leaves_nothing_behind(tmp_path: Path, mocker: object) -> None:
    mocker.patch("os.replace", side_effect=OSError(28, "No space left on device"))  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="No space left"):
        strikes.write(str(tmp_path / "health.json"), {"mounts": Strike(2, 5.0)})
    assert os.listdir(tmp_path) == []
