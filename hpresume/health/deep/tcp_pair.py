"""One TCP connection between two nodes: bandwidth both ways, and round trips.

Runs on both nodes of a pair as one Slurm step, by file name, with the standard
library only: ``python -I -S tcp_pair.py LISTENER ADDRESS PORT SECONDS LIMIT_S``.
The node called LISTENER waits at ADDRESS:PORT, the other one connects and prints
the result, one JSON object in a line: ``up_gbps``, ``down_gbps``, ``rtt_ms``,
or ``error``. A listener that cannot listen prints ``doubt``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

_BLOCK = 1 << 18
_TRIPS = 50
_UP, _DOWN, _PING = b"U", b"D", b"P"


def hello() -> bytes:
    """What tells this pair's connection from any other: both ends are one step."""
    step = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}"
    return f"hpresume {step}\n".encode()


def listen(port: int, seconds: float, deadline: float) -> None:
    """Serve the partner until it has asked all it wants."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.create_server(
        ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6
    ) as server:
        served = 0
        while served < 3:
            server.settimeout(_left(deadline))
            connection, _ = server.accept()
            with connection:
                connection.settimeout(_left(deadline))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    if _exactly(connection, len(hello())) == hello():
                        serve(connection, _exactly(connection, 1), seconds, deadline)
                        served += 1
                except ConnectionError:  # the partner tells
                    continue


def serve(connection: socket.socket, what: bytes, seconds: float, deadline: float) -> None:
    """One measurement, from the listener's side."""
    if what == _PING:
        for _ in range(_TRIPS):
            connection.sendall(_exactly(connection, 1))
    elif what == _UP:
        connection.sendall(b"%.6f\n" % receive(connection, deadline))
    elif what == _DOWN:
        send(connection, seconds, deadline)
        _exactly(connection, 1)


def ask(address: str, port: int, seconds: float, deadline: float) -> dict[str, float]:
    """All measurements, from the connecting side."""
    with _connected(address, port, deadline, _PING) as connection:
        trips = []
        for _ in range(_TRIPS):
            started = time.perf_counter()
            connection.sendall(b"x")
            _exactly(connection, 1)
            trips.append(time.perf_counter() - started)
    with _connected(address, port, deadline, _UP) as connection:
        send(connection, seconds, deadline)
        up = float(_line(connection))
    with _connected(address, port, deadline, _DOWN) as connection:
        down = receive(connection, deadline)
        connection.sendall(b"x")
    # The shortest: what the network takes, not what a busy processor adds.
    return {"up_gbps": up, "down_gbps": down, "rtt_ms": 1000 * min(trips)}


def send(connection: socket.socket, seconds: float, deadline: float) -> None:
    """As much as goes through in that time, and then the end."""
    block = bytes(_BLOCK)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        connection.settimeout(_left(deadline))
        connection.sendall(block)
    connection.shutdown(socket.SHUT_WR)


def receive(connection: socket.socket, deadline: float) -> float:
    """All there is until the end, in Gbit/s from the first byte to the last."""
    buffer = bytearray(_BLOCK)
    connection.settimeout(_left(deadline))
    total = connection.recv_into(buffer)
    started, first = time.perf_counter(), total
    while count := connection.recv_into(buffer):
        total += count
        connection.settimeout(_left(deadline))
    took = time.perf_counter() - started
    return 8e-9 * (total - first) / took if took > 0 else 0.0


def _connected(address: str, port: int, deadline: float, what: bytes) -> socket.socket:
    """A connection to the partner, which may not listen yet."""
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=_left(deadline))
        except ConnectionRefusedError:
            if _left(deadline) < 1:
                raise
            time.sleep(0.05)
            continue
        connection.settimeout(_left(deadline))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(hello() + what)
        return connection


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise ConnectionResetError("the partner closed the connection")
        found += part
    return found


def _line(connection: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n") and len(found) < 64:
        found += _exactly(connection, 1)
    return found


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def main(args: list[str]) -> int:
    """This node's end of the pair."""
    listener, address, port, seconds, limit = args
    deadline = time.monotonic() + float(limit)
    me = os.environ.get("SLURMD_NODENAME", "")
    if me == listener:
        try:
            listen(int(port), float(seconds), deadline)
        except TimeoutError:
            return 0  # the partner tells
        except OSError as error:
            print(json.dumps({"doubt": f"{me} cannot listen at port {port}: {error.strerror}"}))
        return 0
    try:
        found: dict[str, object] = dict(ask(address, int(port), float(seconds), deadline))
    except (OSError, ValueError) as error:
        # A name that cannot be looked up included: the two cannot talk.
        found = {"error": f"{me} to {listener} ({address}:{port}): {error}"}
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
