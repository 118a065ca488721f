"""The watch step around a FAKE srun; time is a number that the test moves.

The fake does what the test tells it through a pipe: it prints what it is given
and, like the real one with its agents, ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpresume.resume import probe
from hpresume.resume.detect import PROBE_TIMEOUT_S, REFUSED_S, Pulse
from hpresume.resume.model import Sign
from hpresume.resume.watch import (
    COME_UP_S,
    PROBE_ONLY_INTERVAL_S,
    START_GRACE_S,
    Watch,
    agent_command,
)

FAKE_SRUN = f"""#!{sys.executable} -IS
import json, os, select, signal, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/calls", "a") as calls:
    facts = [sys.argv[1:], dict(os.environ), os.getpid(), os.getpgrp()]
    calls.write(json.dumps(facts) + "\\n")
def taken_back(*_):
    with open(here + "/ended", "a") as ended:
        ended.write("taken back\\n")
    os._exit(1)
signal.signal(15, taken_back)
control = os.open(here + "/control", os.O_RDWR)
while True:
    ready = select.select([0, control], [], [])[0]
    if control in ready:
        length = int(os.read(control, 8))
        order = json.loads(os.read(control, length))
        if "out" in order:
            sys.stdout.buffer.write(order["out"].encode("latin-1") * order.get("times", 1))
            sys.stdout.buffer.flush()
        if "err" in order:
            os.write(2, order["err"].encode())
        if "deaf" in order:
            os.close(0); os.open("/dev/zero", os.O_RDONLY)
            select.select([], [], [])
        if "exit" in order:
            os._exit(order["exit"])
    elif got := os.read(0, 4096):
        with open(here + "/input", "ab") as kept:
            kept.write(got)
    else:
        with open(here + "/ended", "a") as ended:
            ended.write("in good order\\n")
        os._exit(0)
"""

NOW = 1000.0
INTERVAL, SILENCE = 1.0, 2.0
REAL_LIMIT_S = 20.0


class Scene:
    """A watch over named nodes, its fake srun, and the time."""

    def __init__(
        self,
        folder: Path,
        targets: dict[str, tuple[str, int]],
        lease: tuple[str, float] = ("", 0.0),
    ) -> None:
        self.folder = folder
        self.srun = folder / "srun"
        self.srun.write_text(FAKE_SRUN)
        self.srun.chmod(0o755)
        os.mkfifo(folder / "control")
        self._control = os.open(folder / "control", os.O_RDWR)
        self.now = NOW
        environ = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/s.conf"}
        self.watch = Watch(
            str(self.srun), 7, targets, environ, INTERVAL, SILENCE, self.now, lease=lease
        )

    def order(self, **order: object) -> None:
        text = json.dumps(order).encode()
        os.write(self._control, b"%08d" % len(text) + text)

    def beat(self, *nodes: str) -> None:
        self.order(out="".join(f"hpresume-beat {n} 1\n" for n in nodes))

    def step(self, after: float = 0.0) -> dict[str, Pulse]:
        self.now += after
        return self.watch.step(self.now)

    def until(self, wanted: Callable[[], bool]) -> dict[str, Pulse]:
        """Step, with the time standing still, until something has come."""
        deadline = time.monotonic() + REAL_LIMIT_S
        while True:
            judged = self.step()
            if wanted():
                return judged
            assert time.monotonic() < deadline, f"waited in vain; {self.watch.trouble}"
            poller = select.poll()
            for fd, writing in self.watch.fds():
                poller.register(fd, select.POLLOUT if writing else select.POLLIN)
            poller.poll(20)

    def heard(self, *nodes: str) -> dict[str, Pulse]:
        """Let ``nodes`` beat, and wait until all of that was taken in."""
        self.beat(*nodes)
        return self.until(lambda: all(self.watch.last_beat(n) == self.now for n in nodes))

    def answered(self) -> dict[str, Pulse]:
        """Wait until no probe is under way."""
        return self.until(lambda: not self.watch.is_asking)

    def calls(self) -> list[tuple[list[str], dict[str, str], int, int]]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(json.loads(line)) for line in lines]  # type: ignore[misc]

    def close(self) -> None:
        self.watch.stop()
        os.close(self._control)


@pytest.fixture
def listening() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()


@pytest.fixture
def refusing() -> Iterator[tuple[str, int]]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@pytest.fixture
def scene(tmp_path: Path, listening: tuple[str, int], refusing: tuple[str, int]) -> Iterator[Scene]:
    """n1 answers on slurmd's port, n2 does not."""
    made = Scene(tmp_path, {"n1": listening, "n2": refusing})
    yield made
    made.close()


