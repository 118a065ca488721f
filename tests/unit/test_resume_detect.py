"""When silence means that a node is lost. Times are made up; no clock is read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpresume.resume.detect import PROBE_TIMEOUT_S, NodePulse, Probe, Pulse, judge, next_look

BEAT = 100.0  # the last beat; interval 1 s, silence 2 s below


def pulse(probe: Probe = Probe.NONE, began: float = 0.0) -> NodePulse:
    return NodePulse("n1", BEAT, probe, began)


def refused(began: float, since: float) -> NodePulse:
    return NodePulse("n1", BEAT, Probe.REFUSED, BEAT + began, refused_since=BEAT + since)


CASES = [
    ("just beaten", pulse(), 0.0, Pulse.ALIVE),
    ("one beat is due", pulse(), 1.0, Pulse.ALIVE),
    ("a beat that is hardly late", pulse(), 1.24, Pulse.ALIVE),
    ("late: ask", pulse(), 1.25, Pulse.PROBE),
    ("silent for the limit, never asked: ask first", pulse(), 60.0, Pulse.PROBE),
    ("asked, no answer yet", pulse(Probe.PENDING, BEAT + 1.3), 1.5, Pulse.ALIVE),
    ("the limit passed, the answer is out", pulse(Probe.PENDING, BEAT + 1.7), 2.0, Pulse.ALIVE),
    ("no answer, before the limit", pulse(Probe.FAILED, BEAT + 1.3), 1.99, Pulse.ALIVE),
    ("no answer, at the limit", pulse(Probe.FAILED, BEAT + 1.3), 2.0, Pulse.LOST),
    ("no answer, long after", pulse(Probe.FAILED, BEAT + 1.3), 90.0, Pulse.LOST),
    ("it answers, before the limit", pulse(Probe.ANSWERED, BEAT + 1.3), 1.9, Pulse.ALIVE),
    ("it answers, at the limit", pulse(Probe.ANSWERED, BEAT + 1.3), 2.0, Pulse.MUTE),
    ("it answered a while ago: ask again", pulse(Probe.ANSWERED, BEAT + 1.3), 2.3, Pulse.PROBE),
    ("an answer older than the last beat", pulse(Probe.ANSWERED, BEAT - 1), 3.0, Pulse.PROBE),
    ("a failure older than the last beat", pulse(Probe.FAILED, BEAT - 1), 3.0, Pulse.PROBE),
    ("a question older than the last beat", pulse(Probe.PENDING, BEAT - 1), 3.0, Pulse.PROBE),
    ("asked in the very moment of the beat", pulse(Probe.FAILED, BEAT), 3.0, Pulse.LOST),
    ("refused for the first time, at the limit", refused(1.3, 1.3), 2.2, Pulse.ALIVE),
    ("refused a second ago: ask again", refused(1.3, 1.3), 2.3, Pulse.PROBE),
    ("the same before the limit", refused(0.9, 0.9), 1.9, Pulse.PROBE),
    ("refused for a second", refused(2.3, 1.3), 2.3, Pulse.LOST),
    ("refused for a second, before the limit", refused(1.9, 0.9), 1.95, Pulse.ALIVE),
    ("refused for nearly a second", refused(2.2, 1.3), 2.3, Pulse.ALIVE),
    ("a beat to come (a watch step that starts)", pulse(), -3.0, Pulse.ALIVE),
]


@pytest.mark.parametrize(
    ("given", "quiet", "wanted"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_judge(given: NodePulse, quiet: float, wanted: Pulse) -> None:
    assert judge(given, BEAT + quiet, 1.0, 2.0) is wanted


def test_a_limit_shorter_than_the_patience_is_kept() -> None:
    assert judge(pulse(), BEAT + 0.9, 1.0, 0.9) is Pulse.PROBE
    assert judge(pulse(Probe.FAILED, BEAT + 0.9), BEAT + 0.9, 1.0, 0.9) is Pulse.LOST


def test_a_node_that_answers_is_asked_again_once_an_interval() -> None:
    answered = pulse(Probe.ANSWERED, BEAT + 20)
    assert judge(answered, BEAT + 24.9, 5.0, 10.0) is Pulse.MUTE
    assert judge(answered, BEAT + 25.0, 5.0, 10.0) is Pulse.PROBE


def test_a_node_that_answers_is_asked_at_most_every_timeout() -> None:
    answered = pulse(Probe.ANSWERED, BEAT + 20)
    assert judge(answered, BEAT + 20 + PROBE_TIMEOUT_S - 0.01, 0.1, 0.2) is Pulse.MUTE
    assert judge(answered, BEAT + 20 + PROBE_TIMEOUT_S, 0.1, 0.2) is Pulse.PROBE


@pytest.mark.parametrize(
    ("quiet", "seconds"),
    [
        (-3.0, 4.25),
        (0.0, 1.25),
        (1.0, 0.25),
        (1.25, 0.75),
        (1.5, 0.5),
        (1.9999, 0.01),
        (2.0, 0.5),
        (99.0, 0.5),
    ],
)
def test_next_look(quiet: float, seconds: float) -> None:
    assert next_look(pulse(), BEAT + quiet, 1.0, 2.0) == pytest.approx(seconds)


@pytest.mark.parametrize(("quiet", "seconds"), [(1.5, 0.5), (2.1, 0.2), (2.3, 0.01), (9.0, 0.01)])
def test_the_next_look_at_a_node_that_refuses(quiet: float, seconds: float) -> None:
    assert next_look(refused(1.3, 1.3), BEAT + quiet, 1.0, 2.0) == pytest.approx(seconds)


# -- properties ---------------------------------------------------------------------

TIME = st.floats(0, 1e6)
INTERVAL = st.floats(0.1, 60)
SILENCE = st.floats(0.1, 3600)
PULSES = st.builds(NodePulse, st.just("n1"), TIME, st.sampled_from(Probe), TIME, st.just(""))


@settings(deadline=None, max_examples=500)
@given(PULSES, TIME, INTERVAL, SILENCE)
def test_what_holds_for_every_pulse(
    given: NodePulse, now: float, interval: float, silence: float
) -> None:
    verdict = judge(given, now, interval, silence)
    quiet = now - given.last_beat
    if verdict in (Pulse.LOST, Pulse.MUTE):
        assert quiet >= silence
        assert given.probe_began >= given.last_beat
    if verdict is Pulse.LOST:
        assert given.probe in (Probe.FAILED, Probe.REFUSED)
    if given.probe is Probe.ANSWERED:
        assert verdict is not Pulse.LOST
    if quiet <= interval and quiet < silence:
        assert verdict is Pulse.ALIVE
    assert next_look(given, now, interval, silence) >= 0.01  # no busy loop


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 0.25), st.sampled_from(Probe)), max_size=50), INTERVAL)
def test_a_node_that_beats_is_never_lost(looks: list[tuple[float, Probe]], interval: float) -> None:
    """Beats as the agent sends them, each up to a quarter late; looked at between any two."""
    for number, (late, probe) in enumerate(looks):
        beat = number * interval
        following = beat + interval * (1 + late)
        asked = NodePulse("n1", beat, probe, beat + 0.99 * (following - beat))
        for now in (beat, (beat + following) / 2, following - 1e-6):
            assert judge(asked, now, interval, 2 * interval) is Pulse.ALIVE


@settings(deadline=None)
@given(INTERVAL, st.floats(1, 10), st.floats(0.01, 1), st.booleans())
def test_a_dead_node_is_found_within_the_limit_a_probe_and_a_look(
    interval: float, factor: float, step: float, reached: bool
) -> None:
    """The loop of the watch: look, ask when told to, look again when ``next_look`` says."""
    silence = factor * interval
    now, last = 0.0, NodePulse("n1", 0.0)
    limit = silence + 1.25 * interval + PROBE_TIMEOUT_S + 0.1
    while now <= limit + step:
        verdict = judge(last, now, interval, silence)
        if verdict is Pulse.LOST:
            assert now >= silence
            assert not reached
            return
        if verdict is Pulse.PROBE:
            last = NodePulse("n1", 0.0, Probe.PENDING, now)
        wait = next_look(last, now, interval, silence)
        if last.probe is Probe.PENDING:
            wait = min(wait, max(0.01, last.probe_began + PROBE_TIMEOUT_S - now))
        now += wait
        if last.probe is Probe.PENDING and now >= last.probe_began + PROBE_TIMEOUT_S:
            outcome = Probe.ANSWERED if reached else Probe.FAILED
            last = NodePulse("n1", 0.0, outcome, last.probe_began)
    assert reached


@settings(deadline=None)
@given(PULSES, TIME, INTERVAL, SILENCE)
def test_next_look_misses_no_change(
    given: NodePulse, now: float, interval: float, silence: float
) -> None:
    """Nothing but a repeated question comes earlier than the next look."""
    wait = next_look(given, now, interval, silence)
    before = judge(given, now, interval, silence)
    halfway = judge(given, now + wait * 0.49, interval, silence)
    if wait > 0.01 and before is not Pulse.MUTE:
        assert halfway is before
