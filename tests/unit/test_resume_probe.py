"""Asking a node's kernel, with real sockets on the loopback."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Iterator

import pytest

from hpresume.resume.detect import PROBE_TIMEOUT_S, Probe
from hpresume.resume.probe import ProbeAttempt, begin, lookup

BEGAN = 100.0  # made up: the clock is the caller's


def decided(attempt: ProbeAttempt) -> bool:
    """Wait until the socket knows, then look; no time passes on the probe's clock."""
    if attempt.sock is not None:
        poller = select.poll()
        poller.register(attempt.sock, select.POLLOUT)
        assert poller.poll(20_000)
    return attempt.settle(BEGAN)


@pytest.fixture
def listening() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.fixture
def closed_port() -> Iterator[tuple[str, int]]:
    with socket.socket() as bound:  # bound, not listening: the kernel refuses
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@pytest.fixture
def blackhole() -> Iterator[tuple[str, int]]:
    """A full backlog: the kernel drops further SYNs, as a dead host does."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        filling = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(server.getsockname())
            filling.append(client)
        yield server.getsockname()
        for client in filling:
            client.close()


def test_a_port_that_listens_answers(listening: tuple[str, int]) -> None:
    attempt = begin("n1", *listening, BEGAN)
    assert (attempt.node, attempt.began) == ("n1", BEGAN)
    assert decided(attempt)
    assert (attempt.outcome, attempt.text) == (Probe.ANSWERED, "answers")
    assert attempt.sock is None


def test_a_port_that_refuses_is_a_machine_that_runs(closed_port: tuple[str, int]) -> None:
    attempt = begin("n1", *closed_port, BEGAN)
    assert decided(attempt)
    assert (attempt.outcome, attempt.text) == (Probe.REFUSED, "Connection refused")
    assert attempt.sock is None


def test_no_answer_is_a_failure_at_the_timeout_and_not_before(
    blackhole: tuple[str, int],
) -> None:
    attempt = begin("n1", *blackhole, BEGAN)
    for now in (BEGAN, BEGAN + PROBE_TIMEOUT_S - 0.001):
        assert not attempt.settle(now)
        assert attempt.outcome is Probe.PENDING
    assert attempt.settle(BEGAN + PROBE_TIMEOUT_S)
    assert (attempt.outcome, attempt.text) == (Probe.FAILED, "no answer")
    assert attempt.sock is None


def test_an_answer_counts_however_late_it_is_looked_at(listening: tuple[str, int]) -> None:
    """The supervisor may have been stopped meanwhile."""
    attempt = begin("n1", *listening, BEGAN)
    assert attempt.sock is not None
    select.select([], [attempt.sock], [], 20)
    assert attempt.settle(BEGAN + 3600)
    assert attempt.outcome is Probe.ANSWERED


def test_what_is_decided_stays_decided(listening: tuple[str, int]) -> None:
    attempt = begin("n1", *listening, BEGAN)
    assert decided(attempt)
    assert attempt.settle(BEGAN + 3600)
    assert attempt.outcome is Probe.ANSWERED


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("300.1.1.1", 6818),
        ("255.255.255.255", 6818),  # not allowed without a socket option
        ("(null)", 6818),
    ],
)
def test_an_address_that_leads_nowhere_is_a_failed_probe(address: str, port: int) -> None:
    attempt = begin("n1", address, port, BEGAN)
    assert attempt.settle(BEGAN)
    assert attempt.outcome is Probe.FAILED
    assert attempt.text


@pytest.mark.parametrize("address", ["n..1", "n" * 64, ".n1"])
def test_a_name_that_is_none_is_a_failed_probe(address: str) -> None:
    assert begin("n1", address, 6818, BEGAN).outcome is Probe.FAILED


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (socket.EAI_NONAME, Probe.FAILED),
        (socket.EAI_AGAIN, Probe.NONE),  # no name server answers
        (socket.EAI_SYSTEM, Probe.NONE),  # such as no file descriptor left
    ],
)
def test_a_name_that_cannot_be_looked_up(
    monkeypatch: pytest.MonkeyPatch, code: int, outcome: Probe
) -> None:
    def getaddrinfo(*_: object, **__: object) -> None:
        raise socket.gaierror(code, "so it is")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    attempt = begin("n1", "n1.example", 6818, BEGAN)
    assert attempt.settle(BEGAN)
    assert (attempt.outcome, attempt.text) == (outcome, "so it is")


def test_a_looked_up_address_needs_no_name_server() -> None:
    assert lookup("localhost") in ("127.0.0.1", "::1")
    assert lookup("10.1.2.3") == "10.1.2.3"
    assert lookup("n1.invalid") == ""
    assert lookup("n..1") == ""


def test_a_shortage_on_this_host_says_nothing_about_the_node(
    monkeypatch: pytest.MonkeyPatch, listening: tuple[str, int]
) -> None:
    def no_socket(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", no_socket)
    attempt = begin("n1", *listening, BEGAN)
    assert attempt.settle(BEGAN)
    assert attempt.outcome is Probe.NONE


def test_ipv6() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 on the loopback")
    with server:
        attempt = begin("n1", "::1", server.getsockname()[1], BEGAN)
        assert decided(attempt)
        assert attempt.outcome is Probe.ANSWERED


def test_beginning_does_not_wait(blackhole: tuple[str, int]) -> None:
    attempt = begin("n1", *blackhole, BEGAN)
    assert attempt.sock is not None
    assert not attempt.sock.getblocking()
    assert not attempt.sock.get_inheritable()
    attempt.settle(BEGAN + 1)