@pytest.fixture
def broken(tmp_path: Path, listening: tuple[str, int]) -> Iterator[Scene]:
    """n1 answers on slurmd's port, n2 cannot be reached at all."""
    made = Scene(tmp_path, {"n1": listening, "n2": ("n..1", 1)})
    yield made
    made.close()


# -- the command ---------------------------------------------------------------


def test_the_watch_step_is_started_over_all_nodes(scene: Scene) -> None:
    scene.heard("n1")
    ((argv, environ, pid, group),) = scene.calls()
    assert "--jobid=7" in argv
    assert "--nodelist=n1,n2" in argv
    assert argv[-5:] == agent_command(INTERVAL)
    assert "SLURM_JOB_ID" not in environ
    assert environ["SLURM_CONF"] == "/etc/s.conf"
    assert group == pid, "Ctrl-C on the terminal would reach it"
    assert scene.watch.nodes == ("n1", "n2")


# -- beats ---------------------------------------------------------------------


def test_beats_keep_nodes_alive(scene: Scene) -> None:
    for _ in range(5):
        assert scene.heard("n1", "n2") == {"n1": Pulse.ALIVE, "n2": Pulse.ALIVE}
        scene.step(INTERVAL)
    assert scene.watch.has_beaten("n1")
    assert len(scene.calls()) == 1
    assert not scene.watch.is_asking


def test_silence_and_no_answer_is_a_loss_at_the_limit_and_not_before(scene: Scene) -> None:
    scene.heard("n1", "n2")
    for _ in range(19):
        scene.now += 0.1
        assert scene.heard("n1")["n2"] is Pulse.ALIVE
    scene.now = NOW + SILENCE
    assert scene.heard("n1")["n2"] is Pulse.ALIVE  # slurmd may be in the middle of a restart
    scene.now = NOW + 1.3 + REFUSED_S + 0.01
    scene.heard("n1")
    assert scene.answered() == {"n1": Pulse.ALIVE, "n2": Pulse.LOST}
    said = scene.watch.explain("n2", scene.now)
    assert said == "silent for 2.3 s, slurmd's port: Connection refused"


def test_a_silent_node_that_answers_is_mute_and_never_lost(scene: Scene) -> None:
    scene.heard("n1", "n2")
    seen = set()
    for _ in range(100):
        scene.step(0.1)
        seen.add(scene.answered()["n1"])
    assert Pulse.MUTE in seen
    assert Pulse.LOST not in seen


def test_a_mute_node_stays_mute_while_it_is_asked_again(scene: Scene) -> None:
    scene.heard("n1", "n2")
    scene.step(1.3)
    scene.answered()
    assert scene.step(0.8)["n1"] is Pulse.MUTE
    assert scene.step(0.3)["n1"] is Pulse.MUTE
    assert scene.watch.is_asking


def test_a_mute_node_that_beats_again_is_alive(scene: Scene) -> None:
    scene.heard("n1", "n2")
    scene.step(1.5)
    scene.answered()
    scene.now += 1.0
    assert scene.answered()["n1"] is Pulse.MUTE
    assert scene.heard("n1")["n1"] is Pulse.ALIVE


def test_no_answer_at_all_takes_the_probes_timeout(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        filling = [socket.socket() for _ in range(4)]
        for client in filling:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        scene = Scene(tmp_path, {"n1": server.getsockname()})
        try:
            scene.heard("n1")
            scene.step(1.3)
            assert scene.watch.timeout(scene.now) == pytest.approx(PROBE_TIMEOUT_S)
            scene.step(PROBE_TIMEOUT_S - 0.01)
            assert scene.watch.is_asking
            assert scene.step(0.02) == {"n1": Pulse.ALIVE}
            assert not scene.watch.is_asking
            assert scene.step(0.2) == {"n1": Pulse.LOST}
            assert "no answer" in scene.watch.explain("n1", scene.now)
        finally:
            scene.close()
            for client in filling:
                client.close()


def test_a_node_that_was_never_heard_is_lost_after_the_grace(scene: Scene) -> None:
    scene.heard("n1")
    scene.now = NOW + START_GRACE_S + SILENCE - 0.01
    scene.step()
    assert scene.answered()["n2"] is Pulse.ALIVE
    scene.step(REFUSED_S)
    assert scene.answered()["n2"] is Pulse.LOST
    assert not scene.watch.has_beaten("n2")
    assert scene.watch.explain("n2", scene.now).startswith("never heard")


def test_silence_while_the_supervisor_was_stopped_is_forgiven(scene: Scene) -> None:
    scene.heard("n1", "n2")
    scene.now += 3600
    scene.watch.forgive(scene.now)
    assert scene.step() == {"n1": Pulse.ALIVE, "n2": Pulse.ALIVE}
    scene.step(SILENCE)
    assert scene.answered()["n2"] is Pulse.ALIVE
    scene.step(REFUSED_S)
    assert scene.answered()["n2"] is Pulse.LOST


# -- what the watch step prints ------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        "hello",
        "hpresume-beat",
        "hpresume-beat n2",
        "hpresume-beat n2 1 1",
        "hpresume-beat n3 1",
        "xhpresume-beat n2 1",
        "\n\n\0\0",
        "\xff\xfe\xe9",
        "srun: error: n2: task 1: Killed",
    ],
)
def test_garbage_is_no_beat_and_hides_none(scene: Scene, noise: str) -> None:
    scene.order(out=f"{noise}\n")
    assert set(scene.heard("n1")) == {"n1", "n2"}
    assert not scene.watch.has_beaten("n2")


