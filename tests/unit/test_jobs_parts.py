"""Rates, ICMP packets, and the endpoint's own refusals."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpresume.api import reports
from hpresume.errors import CredentialError, SlurmTransientError
from hpresume.jobs import echo, table
from hpresume.jobs.inbox import Reply
from hpresume.jobs.model import Guarded, Pulse
from hpresume.jobs.observe import Observer
from hpresume.jobs.rate import Rate
from hpresume.resume.message import MAX_BODY, PATH, Message, Protects, encode
from hpresume.resume.model import NodeFault, Sign
from hpresume.slurm import credential
from hpresume.slurm.admin import Holder
from hpresume.slurm.models import Job, JobState, Node
from hpresume.store import open_store


def test_a_user_may_send_in_bursts_and_then_slowly() -> None:
    rate = Rate(burst=3, per_s=0.5)
    assert [rate.take(1, 0.0) for _ in range(4)] == [True, True, True, False]
    assert rate.take(2, 0.0)
    assert not rate.take(1, 1.0)
    assert rate.take(1, 3.0)
    assert not rate.take(1, 3.0)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_the_checksum_of_an_echo_request_is_right(number: int, sequence: int) -> None:
    words = struct.unpack("!4H", echo.request(number, sequence))
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF


@given(st.binary(max_size=80))
def test_any_packet_can_come(packet: bytes) -> None:
    echo.is_reply(packet, 7)


def test_a_reply_is_told_from_a_request() -> None:
    header = bytes([0x45]) + bytes(19)
    reply = struct.pack("!BBHHH", 0, 0, 0, 7, 1)
    assert echo.is_reply(header + reply, 7)
    assert not echo.is_reply(header + reply, 8)
    assert not echo.is_reply(header + echo.request(7, 1), 7)


class Inbox:
    """Takes everything, or raises."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, Message]] = []
        self.trouble: Exception | None = None

    def take(self, uid: int, message: Message) -> Reply:
        if self.trouble:
            raise self.trouble
        self.taken.append((uid, message))
        return Reply(200, "good")


class Http:
    """Requests to the application, without a network."""

    def __init__(self, inbox: Inbox) -> None:
        self._app = reports.build_app(inbox)

    def __call__(self, method: str = "POST", path: str = PATH, **request: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://ctl") as client:
                return await client.request(method, path, **request)

        return asyncio.run(send())


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> tuple[Http, Inbox]:
    def verify(text: str, message: bytes, *, socket: str = "") -> credential.Sender:
        if text != "MUNGE:good:":
            raise CredentialError("the MUNGE credential is refused")
        return credential.Sender(500, 0)

    monkeypatch.setattr(credential, "verify", verify)  # munged is not here
    inbox = Inbox()
    return Http(inbox), inbox


GOOD = {"Authorization": "MUNGE MUNGE:good:"}


def test_the_endpoint(client: tuple[Http, Inbox]) -> None:
    http, inbox = client
    body = encode(Protects(7))
    assert http(content=body).status_code == 401
    assert http(content=body, headers={"Authorization": "Basic x"}).status_code == 401
    assert http(content=body, headers={"Authorization": "MUNGE x"}).status_code == 401
    assert http(content=b" " * (MAX_BODY + 1), headers=GOOD).status_code == 413
    assert http(content=b"{}", headers=GOOD).status_code == 400
    assert http("GET").status_code == 405
    assert http(path="/", content=body, headers=GOOD).status_code == 404
    assert inbox.taken == []
    assert http(content=body, headers=GOOD).json() == {"message": "good"}
    assert inbox.taken == [(500, Protects(7))]
    inbox.trouble = SlurmTransientError("a secret of the cluster")
    answer = http(content=body, headers=GOOD)
    assert answer.status_code == 503
    assert "secret" not in answer.text


def test_silent_clients_leave_room_for_others(monkeypatch) -> None:
    monkeypatch.setattr(reports, "_CONNECTIONS", 8)
    monkeypatch.setattr(reports, "_BODY_S", 0.2)
    listening = reports.listen("127.0.0.1:0")
    address = listening.getsockname()
    server = reports.ReportServer(Inbox(), listening)
    server.start()
    heads = [b"", b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nX-Slow: "] * 6
    silent = []
    try:
        for head in heads:
            silent.append(socket.create_connection(address, timeout=20))
            silent[-1].sendall(head)
        for each in silent:
            while each.recv(65536):
                pass  # until it is closed
        answer = httpx.post(f"http://127.0.0.1:{address[1]}{PATH}", content=b"{}", trust_env=False)
        assert answer.status_code == 401
    finally:
        for each in silent:
            each.close()
        server.close()


class Slurm:
    """Two nodes, one of which runs the script of a job."""

    def nodes(self) -> dict[str, Node]:
        return {name: Node(name, frozenset({"ALLOCATED"})) for name in ("n1", "n2")}

    def config(self) -> None:
        return None

    def reservations(self) -> tuple[()]:
        return ()

    def holders(self) -> tuple[Holder, ...]:
        return (Holder(7, ("n1",)),)

    def commented(self, word: str) -> tuple[int, ...]:
        return ()

    def job(self, job_id: int) -> Job:
        return Job(job_id, JobState.RUNNING, nodes=("n1",))


def test_hosts_are_watched_on_when_the_clock_is_set_back(tmp_path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    with store.write() as session:
        table.guard(session, Guarded(7, 500, 0, "n1", ("n1",), 1, 0.0))
    looks: list[list[str]] = []

    def look(names, nodes, config, lone=False) -> tuple[NodeFault, ...]:
        looks.append(list(names))
        return (NodeFault("n1", Sign.LOST, "silent"),)

    observer = Observer(Slurm(), store, look, 1.0)
    for now in (100_000.0, 100_001.0, 10.0, 11.0, 12.0):
        snapshot = observer.observe(now, 0.0)
    assert len(looks) == 5
    # Counted anew: spans before and after the change cannot be compared.
    assert snapshot.silent["n1"] == Pulse(10.0, 3)
    store.close()
