"""Lifecycle scripts: fetched, run once for each machine, judged by their exit code.

The machine is a folder of this host; what runs in it are the real shell, tar and wrapper.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from provision_service import until
from provision_world import CONTROLLER, World, workers

from hpresume.errors import ProviderRefusedError, ProviderTransientError
from hpresume.providers.programs import Ran
from hpresume.provision import bundle, lifecycle
from hpresume.provision.bundle import Sources
from hpresume.provision.lifecycle import LifecycleScripts, Where, parse_shape
from hpresume.provision.model import Node, State
from hpresume.provision.resource_config import resource_config


class Here:
    """Programs of this host, in its own environment."""

    def __init__(self) -> None:
        self.calls: list[Sequence[str]] = []
        self.running: list[subprocess.Popen[bytes]] = []

    def run(self, machine_id: str, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Ran:
        self.calls.append(argv)
        if argv[0] == "slurmd":
            return Ran(0, b"NodeName=x CPUs=4 Boards=1 RealMemory=900 Gres=gpu:1\nUpTime=1\n")
        # a file, not a pipe: what goes on after its caller would hold a pipe open
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
            )
            self.running.append(process)
            process.communicate(stdin, timeout=timeout_s)
            output.seek(0)
            said = output.read()
        if process.returncode < 0:
            raise ProviderTransientError("the connection broke")
        return Ran(process.returncode, said)


class Place:
    """A cluster with one worker whose scripts are ``scripts``, and a machine for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scripts = folder / "scripts"
        self.scripts.mkdir()
        self.config = folder / "config" / "resource_config.json"
        self.where = Where(folder / "logs", str(folder / "machine"), str(self.config))
        self.programs = Here()

    def script(self, name: str, text: str) -> None:
        path = self.scripts / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")

    def case(self, **scripts: str) -> tuple[State, Node]:
        lifecycle = {"SourceS3Uri": f"file://{self.scripts}", **scripts}
        world = World(CONTROLLER, workers(1, LifeCycleConfig=lifecycle))
        world.hold_scripts = lambda node: node.group == "workers"
        world.settle(10)
        return world.state, world.node("workers-1")

    def run(self, state: State, node: Node, limit_s: float = 30.0, **more: Any) -> str:
        scripts = LifecycleScripts(self.programs, where=self.where, limit_s=limit_s, **more)
        return scripts.run(state, node)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_they_run_in_order_in_their_folder_with_the_configuration_beside(place: Place) -> None:
    place.script("on_create.sh", f'cat lib/data.txt; echo "$SAGEMAKER_RESOURCE_CONFIG_PATH"; '
                 f'echo one >> {place.folder}/ran')  # fmt: skip
    place.script("lib/data.txt", "data")
    place.script("done.sh", f"echo two >> {place.folder}/ran")
    state, node = place.case(OnCreate="on_create.sh", OnInitComplete="done.sh")
    scripts = LifecycleScripts(place.programs, where=place.where)
    assert scripts.run(state, node) == ""
    assert scripts.inspect(state, node) == "CPUs=4 Boards=1 RealMemory=882"
    assert (place.folder / "ran").read_text() == "one\ntwo\n"
    assert json.loads(place.config.read_text()) == json.loads(resource_config(state))
    log = scripts.log_of(state, node).read_text()
    assert "data\n" in log
    assert f"{place.config}\n" in log
    assert "OnInitComplete done.sh: exit code 0" in log


def test_the_configuration_names_every_machine(place: Place) -> None:
    place.script("a.sh", ":")
    state, node = place.case(OnCreate="a.sh")
    document = json.loads(resource_config(state))
    assert document["ClusterConfig"]["ClusterName"] == "c1"
    (controller, compute) = document["InstanceGroups"]
    assert compute["Instances"] == [
        {
            "InstanceName": "workers-1",
            "AgentIpAddress": node.address,
            "CustomerIpAddress": node.address,
            "InstanceId": node.machine_id,
        }
    ]
    primary = document["SlurmConfig"]["PrimaryControllerIp"]
    assert primary == controller["Instances"][0]["CustomerIpAddress"]