def test_half_a_line_is_no_beat_yet(scene: Scene) -> None:
    scene.order(out="hpresume-beat n1 1\nhpresume-beat n2 1")
    scene.until(lambda: scene.watch.has_beaten("n1"))
    assert not scene.watch.has_beaten("n2")
    scene.order(out="5\n")
    scene.until(lambda: scene.watch.has_beaten("n2"))


def test_a_beat_in_pieces(scene: Scene) -> None:
    scene.order(out="hpresume-b")
    scene.order(out="eat n1 ")
    scene.order(out="5\nhpresume-beat n2 5\n")
    scene.until(lambda: scene.watch.has_beaten("n1") and scene.watch.has_beaten("n2"))


def test_megabytes_of_noise_in_front_of_a_beat(scene: Scene) -> None:
    scene.order(out="x" * 1000, times=20_000)
    scene.order(out="\n")
    scene.heard("n1")
    scene.order(out="y" * 1000, times=1000)
    scene.order(out="\nhpresume-beat n2 1\n")
    scene.until(lambda: scene.watch.has_beaten("n2"))


FLOOD = """
import os, resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from hpresume.resume.watch import _drain
assert set(_drain(os.open("/dev/zero", os.O_RDONLY))) == {0}
"""


def test_an_endless_flood_does_not_hold_up_the_loop() -> None:
    """Signals for the real srun are forwarded by the same loop."""
    subprocess.run([sys.executable, "-c", FLOOD], check=True, timeout=REAL_LIMIT_S)


def test_nodes_that_ran_out_of_memory_are_remembered(scene: Scene) -> None:
    scene.order(out="hpresume-memory n2 1\nhpresume-memory n9 1\n")
    scene.heard("n1", "n2")
    assert scene.watch.short_of_memory == {"n2"}


# -- a watch step that does not run --------------------------------------------


def ended(scene: Scene, code: int, words: str = "") -> None:
    """Let the watch step that runs end, and wait until that was noticed."""
    scene.watch.trouble = ""
    scene.order(err=words, exit=code)
    scene.until(lambda: bool(scene.watch.trouble))


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        ("", "exit code 3"),
        ("srun: error: Unable to create step: no\n", "srun: error: Unable to create step: no"),
        ("one\ntwo\n\n", "two"),
        ("w" * 10_000 + "\nlast", "last"),
    ],
)
def test_why_it_ended_is_told(scene: Scene, words: str, trouble: str) -> None:
    ended(scene, 3, words)
    assert scene.watch.trouble == trouble
    assert not scene.watch.probe_only


def test_it_is_started_again_without_one_of_its_agents(scene: Scene) -> None:
    """The node of an agent that was killed seems silent, and is well."""
    scene.heard("n1", "n2")
    scene.order(err="srun: error: n2: task 1: Killed\nsrun: some words\n")
    scene.now += 1.0
    scene.heard("n1", "n2")
    scene.now += 2.1
    scene.until(lambda: scene.watch.failures == 1)
    assert scene.watch.trouble == "srun: error: n2: task 1: Killed"
    scene.now += 5.0
    scene.heard("n1", "n2")
    assert len(scene.calls()) == 2
    scene.now += 30.0
    scene.heard("n1", "n2")
    assert scene.watch.failures == 1


