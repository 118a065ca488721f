"""Looking at nodes once, over real sockets of the loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hpresume.resume import evidence, probe
from hpresume.resume.evidence import look_once, unserved
from hpresume.resume.model import NodeFault, Sign
from hpresume.slurm.models import ClusterConfig, Node

CONFIG = ClusterConfig("c", (24, 11, 5), 300, 30, 6818, "", frozenset(), (), True)
GONE = "is lost: slurmd's port: n..1 is no host name"


@pytest.fixture
def nodes() -> Iterator[dict[str, Node]]:
    """n1 answers, n4 refuses; n2 and n3 cannot be reached."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        here, busy = frozenset({"ALLOCATED"}), server.getsockname()[1]
        yield {
            "n1": Node("n1", here, "127.0.0.1", "n1", busy),
            "n2": Node("n2", here, "n..1", "n2", busy),
            "n3": Node("n3", here, "n..1", "n3", busy),
            "n4": Node("n4", here, "127.0.0.1", "n4", bound.getsockname()[1]),
        }


def test_nodes_that_do_not_answer_are_lost(nodes: dict[str, Node]) -> None:
    assert look_once(["n1", "n2", "n3"], nodes, CONFIG) == (
        NodeFault("n2", Sign.LOST, GONE),
        NodeFault("n3", Sign.LOST, GONE),
    )


def test_a_slurmd_that_is_being_restarted_is_no_lost_node(nodes: dict[str, Node]) -> None:
    assert look_once(["n1", "n4"], nodes, CONFIG) == ()


def test_all_well(nodes: dict[str, Node]) -> None:
    assert look_once(["n1"], nodes, CONFIG) == ()


def test_nobody_answers_means_that_this_host_is_cut_off(nodes: dict[str, Node]) -> None:
    assert look_once(["n2", "n3"], nodes, CONFIG) == ()


def test_unless_it_is_known_not_to_be(nodes: dict[str, Node]) -> None:
    assert look_once(["n2"], nodes, CONFIG, lone=True) == (NodeFault("n2", Sign.LOST, GONE),)


def test_a_node_is_back_only_once_its_slurmd_is(nodes: dict[str, Node]) -> None:
    (fault,) = look_once(["n1", "n4"], nodes, CONFIG, lone=True)
    assert fault == NodeFault("n4", Sign.LOST, "is lost: slurmd's port: Connection refused")


def test_a_node_that_refuses_runs_no_slurmd(nodes: dict[str, Node]) -> None:
    fault = NodeFault("n4", Sign.UNHEALTHY, "runs no slurmd: its port: Connection refused")
    assert unserved(["n1", "n2", "n4"], ["n3"], nodes, CONFIG) == (fault,)
    assert unserved(["n4"], ["n1"], nodes, CONFIG) == (fault,)


def test_a_witness_is_not_blamed(nodes: dict[str, Node]) -> None:
    assert unserved(["n1"], ["n1", "n4"], nodes, CONFIG) == ()


def test_where_all_refuse_a_firewall_may_be_what_does(nodes: dict[str, Node]) -> None:
    assert unserved(["n4"], ["n4", "n3"], nodes, CONFIG) == ()


def test_no_nodes() -> None:
    assert look_once([], {}, CONFIG) == ()
    assert look_once([], {}, CONFIG, lone=True) == ()


def test_a_dead_address_takes_no_longer_than_the_probe(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full backlog: SYNs are dropped, as for a dead host."""
    monkeypatch.setattr(evidence, "PROBE_TIMEOUT_S", 0.02)
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 0.02)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        port = server.getsockname()[1]
        nodes["n9"] = Node("n9", frozenset({"ALLOCATED"}), "127.0.0.1", "n9", port)
        faults = look_once(["n9", "n1"], nodes, CONFIG)
        for client in clients:
            client.close()
    assert faults == (NodeFault("n9", Sign.LOST, "is lost: slurmd's port: no answer"),)
