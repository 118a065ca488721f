"""The provider of a site's own programs: contract, exit codes, answers, time limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from provider_contract import ProviderContract, new_token

from hpresume.errors import (
    CapacityError,
    ProviderRefusedError,
    ProviderTimeoutError,
    ProviderTransientError,
)
from hpresume.providers.command import ACTIONS, CommandProvider, Programs
from hpresume.providers.config import open_provider
from hpresume.providers.model import LaunchRequest, Machine, MachineState

EXAMPLE = Path(__file__).parents[2] / "examples" / "spare_pool.py"
REQUEST = LaunchRequest("t1", "n1")
MACHINE = {"machine_id": "m1", "node": "n1", "token": "t1", "state": "pending"}


class SparePool:
    """The example of docs/providers.md with six spares; ipmitool is a stand-in that notes calls."""

    nodes = ("n1", "n2")

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.folder = folder
        self.power = folder / "power"
        spares = [
            {"id": f"chassis-{i}", "address": f"10.0.0.{i}", "bmc": f"10.1.0.{i}"} for i in range(6)
        ]
        (folder / "pool.json").write_text(json.dumps(spares))
        ipmitool = folder / "bin" / "ipmitool"
        ipmitool.parent.mkdir()
        ipmitool.write_text(f'#!/bin/sh\necho "$4 ${{11}}" >> {self.power}\n')
        ipmitool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{ipmitool.parent}:{os.environ['PATH']}")

    def open(self) -> CommandProvider:
        table = {
            action: [sys.executable, str(EXAMPLE), str(self.folder), action] for action in ACTIONS
        }
        return open_provider("spares", {"type": "command", **table})

    def settle(self, condition) -> None:
        assert condition(), "every call of this program is done when it returns"


@pytest.fixture
def world(tmp_path, monkeypatch) -> SparePool:
    return SparePool(tmp_path, monkeypatch)


class TestExample(ProviderContract):
    """The contract of all providers, for the example."""

    keeps_address = False

    def test_switches_the_power(self, world):
        machine = self.launch(world)
        world.open().reboot(machine.machine_id)
        world.open().terminate(machine.machine_id)
        bmc = machine.address.replace("10.0.", "10.1.")
        assert world.power.read_text().splitlines() == [
            f"{bmc} cycle",
            f"{bmc} cycle",
            f"{bmc} off",
        ]

    def test_takes_the_address_that_is_asked_for(self, world):
        assert self.launch(world, address="10.0.0.4").address == "10.0.0.4"

    def test_runs_out_of_spares(self, world):
        for _ in range(6):
            world.open().launch(LaunchRequest(new_token(), "n1"))
        with pytest.raises(CapacityError, match="all 6 machines are in use or broken"):
            world.open().launch(LaunchRequest(new_token(), "n1"))

    def test_without_ipmitool_no_spare_is_taken(self, world, monkeypatch):
        monkeypatch.setenv("PATH", str(world.folder))
        with pytest.raises(ProviderRefusedError, match="ipmitool is not installed"):
            world.open().launch(LaunchRequest(new_token(), "n1"))
        assert world.open().list() == ()

    def test_a_launch_that_failed_half_way_is_found_again(self, world):
        tool = world.folder / "bin" / "ipmitool"
        works = tool.read_text()
        tool.write_text("#!/bin/sh\necho 'no session' >&2; exit 1\n")
        request = LaunchRequest(new_token(), "n1")
        with pytest.raises(ProviderTransientError, match="no session"):
            world.open().launch(request)
        (begun,) = world.open().list()
        assert (begun.token, begun.state) == (request.token, MachineState.PENDING)
        tool.write_text(works)
        machine = world.open().launch(request)
        assert machine.machine_id == begun.machine_id
        assert world.open().list() == (machine,)


@pytest.fixture
def program(tmp_path):
    """Make a provider all of whose programs are one Python text."""

    def make(body: str, **options) -> CommandProvider:
        path = tmp_path / "program.py"
        path.write_text(body)
        argv = (sys.executable, str(path))
        options = {"timeout_s": 20.0, "launch_timeout_s": 20.0, **options}
        return CommandProvider(Programs(*[argv] * len(ACTIONS)), sleep=lambda _: None, **options)

    return make


def answering(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"print({text!r})"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (69, CapacityError),
        (75, ProviderTransientError),
        (1, ProviderRefusedError),
        (2, ProviderRefusedError),
        (127, ProviderRefusedError),
    ],
)
def test_exit_codes(program, code, kind):
    provider = program(
        f"import sys; print('one\\nthe reason\\n', file=sys.stderr); sys.exit({code})"
    )
    with pytest.raises(kind) as raised:
        provider.launch(REQUEST)
    assert type(raised.value) is kind
    assert str(raised.value).endswith(": the reason")


def test_exit_without_a_word(program):
    with pytest.raises(ProviderRefusedError, match="exit code 3 without a word"):
        program("import sys; sys.exit(3)").reboot("m1")


def test_a_program_that_was_killed_may_have_done_it(program):
    provider = program("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ProviderTransientError, match="killed by signal 9"):
        provider.launch(REQUEST)


def test_what_the_programs_are_told(program, tmp_path, monkeypatch):
    monkeypatch.setenv("SITE_SETTING", "kept")
    monkeypatch.setenv("HPRESUME_ADDRESS", "of somebody else")
    monkeypatch.setenv("HPRESUME_MAX_RESUMES", "7")
    note = tmp_path / "note"
    provider = program(
        f"import json, os; open({str(note)!r}, 'w').write(json.dumps(dict(os.environ)))\n"
        + answering(MACHINE)
    )
    request = LaunchRequest(
        "t1", "n1", "p5.48xlarge", "workers", attributes={"subnet": "a; rm -rf /", "disk-gb": "7"}
    )
    provider.launch(request)
    told = json.loads(note.read_text())
    assert {key: value for key, value in told.items() if key.startswith("HPRESUME_")} == {
        "HPRESUME_ACTION": "launch",
        "HPRESUME_TOKEN": "t1",
        "HPRESUME_NODE": "n1",
        "HPRESUME_INSTANCE_TYPE": "p5.48xlarge",
        "HPRESUME_GROUP": "workers",
        "HPRESUME_ADDRESS": "",
        "HPRESUME_IMAGE": "",
        "HPRESUME_ATTRIBUTE_SUBNET": "a; rm -rf /",
        "HPRESUME_ATTRIBUTE_DISK_GB": "7",
    }
    assert told["SITE_SETTING"] == "kept"
    provider.describe("m1")
    told = json.loads(note.read_text())
    assert {key: value for key, value in told.items() if key.startswith("HPRESUME_")} == {
        "HPRESUME_ACTION": "describe",
        "HPRESUME_MACHINE_ID": "m1",
    }


def test_answers_are_understood(program):
    described = {**MACHINE, "state": "running", "address": "10.0.0.7", "launched_at": 5}
    machine = Machine("m1", "n1", "t1", MachineState.RUNNING, "10.0.0.7", 5.0)
    assert program(answering(described)).launch(REQUEST) == machine
    assert program(answering(described)).describe("m1") == machine
    assert program(answering("null")).describe("m1") is None
    gone = {**MACHINE, "machine_id": "m2", "state": "terminated"}
    assert program(answering([described, gone])).list() == (machine,)
    program("").terminate("m1")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "did not answer in JSON"),
        ("{", "did not answer in JSON"),
        ("[" * 100_000, "did not answer in JSON"),
        ([], "must be a machine"),
        (None, "must be a machine"),
        ({}, "machine_id must be a text"),
        ({**MACHINE, "machine_id": 7}, "machine_id must be a text"),
        ({**MACHINE, "machine_id": ""}, "empty machine_id"),
        ({**MACHINE, "state": "broken"}, "state 'broken': use pending, running"),
        ({**MACHINE, "ip": "10.0.0.1"}, "unknown key 'ip'"),
        ({**MACHINE, "address": None}, "address None"),
        ({**MACHINE, "address": "10.0.0.5 "}, "must be an IP address or host name"),
        ({**MACHINE, "address": "n1\nNodeName=n2"}, "must be an IP address or host name"),
        ({**MACHINE, "launched_at": "now"}, "launched_at 'now'"),
        ({**MACHINE, "launched_at": True}, "launched_at True"),
        ('{"machine_id":"m","node":"n1","token":"t1","state":"running","launched_at":NaN}', "nan"),
        ({**MACHINE, "node": "n2"}, "asked for 'n1' and 't1'"),
        ({**MACHINE, "token": "t2"}, "asked for 'n1' and 't1'"),
    ],
)
def test_answers_that_are_not_understood(program, answer, message):
    """A machine may be there all the same, so the same token is to be sent again."""
    with pytest.raises(ProviderTransientError, match=message):
        program(answering(answer)).launch(REQUEST)


def test_other_answers_that_are_not_understood(program):
    with pytest.raises(ProviderTransientError, match="must be a list"):
        program(answering(MACHINE)).list()
    with pytest.raises(ProviderTransientError, match="machine 'm1' 2 times"):
        program(answering([MACHINE, MACHINE])).list()
    with pytest.raises(ProviderTransientError, match="asked for 'm2'"):
        program(answering(MACHINE)).describe("m2")


def test_a_program_that_hangs_is_killed_with_its_children(program, tmp_path):
    note = tmp_path / "pid"
    provider = program(
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n",
        launch_timeout_s=1.0,
    )
    started = time.monotonic()
    with pytest.raises(ProviderTimeoutError, match="did not end within 1 s and was killed"):
        provider.launch(REQUEST)
    assert time.monotonic() - started < 20
    child = int(note.read_text())
    assert _is_gone(child, 10.0)


def _is_gone(pid: int, seconds: float) -> bool:
    """Whether a process ends; as a zombie too, which the machine's init will reap."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
    os.kill(pid, signal.SIGKILL)
    return False