def test_words_about_a_lost_node_are_no_end_of_an_agent(scene: Scene) -> None:
    scene.heard("n1", "n2")
    scene.order(err="srun: error: Node failure on n2\nsrun: error: n2: something\n", out="x\n")
    scene.now += 2.1
    scene.heard("n1")
    scene.now += 2.1
    scene.heard("n1")
    assert scene.watch.is_running
    assert scene.watch.failures == 0


def test_silence_is_a_nodes_own_only_while_others_are_heard(scene: Scene) -> None:
    scene.heard("n1", "n2")
    scene.now += 5.0
    scene.heard("n2")
    scene.answered()
    assert scene.watch.works(scene.now)
    assert scene.watch.mute(["n1", "n2"], scene.now, 4.0) == {"n1"}
    assert scene.watch.mute(["n1", "n2"], scene.now, 5.0) == frozenset()
    scene.step(3.5)
    scene.answered()
    assert not scene.watch.works(scene.now)
    assert scene.watch.mute(["n1", "n2"], scene.now, 4.0) == frozenset()


def test_a_watch_step_that_was_not_heard_yet_says_nothing_of_touches(scene: Scene) -> None:
    scene.heard("n1", "n2")
    assert scene.watch.told_at("n1") == scene.now
    scene.watch.forgive(scene.now + 1)
    assert scene.watch.told_at("n1") == 0.0
    assert not scene.watch.works(scene.now)


def test_it_is_started_again_after_a_pause(scene: Scene) -> None:
    scene.heard("n1", "n2")
    ended(scene, 1)
    scene.step(4.9)
    assert len(scene.calls()) == 1
    assert scene.watch.timeout(scene.now) <= 0.11
    scene.now += 0.1
    scene.heard("n1")
    assert len(scene.calls()) == 2


def test_a_new_watch_step_gets_time_to_come_up(scene: Scene) -> None:
    """What was not heard meanwhile is not held against a node."""
    scene.heard("n1", "n2")
    ended(scene, 1)
    scene.now += 5.0
    assert scene.heard("n1")["n2"] is Pulse.ALIVE
    scene.now += START_GRACE_S + SILENCE - 0.01
    scene.step()
    assert scene.answered()["n2"] is Pulse.ALIVE
    scene.step(REFUSED_S)
    assert scene.answered()["n2"] is Pulse.LOST


def fall_back(scene: Scene) -> None:
    for _ in range(3):
        assert not scene.watch.probe_only
        scene.step(5.0)
        scene.now += START_GRACE_S
        ended(scene, 1, "srun: error: no\n")


def test_after_three_starts_probes_stand_in_for_it(scene: Scene) -> None:
    fall_back(scene)
    assert scene.watch.probe_only
    assert len(scene.calls()) == 3
    assert scene.watch.trouble == "srun: error: no"
    assert scene.watch.interval == PROBE_ONLY_INTERVAL_S
    assert scene.watch.silence == 3 * PROBE_ONLY_INTERVAL_S
    began, seen = scene.now, []
    while scene.now < began + 60:
        scene.step(1.0)
        judged = scene.answered()
        assert judged["n1"] is Pulse.ALIVE
        seen.append((scene.now - began, judged["n2"]))
    assert {state for quiet, state in seen if quiet < 15} == {Pulse.ALIVE}
    assert {state for quiet, state in seen if quiet >= 15} == {Pulse.LOST}
    assert len(scene.calls()) == 3


def test_one_that_does_not_come_up_is_ended_and_told(scene: Scene) -> None:
    """srun may wait for ever for a place in the job, and says nothing."""
    for number in (1, 2, 3):
        scene.step(5.0)
        scene.until(lambda number=number: len(scene.calls()) == number)
        scene.step(COME_UP_S)
        assert scene.watch.is_running
        assert not scene.watch.is_up
        scene.step(0.01)
        assert not scene.watch.is_running
        assert scene.watch.failures == number
        assert scene.watch.trouble == "nothing was heard of any node for 60 s"
    scene.step()
    assert scene.watch.probe_only


def test_lines_that_waited_while_this_process_was_stopped_count(scene: Scene) -> None:
    scene.step()
    scene.beat("n1")
    poller = select.poll()
    poller.register(scene.watch.fds()[0][0], select.POLLIN)
    assert poller.poll(REAL_LIMIT_S * 1000)
    scene.step(COME_UP_S + 1)
    assert scene.watch.is_up
    assert scene.watch.is_running