def test_the_exit_code_decides(place: Place) -> None:
    place.script("a.sh", "echo no such disk >&2; exit 3")
    place.script("b.sh", f"touch {place.folder}/b-ran")
    state, node = place.case(OnCreate="a.sh", OnInitComplete="b.sh")
    assert place.run(state, node) == "OnCreate a.sh: exit code 3: no such disk"
    assert not (place.folder / "b-ran").exists()


@pytest.mark.parametrize("code", [1, 124, 125, 126, 137, 255])
def test_every_exit_code_is_the_scripts_own(place: Place, code: int) -> None:
    place.script("a.sh", f"exit {code}")
    state, node = place.case(OnCreate="a.sh")
    assert place.run(state, node) == f"OnCreate a.sh: exit code {code}"


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_script_without_an_end_is_ended(
    place: Place, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_WRAPPER", lifecycle._WRAPPER.replace(b"-k 10", b"-k 0.2"))
    place.script("a.sh", f"{trap}echo waiting; while :; do sleep 0.1; done")
    state, node = place.case(OnCreate="a.sh")
    said = place.run(state, node, limit_s=1)
    assert said.startswith("OnCreate a.sh: not done after 1 s")
    assert place.run(state, node, limit_s=1) == said


def test_much_output_and_bytes_that_are_no_text(place: Place) -> None:
    place.script(
        "a.sh", "head -c 100000000 /dev/zero; printf '\\033[2Jbad \\377\\000 end\\n'; exit 5"
    )
    state, node = place.case(OnCreate="a.sh")
    said = place.run(state, node)
    assert said.startswith("OnCreate a.sh: exit code 5: ")
    assert said.endswith("?[2Jbad \ufffd? end")
    assert said.isprintable()
    assert len(said) < 300
    log = LifecycleScripts(place.programs, where=place.where).log_of(state, node)
    assert 1_000_000 <= log.stat().st_size < 1_001_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            b"#!/bin/sh\r\nexit 0\r\n",
            "OnCreate: a.sh has Windows line ends (CR LF), save it with LF",
        ),
        (b"exit 0\n", "OnCreate: a.sh has to begin with a line such as #!/bin/bash"),
        (b"", "OnCreate: a.sh has to begin with a line such as #!/bin/bash"),
        (
            b"#!/bin/no-such-shell\n",
            "OnCreate a.sh: exit code 127: timeout: failed to run command",
        ),
    ],
)
def test_a_script_that_cannot_be_started_is_told(place: Place, text: bytes, said: str) -> None:
    (place.scripts / "a.sh").write_bytes(text)
    state, node = place.case(OnCreate="a.sh")
    assert place.run(state, node).startswith(said)


def test_a_script_that_was_mended_is_fetched_for_the_next_try(place: Place) -> None:
    place.script("a.sh", "exit 1")
    state, node = place.case(OnCreate="a.sh")
    sources = Sources()
    assert place.run(state, node, sources=sources) == "OnCreate a.sh: exit code 1"
    place.script("a.sh", "exit 0")
    assert place.run(state, replace(node, token="next"), sources=sources) == ""
    place.script("a.sh", "exit 2")
    assert place.run(state, replace(node, token="third"), sources=sources) == ""


def test_a_daemon_that_a_script_starts_does_not_hold_it_up(place: Place) -> None:
    place.script("a.sh", f"sleep 600 >/dev/null 2>&1 & echo $! > {place.folder}/pid")
    state, node = place.case(OnCreate="a.sh")
    try:
        assert place.run(state, node) == ""
        assert place.run(state, node) == ""
    finally:
        os.kill(int((place.folder / "pid").read_text()), 9)


def test_again_for_the_same_machine_is_not_again(place: Place) -> None:
    place.script("a.sh", f"echo x >> {place.folder}/ran; exit 4")
    state, node = place.case(OnCreate="a.sh")
    first = place.run(state, node)
    assert place.run(state, node) == first == "OnCreate a.sh: exit code 4"
    assert (place.folder / "ran").read_text() == "x\n"
    assert place.run(state, replace(node, token="another")) == first
    assert (place.folder / "ran").read_text() == "x\nx\n"


