"""The lease: at most one leader, whatever the hosts' clocks say."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres import server

from hpresume.errors import LeadershipLostError, StoreError
from hpresume.store import Base, Event, Lease, open_store
from hpresume.store.events import add, since
from hpresume.store.lease import holder_is_dead, own_identity

LENGTH = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def instances(store, clock, count=2, wrong_by=1e6):
    return [
        Lease(store, f"i{n}", LENGTH, clock, lambda n=n: n * wrong_by, lambda _: False)
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def postgresql():
    with server() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    if request.param == "sqlite":
        opened = open_store(f"sqlite:///{tmp_path}/c.db")
    else:
        opened = open_store(request.getfixturevalue("postgresql"))
    yield opened
    if request.param == "postgresql":
        Base.metadata.drop_all(opened.engine)
    opened.close()


def test_two_that_take_it_in_the_same_moment(store):
    """Compare-and-set: threads with connections of their own, and one winner."""
    clock = Clock()
    leases = instances(store, clock, 8)
    with ThreadPoolExecutor(len(leases)) as pool:
        fences = list(pool.map(lambda lease: lease.try_hold(), leases))
    assert sum(fence is not None for fence in fences) == 1


def test_one_leads_and_the_other_takes_over_after_the_whole_length(store):
    clock = Clock()
    first, second = instances(store, clock)
    assert first.try_hold() is not None
    assert second.try_hold() is None
    clock.now += LENGTH - 0.1
    assert second.try_hold() is None
    clock.now += 0.2
    fence = second.try_hold()
    assert fence is not None
    assert fence.epoch == 2
    assert first.fence is None  # by its own clock, without asking
    assert first.try_hold() is None


def test_a_renewal_makes_the_follower_wait_anew(store):
    clock = Clock()
    first, second = instances(store, clock)
    first.try_hold()
    for _ in range(10):
        clock.now += LENGTH / 3
        assert first.try_hold() is not None
        assert second.try_hold() is None


def test_the_leader_stops_before_anybody_else_may_begin(store):
    clock = Clock()
    first, second = instances(store, clock)
    first.try_hold()
    second.try_hold()
    clock.now += LENGTH * Lease.OWN_SHARE
    assert first.fence is None
    assert second.try_hold() is None


def test_a_lease_that_was_given_up_is_free_at_once(store):
    first, second = instances(store, Clock())
    first.try_hold()
    first.release()
    assert first.fence is None
    assert second.try_hold() is not None


def test_a_leader_that_slept_writes_nothing(store):
    clock = Clock()
    first, second = instances(store, clock)
    old = first.try_hold()
    second.try_hold()
    clock.now += LENGTH
    new = second.try_hold()
    with pytest.raises(LeadershipLostError, match="i1 leads now"), store.write(old) as session:
        add(session, Event(1.0, "x", "from the old leader"))
    with store.write(new) as session:
        add(session, Event(1.0, "x", "from the new leader"))
    with store.read() as session:
        assert [e.message for e in since(session)] == ["from the new leader"]


def test_a_dead_process_of_this_host_holds_nothing(store):
    clock = Clock()
    code = "from hpresume.store.lease import own_identity; print(own_identity())"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    holder = dead.stdout.strip()
    Lease(store, holder, LENGTH, clock, clock).try_hold()
    assert holder_is_dead(holder)
    assert Lease(store, own_identity(), LENGTH, clock, clock).try_hold() is not None


def test_a_holder_that_lives_or_cannot_be_seen_is_not_dead():
    own = own_identity()
    assert not holder_is_dead(own)
    host = os.uname().nodename
    assert not holder_is_dead(own.replace(host, "elsewhere", 1))
    words = own.split(":")
    words[1] = "another-boot"
    assert not holder_is_dead(":".join(words))
    assert not holder_is_dead("i1")
    # The same pid, but another process by now.
    assert holder_is_dead(own.rsplit(":", 1)[0] + ":1")


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["try0", "try1", "try2", "release0", "release1"]), st.floats(0, 8)
        ),
        max_size=40,
    )
)
def test_never_two_leaders(tmp_path_factory, moves):
    clock = Clock()
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('l')}/c.db")
    leases = instances(store, clock, 3)
    epochs = []
    for what, pause in moves:
        clock.now += pause
        lease = leases[int(what[-1])]
        if what.startswith("release"):
            lease.release()
        elif (fence := lease.try_hold()) is not None:
            epochs.append(fence.epoch)
        assert sum(one.fence is not None for one in leases) <= 1
    assert epochs == sorted(epochs)
    store.close()


def test_a_leader_that_is_frozen_inside_a_transaction_keeps_nobody_out(postgresql, monkeypatch):
    monkeypatch.setattr("hpresume.store.database.IDLE_TIMEOUT_S", 0.5)
    clock = Clock()
    frozen, other = open_store(postgresql), open_store(postgresql)
    try:
        (first,) = instances(frozen, clock, 1)
        second = Lease(other, "i2", LENGTH, clock, lambda: 0.0, lambda _: False)
        fence = first.try_hold()
        assert second.try_hold() is None
        with pytest.raises(StoreError), frozen.write(fence) as session:  # noqa: PT012
            add(session, Event(1.0, "x", "never written"))
            clock.now += LENGTH + 1.0
            # Waits for the row until the database has ended the session that has locked it.
            assert second.try_hold() is not None
        with other.read() as session:
            assert since(session) == ()
    finally:
        Base.metadata.drop_all(other.engine)
        frozen.close()
        other.close()