def test_one_node_that_is_heard_of_is_enough(scene: Scene) -> None:
    scene.heard("n1")
    scene.step(10 * COME_UP_S)
    assert scene.watch.is_running
    assert scene.watch.failures == 0


def test_every_end_is_counted(scene: Scene) -> None:
    for number in (1, 2, 3):
        scene.step(5.0)
        assert scene.watch.is_running
        ended(scene, 1)
        assert not scene.watch.is_running
        assert scene.watch.failures == number


def test_a_watch_step_that_ran_for_long_may_end_as_often_again(scene: Scene) -> None:
    """A training of weeks loses its watch step now and then."""
    for number in range(1, 9):
        scene.step(5.0)
        scene.heard("n1", "n2")
        assert len(scene.calls()) == number
        scene.now += 601.0
        scene.heard("n1", "n2")
        ended(scene, 1)
        assert not scene.watch.probe_only


def test_a_program_that_cannot_be_started_is_told(
    tmp_path: Path, listening: tuple[str, int]
) -> None:
    scene = Scene(tmp_path, {"n1": listening})
    scene.srun.unlink()
    try:
        scene.until(lambda: bool(scene.watch.trouble))
        assert "srun" in scene.watch.trouble
    finally:
        scene.close()


# -- asking at once ------------------------------------------------------------


def test_asking_all_nodes_at_once(broken: Scene) -> None:
    broken.heard("n1", "n2")
    broken.now += 0.1
    broken.watch.probe_now(["n1", "n2", "n9"], broken.now)
    assert broken.watch.is_asking
    broken.answered()
    assert broken.watch.unanswered(["n1", "n2"], broken.now) == ["n2"]
    assert broken.watch.unanswered(["n1", "n2"], broken.now + 0.1) == []


def test_a_refusal_alone_is_no_sign_of_a_loss(scene: Scene) -> None:
    """slurmd may be restarted in the moment in which the application fails."""
    scene.heard("n1", "n2")
    scene.watch.probe_now(["n1", "n2"], scene.now + 0.1)
    scene.answered()
    assert scene.watch.unanswered(["n1", "n2"], scene.now) == []
    assert scene.watch.also_lost(["n1", "n2"], scene.now + 0.95) == ()