def test_a_run_whose_caller_was_killed_is_waited_for(place: Place) -> None:
    gate = place.folder / "gate"
    os.mkfifo(gate)
    place.script("a.sh", f"echo x >> {place.folder}/ran; read line < {gate}; exit 7")
    state, node = place.case(OnCreate="a.sh")
    ends: list[str] = []

    def first() -> None:
        with pytest.raises(ProviderTransientError):
            place.run(state, node)
        ends.append("killed")

    thread = threading.Thread(target=first)
    thread.start()
    until(lambda: (place.folder / "ran").exists())
    place.programs.running[-1].kill()
    thread.join(10)
    assert ends == ["killed"]
    second = threading.Thread(target=lambda: ends.append(place.run(state, node)))
    second.start()
    until(lambda: sum(argv[0] == "setsid" for argv in place.programs.calls) == 2)
    gate.write_text("go\n")
    second.join(10)
    assert ends[1] == "OnCreate a.sh: exit code 7"
    assert (place.folder / "ran").read_text() == "x\n"


def test_what_is_missing_is_said(place: Place) -> None:
    place.script("a.sh", ":")
    state, node = place.case(OnCreate="b.sh")
    assert place.run(state, node) == f"OnCreate: there is no b.sh in file://{place.scripts}"


def test_without_scripts_nothing_runs(place: Place) -> None:
    state, node = place.case()
    assert place.run(state, node) == ""
    assert place.programs.calls == []


@pytest.mark.parametrize(
    "uri", ["https://bucket/x", "s3:///x", "file://host/x", "/tmp/x", "file:///no/such/folder"]
)
def test_other_places_are_refused(uri: str) -> None:
    with pytest.raises(ProviderRefusedError, match="SourceS3Uri"):
        Sources(lambda: None).files(uri)


class TestS3:
    @pytest.fixture
    def client(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        with mock_aws():
            client = boto3.client("s3", region_name="us-east-1")
            client.create_bucket(Bucket="bucket")
            yield client

    def test_everything_below_the_prefix_and_nothing_else(self, client: Any) -> None:
        for key in ("src/on_create.sh", "src/lib/a.py", "src2/other", "src/folder/"):
            client.put_object(Bucket="bucket", Key=key, Body=key.encode())
        expected = {"on_create.sh": b"src/on_create.sh", "lib/a.py": b"src/lib/a.py"}
        sources = Sources(lambda: client)
        assert sources.files("s3://bucket/src/") == expected
        assert sources.files("s3://bucket/src") == expected
        assert "src2/other" in sources.files("s3://bucket")

    def test_more_than_a_page(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bundle, "PAGE", 2)
        for number in range(5):
            client.put_object(Bucket="bucket", Key=f"p/{number}", Body=b"x")
        assert len(Sources(lambda: client).files("s3://bucket/p")) == 5

    def test_thousands_of_machines_share_one_download(self, client: Any) -> None:
        client.put_object(Bucket="bucket", Key="p/a", Body=b"1")
        now = [0.0]
        sources = Sources(lambda: client, lambda: now[0])
        assert sources.files("s3://bucket/p") == {"a": b"1"}
        client.put_object(Bucket="bucket", Key="p/a", Body=b"2")
        assert sources.files("s3://bucket/p") == {"a": b"1"}
        now[0] = 100.0
        assert sources.files("s3://bucket/p") == {"a": b"2"}

    @pytest.mark.parametrize("uri", ["s3://nobody/x", "s3://bucket/nothing"])
    def test_what_is_not_there(self, client: Any, uri: str) -> None:
        with pytest.raises(ProviderRefusedError, match=uri):
            Sources(lambda: client).files(uri)

    def test_names_that_lead_out_of_the_folder(self, client: Any) -> None:
        client.put_object(Bucket="bucket", Key="p/../../etc/passwd", Body=b"x")
        with pytest.raises(ProviderRefusedError, match="outside"):
            Sources(lambda: client).files("s3://bucket/p")


def test_shape() -> None:
    text = "NodeName=n CPUs=8 Boards=1 SocketsPerBoard=1 RealMemory=100 TmpDisk=3\nUpTime=1-0\n"
    assert parse_shape(text) == "CPUs=8 Boards=1 SocketsPerBoard=1 RealMemory=98"
    assert parse_shape("slurmd: error") == ""