def test_reads_are_tried_again(program, tmp_path):
    count = tmp_path / "count"
    body = (
        f"import sys; path = {str(count)!r}\n"
        "with open(path, 'a+') as file:\n"
        "    file.write('x'); file.seek(0); times = len(file.read())\n"
        "if times < 3: sys.exit(75)\n"
        "print('[]')\n"
    )
    assert program(body).list() == ()
    assert count.read_text() == "xxx"


@pytest.mark.parametrize("action", ["launch", "reboot"])
def test_what_is_done_is_not_tried_again_here(program, tmp_path, action):
    count = tmp_path / "count"
    body = f"import sys; open({str(count)!r}, 'a').write('x'); sys.exit(75)"
    call = {"launch": lambda p: p.launch(REQUEST), "reboot": lambda p: p.reboot("m1")}[action]
    with pytest.raises(ProviderTransientError):
        call(program(body))
    assert count.read_text() == "x"


def test_a_program_that_is_not_there():
    provider = CommandProvider(Programs(*[("/nowhere/launch",)] * 5))
    with pytest.raises(ProviderRefusedError, match="/nowhere/launch: cannot be started: No such"):
        provider.launch(REQUEST)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [({"a b": "x"}, "attribute 'a b'"), ({"a": "x\0y"}, "no NUL"), ({"": "x"}, "attribute ''")],
)
def test_attributes_that_cannot_be_told(program, attributes, message):
    with pytest.raises(ProviderRefusedError, match=message):
        program("").launch(LaunchRequest("t1", "n1", attributes=attributes))


