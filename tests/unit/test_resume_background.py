"""A call in a thread, waited for by its file descriptor."""

from __future__ import annotations

import _thread
import os
import select
import threading

import pytest

from hpresume.errors import SlurmError, SlurmTransientError
from hpresume.resume.background import Background, detached


def ended(task: Background[object]) -> bool:
    return bool(select.select([task.fd], [], [], 20)[0])


def test_a_value() -> None:
    task: Background[object] = Background(lambda: 42)
    assert ended(task)
    assert task.done()
    assert task.result() == 42


def test_it_does_not_wait_for_the_call() -> None:
    go = threading.Event()
    task: Background[object] = Background(lambda: go.wait(20))
    assert not task.done()
    assert not select.select([task.fd], [], [], 0)[0]
    go.set()
    assert ended(task)
    assert task.result() is True


@pytest.mark.parametrize("error", [SlurmError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_is_raised_where_the_value_is_asked_for(error: BaseException) -> None:
    def call() -> object:
        raise error

    task: Background[object] = Background(call)
    assert ended(task)
    with pytest.raises(type(error)) as caught:
        task.result()
    assert caught.value is error


def test_no_file_descriptor_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        task: Background[object] = Background(lambda: None)
        assert ended(task)
        task.result()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_children_do_not_inherit_it() -> None:
    task: Background[object] = Background(lambda: None)
    assert not os.get_inheritable(task.fd)
    assert ended(task)
    task.result()


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's limit of processes is reached: as when Slurm does not answer."""

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_thread)
    task: Background[object] = Background(lambda: 42)
    assert ended(task)
    assert task.done()
    with pytest.raises(SlurmTransientError, match="no thread can be started"):
        task.result()


def test_a_detached_call_leaves_no_descriptor_open() -> None:
    done = threading.Event()
    before = len(os.listdir("/proc/self/fd"))
    detached(done.set)
    assert done.wait(20)
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_thread_a_detached_call_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    detached(lambda: pytest.fail("it ran"))
