"""Settings: what each kind of value may be, and what it means."""

from __future__ import annotations

from pathlib import Path

import pytest
from settings_given import from_toml, load, system_file

from hpresume.errors import ConfigError


@pytest.fixture(autouse=True)
def no_system_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return system_file(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("30s", 30.0),
        ("30 s", 30.0),
        (" 30S ", 30.0),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("5m", 300.0),
        ("5min", 300.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("0", 0.0),
        ("1e2", 100.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert load({"HPRESUME_MIN_UPTIME": text}).min_uptime == seconds


@pytest.mark.parametrize(
    "text",
    ["", "s", "ms", "5 parsec", "5mm", "-1", "1d1", "86401", "2d", "nan", "inf", "1e999", "5,5"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"HPRESUME_MIN_UPTIME: min_uptime is .*allowed is a time"
    ):
        load({"HPRESUME_MIN_UPTIME": text})


@pytest.mark.parametrize("text", ["0", "7", "10000", " 7 ", "007"])
def test_counts(text: str) -> None:
    assert load({"HPRESUME_MAX_RESUMES": text}).max_resumes == int(text)


@pytest.mark.parametrize("text", ["", "-1", "1.0", "10001", "ten", "1e3", "²", "٣", "9" * 5000])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ConfigError, match="a whole number from 0 to 10000"):
        load({"HPRESUME_MAX_RESUMES": text})


@pytest.mark.parametrize(
    ("text", "rungs"),
    [
        ("same", ("same",)),
        ("requeue, spare", ("spare", "requeue")),
        ("spare,spare,", ("spare",)),
        ("", ()),
    ],
)
def test_the_ladder_keeps_its_own_order(text: str, rungs: tuple[str, ...]) -> None:
    assert load({"HPRESUME_LADDER": text}).ladder == rungs


def test_the_ladder_as_a_list_in_toml(tmp_path: Path) -> None:
    chosen = from_toml(tmp_path, '[resume]\nladder = ["new", "same"]\n')
    assert chosen.ladder == ("same", "new")


@pytest.mark.parametrize(
    ("given", "silence"),
    [({}, 2.0), ({"heartbeat": "0.5"}, 1.0), ({"heartbeat_timeout": "5"}, 5.0)],
)
def test_silence_is_twice_the_heartbeat_unless_set(given: dict[str, str], silence: float) -> None:
    assert load({}, *given.items()).silence_s == silence


@pytest.mark.parametrize(
    "text", ["/tmp/beat", "beat.{rank}", "/tmp/{rank}/beat", "/tmp/{rank}.{rank}"]
)
def test_a_heartbeat_file_names_the_rank_once_in_its_last_part(text: str) -> None:
    with pytest.raises(ConfigError, match=r"HPRESUME_HEARTBEAT_FILE.*allowed is .*path"):
        load({"HPRESUME_HEARTBEAT_FILE": text})


@pytest.mark.parametrize("text", ["USR1", "TERM@10", "USR1@", "USR1@x", "@10", "USR1@1@2"])
def test_grace_is_a_signal_and_a_time(text: str) -> None:
    with pytest.raises(ConfigError, match=r"HPRESUME_GRACE.*USR1@120"):
        load({"HPRESUME_GRACE": text})


@pytest.mark.parametrize("text", ["USR1@120", "usr1@120", "SIGUSR1@120"])
def test_grace_in_each_spelling(text: str) -> None:
    chosen = load({"HPRESUME_GRACE": text})
    assert (chosen.grace, chosen.grace_s) == ("USR1@120", 120.0)


@pytest.mark.parametrize(
    ("given", "lease"),
    [
        ({}, 0.0),
        ({"fence_timeout": "30"}, 30.0),
        ({"fence_timeout": "1"}, 5.0),  # the supervisor may need as long to find out
        ({"fence_timeout": "10", "heartbeat_timeout": "20"}, 23.0),
    ],
)
def test_a_node_is_not_fenced_before_it_is_given_up(given: dict[str, str], lease: float) -> None:
    assert load({}, *given.items()).fence_s == lease


@pytest.mark.parametrize(
    ("text", "wanted"), [("true", True), ("1", True), ("On", True), ("no", False), ("0", False)]
)
def test_a_switch(text: str, wanted: bool) -> None:
    assert load({"HPRESUME_REGROW": text}).regrow is wanted


def test_what_is_no_switch() -> None:
    with pytest.raises(ConfigError, match="HPRESUME_REGROW: regrow is 'maybe'; allowed is true"):
        load({"HPRESUME_REGROW": "maybe"})