@pytest.mark.parametrize("machine_id", ["", "m\0"])
def test_ids_that_cannot_be(program, machine_id):
    with pytest.raises(ProviderRefusedError, match="not the id of a machine"):
        program("").terminate(machine_id)


@pytest.mark.parametrize(("token", "node"), [("", "n1"), ("t 1", "n1"), ("t1", ""), ("t1", "n1/2")])
def test_requests_that_cannot_be(token, node):
    with pytest.raises(ProviderRefusedError):
        LaunchRequest(token, node)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_without_end_of_words_is_killed(program, monkeypatch, stream):
    monkeypatch.setattr("hpresume.providers.bounded.MOST_OUTPUT", 1 << 20)
    provider = program(f"import sys\nwhile True: sys.{stream}.write('x' * 65536)")
    with pytest.raises(ProviderTransientError, match="said more than 1 MiB and was killed"):
        provider.launch(REQUEST)


def test_a_program_that_closes_its_outputs_and_goes_on_is_killed(program):
    provider = program("import os, time; os.close(1); os.close(2); time.sleep(600)", timeout_s=1.0)
    with pytest.raises(ProviderTimeoutError):
        provider.reboot("m1")


def test_no_program_is_left_when_the_controller_ends(tmp_path):
    note = tmp_path / "pid"
    text = f"""
import pathlib, subprocess, sys, threading, time
from hpresume.providers import bounded
argv = ["sh", "-c", "echo $$ > {note}.new; mv {note}.new {note}; sleep 600"]
threading.Thread(target=bounded.run, args=(argv, 600.0), daemon=True).start()
while not pathlib.Path("{note}").exists():
    time.sleep(0.01)
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
    assert _is_gone(int(note.read_text()), 10.0)