def test_many_nodes_are_asked_a_few_at_a_time(
    tmp_path: Path,
    listening: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a job of a thousand nodes would use up the file descriptors."""
    monkeypatch.setattr(probe, "_MOST_AT_ONCE", 4)
    names = [f"n{i}" for i in range(1, 11)]
    scene = Scene(tmp_path, dict.fromkeys(names, listening) | {"n10": ("n..1", 1)})
    try:
        scene.heard(*names)
        scene.now += 0.1
        scene.watch.probe_now(names, scene.now)
        watched = [writing for _, writing in scene.watch.fds()]
        assert watched.count(True) == 4
        scene.answered()
        assert scene.watch.unanswered(names, scene.now) == ["n10"]
    finally:
        scene.close()


def test_a_node_that_beats_after_all_did_answer(scene: Scene) -> None:
    scene.heard("n1", "n2")
    asked = scene.now + 0.1
    scene.now = asked
    scene.watch.probe_now(["n2"], scene.now)
    scene.answered()
    scene.now += 0.1
    scene.heard("n2")
    assert scene.watch.unanswered(["n2"], asked) == []
    scene.watch.probe_now(["n2"], scene.now)
    scene.answered()
    assert scene.watch.unanswered(["n2"], asked) == []


def test_a_node_that_was_never_heard_and_does_not_answer_is_lost_with_others(broken: Scene) -> None:
    broken.heard("n1")
    broken.watch.probe_now(["n1", "n2"], broken.now + 0.1)
    broken.answered()
    (fault,) = broken.watch.also_lost(["n1", "n2"], broken.now + 0.1)
    assert (fault.node, fault.sign) == ("n2", Sign.LOST)


def test_what_is_lost_beside_others_needs_a_missed_beat_and_no_answer(broken: Scene) -> None:
    broken.heard("n1", "n2")
    broken.watch.probe_now(["n1", "n2"], broken.now + 0.5)
    broken.answered()
    assert broken.watch.also_lost(["n1", "n2"], broken.now + 0.5) == ()
    (fault,) = broken.watch.also_lost(["n1", "n2"], broken.now + 0.95)
    assert (fault.node, fault.sign) == ("n2", Sign.LOST)
    assert "n..1" in fault.evidence


# -- waiting -------------------------------------------------------------------


def test_the_loop_is_woken_in_time(scene: Scene) -> None:
    scene.heard("n1", "n2")
    assert scene.watch.timeout(scene.now) == pytest.approx(1.25 * INTERVAL)
    scene.now += 1.3
    scene.step()
    scene.answered()
    assert 0.01 <= scene.watch.timeout(scene.now) <= 0.71
    assert {writing for _, writing in scene.watch.fds()} == {False}


# -- the end -------------------------------------------------------------------


def test_stopping_ends_it_in_good_order(scene: Scene) -> None:
    scene.heard("n1")
    scene.watch.stop(patience_s=REAL_LIMIT_S)
    assert (scene.folder / "ended").read_text() == "in good order\n"
    assert scene.watch.fds() == []


def test_it_may_be_asked_to_end_first(scene: Scene) -> None:
    scene.heard("n1")
    scene.watch.let_go()
    scene.watch.let_go()
    scene.watch.stop(patience_s=REAL_LIMIT_S)
    assert (scene.folder / "ended").read_text() == "in good order\n"


def test_what_does_not_end_is_killed(scene: Scene) -> None:
    scene.heard("n1")
    pid = scene.calls()[0][2]
    scene.order(deaf=1)
    scene.watch.stop(patience_s=0.0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("is_up", [False, True])
def test_an_srun_that_may_not_have_launched_yet_is_asked_first(scene: Scene, is_up: bool) -> None:
    """Killed, it would leave a step without tasks behind."""
    if is_up:
        scene.heard("n1")
    scene.order(err="waits\n", deaf=1)
    scene.until(lambda: b"waits" in scene.watch._errors)
    scene.watch.stop(patience_s=0.0)
    ended = scene.folder / "ended"
    assert (ended.read_text() if ended.exists() else "") == ("" if is_up else "taken back\n")


def test_stopping_twice_or_before_anything_ran(scene: Scene) -> None:
    scene.watch.stop()
    scene.heard("n1")
    scene.watch.stop()
    scene.watch.stop()


def test_no_file_descriptor_and_no_process_is_left(
    tmp_path: Path, listening: tuple[str, int], refusing: tuple[str, int]
) -> None:
    scene = Scene(tmp_path, {"n1": listening, "n2": refusing})
    before = len(os.listdir("/proc/self/fd"))
    fall_back(scene)
    scene.watch.probe_now(["n1", "n2"], scene.now)
    scene.watch.stop()
    assert len(os.listdir("/proc/self/fd")) == before
    scene.close()
    for _, _, pid, _ in scene.calls():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# -- fencing -----------------------------------------------------------------------


@pytest.fixture
def leased(
    tmp_path: Path, listening: tuple[str, int], refusing: tuple[str, int]
) -> Iterator[Scene]:
    made = Scene(tmp_path, {"n1": listening, "n2": refusing}, ("7.3", 5.0))
    yield made
    made.close()


def test_the_lease_is_renewed_at_every_beat(leased: Scene) -> None:
    path = leased.folder / "input"
    for number in range(1, 4):
        leased.step()
        leased.step(0.4)
        wanted = number * b"lease 7.3 5\n"
        leased.until(lambda wanted=wanted: path.exists() and path.read_bytes() == wanted)
        assert leased.watch.timeout(leased.now) < 0.61
        leased.step(0.6)


def test_a_silent_node_has_ended_its_tasks_a_lease_after_the_first_beat_that_is_missing(
    leased: Scene,
) -> None:
    assert leased.watch.fenced_at("n2") == 0.0  # never heard of: it has no lease
    leased.heard("n1", "n2")
    assert leased.watch.fenced_at("n2") == leased.now + INTERVAL + 5.0 + 2.0


def test_a_node_says_that_it_has_ended_its_tasks(leased: Scene) -> None:
    leased.heard("n1", "n2")
    assert leased.watch.fenced(("n1", "n2")) == ()
    leased.order(out="hpresume-fenced n2 5\nhpresume-fenced n9 5\n")
    leased.until(lambda: leased.watch.fenced(("n1", "n2")) != ())
    (fault,) = leased.watch.fenced(("n1", "n2"))
    assert (fault.node, fault.sign) == ("n2", Sign.FENCED)
    assert fault.evidence == "was cut off for 5 s and ended its tasks"


def test_without_a_lease_nothing_is_said_and_nothing_is_waited_for(scene: Scene) -> None:
    scene.heard("n1", "n2")
    scene.step(INTERVAL)
    scene.heard("n1", "n2")
    assert not (scene.folder / "input").exists()
    assert scene.watch.fenced_at("n2") == 0.0
