"""The controller's loop: each pass has a pause of its own, and can be woken alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hpresume.controller import main
from hpresume.controller.config import parse
from hpresume.controller.service import Pass, Service
from hpresume.errors import ConfigError, SlurmTransientError
from hpresume.recovery.recoverer import Passed
from hpresume.store import Lease, open_store
from hpresume.store.lease import leader


class Counted:
    def __init__(self, passed: Passed) -> None:
        self.passed = passed
        self.count = 0

    def once(self) -> Passed:
        self.count += 1
        return self.passed

    def close(self) -> None: ...


IDLE = Passed(acted=False, busy=False)


@pytest.fixture
def service(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    one, other = Counted(IDLE), Counted(IDLE)
    lease = Lease(store, "i1", 60.0, time.monotonic, time.time)
    lease.try_hold()
    made = Service(
        store, lease, lambda fence, wake: [one, other],
        interval_s=60.0, lease_s=60.0, keep_events_s=1e9,
    )  # fmt: skip
    yield made, one, other, lease
    store.close()


def test_each_pass_is_made_when_it_is_due(service) -> None:
    made, one, other, _ = service
    assert made._pass() == pytest.approx(60.0, abs=1.0)
    one.passed = Passed(acted=False, busy=True)
    made.wake()
    assert made._pass() == pytest.approx(0.5, abs=0.1)
    assert (one.count, other.count) == (2, 2)
    assert made._pass() <= 0.5
    assert (one.count, other.count) == (2, 2)


def test_what_wakes_one_pass_leaves_the_others_alone(service) -> None:
    made, one, other, _ = service
    made._pass()
    for _ in range(3):
        made.wake(one)
        time.sleep(made._pass())  # not before its shortest pause
        made._pass()
    assert (one.count, other.count) == (4, 1)


def test_a_pass_that_is_woken_while_it_runs_is_made_again(service) -> None:
    made, one, _, _ = service
    once = one.once
    one.once = lambda: (made.wake(one), once())[1]
    assert made._pass() <= 0.05


def test_a_new_leadership_makes_all_passes_at_once(service) -> None:
    made, one, _, lease = service
    made._pass()
    lease.release()
    made._pass()
    lease.try_hold()
    made._pass()
    assert one.count == 2


class Failing(Counted):
    def once(self) -> Passed:
        raise SlurmTransientError("slurmctld does not answer")


@pytest.mark.parametrize(("each", "well"), [(Counted(IDLE), True), (Failing(IDLE), False)])
def test_one_pass_says_whether_it_went_well(each, well, tmp_path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    lease = Lease(store, "i1", 60.0, time.monotonic, time.time)
    made = Service(
        store, lease, lambda fence, wake: [each, Counted(IDLE)],
        interval_s=60.0, lease_s=60.0, keep_events_s=1e9,
    )  # fmt: skip
    assert made.run(once=True) is well
    store.close()


def test_who_leads_is_told_from_the_beginning_and_when_it_changes(tmp_path, caplog) -> None:
    caplog.set_level("INFO")
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    first = Lease(store, "i1", 60.0, time.monotonic, time.time)
    first.try_hold()
    second = Lease(store, "i2", 60.0, time.monotonic, time.time, lambda holder: False)
    made = Service(
        store, second, lambda fence, wake: [Counted(IDLE)],
        interval_s=60.0, lease_s=60.0, keep_events_s=1e9,
    )  # fmt: skip
    assert made.run(once=True) is False
    assert [r.getMessage() for r in caplog.records] == [
        "another instance leads, this one stands by"
    ]
    caplog.clear()
    first.release()
    made._hold()
    second._until = 0.0  # the database did not answer for too long
    made._pass()
    made._pass()
    made._hold()
    assert [r.getMessage() for r in caplog.records] == [
        "this instance leads",
        "this instance does not lead any more: its lease was not renewed",
        "this instance leads",
    ]
    store.close()


def test_an_unknown_trouble_does_not_end_the_renewals(tmp_path, monkeypatch) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    lease = Lease(store, "i1", 0.2, time.monotonic, time.time)
    renewed = threading.Event()
    hold, times = lease.try_hold, []

    def stumble() -> object:
        times.append(0)
        if len(times) == 2:
            raise RuntimeError("whatever it was")
        if len(times) == 4:
            renewed.set()
        return hold()

    monkeypatch.setattr(lease, "try_hold", stumble)
    made = Service(
        store, lease, lambda fence, wake: [Counted(IDLE)],
        interval_s=60.0, lease_s=0.2, keep_events_s=1e9,
    )  # fmt: skip

    def end() -> None:
        assert renewed.wait(30.0)
        os.kill(os.getpid(), signal.SIGTERM)

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    waiting = threading.Thread(target=end)
    waiting.start()
    try:
        made.run()
    finally:
        waiting.join()
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
    with store.read() as session:
        assert leader(session, time.time()) == ""
    store.close()


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ({"type": "power"}, "would act on this host's own Slurm"),
        ({"type": "devcluster", "cluster": "other"}, "machines of one would stand in"),
    ],
)
def test_machines_and_nodes_are_of_one_cluster(provider, words) -> None:
    with pytest.raises(ConfigError, match=words):
        main._provider(parse({"controller": {"devcluster": "dev"}, "provider": provider}))


def test_the_provider_of_a_dev_cluster_has_its_name() -> None:
    config = parse({"controller": {"devcluster": "mine"}, "provider": {"type": "devcluster"}})
    assert main._provider(config)._cluster.name == "mine"


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_does_not_provision(dry_run, tmp_path, monkeypatch) -> None:
    made: list[list[Pass]] = []

    class Recorded:
        def __init__(self, store, lease, passes, **_) -> None:
            made.append(passes(lambda: None, lambda only=None: None))

        def run(self, once: bool) -> None:
            return None

    monkeypatch.setattr(main, "Service", Recorded)
    monkeypatch.setattr(main, "reach", lambda config: (None, None, None))
    monkeypatch.setattr(main.os, "geteuid", lambda: 0)
    config = parse(
        {
            "controller": {"database": f"sqlite:///{tmp_path}/c.db"},
            "provider": {"type": "devcluster"},
            "provision": {},
        }
    )
    main.run(config, dry_run=dry_run)
    kinds = [type(each).__name__ for each in made[0]]
    assert kinds == (["Recoverer"] if dry_run else ["Opening", "Recoverer", "Provisioning"])
