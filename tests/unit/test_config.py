"""Settings: every source, which one wins, and what a mistake is answered with."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from settings_given import from_toml, load, load_settings, system_file

from hpresume.config import ResumeSettings, describe_settings, state_dir
from hpresume.errors import ConfigError
from hpresume.settings import RUNGS, SETTINGS


@pytest.fixture(autouse=True)
def no_system_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return system_file(tmp_path, monkeypatch)


def test_every_setting_is_a_field_and_every_field_a_setting() -> None:
    assert [field.name for field in fields(ResumeSettings)] == list(SETTINGS)
    assert asdict(ResumeSettings()) == {name: SETTINGS[name][0] for name in SETTINGS}


# -- sources and precedence -----------------------------------------------------


def test_defaults_without_any_source() -> None:
    chosen, warnings = load_settings({})
    assert chosen == ResumeSettings()
    assert warnings == ()
    assert (chosen.resume_on, chosen.max_resumes, chosen.max_no_progress) == ("node-failure", 10, 3)
    assert chosen.ladder == RUNGS


def test_file_below_environment_below_flags(no_system_file: Path) -> None:
    no_system_file.write_text(
        "[resume]\nmax_resumes = 4\nmax_no_progress = 5\nresume_on = 'any'\nheartbeat = 0.5\n"
    )
    chosen = load(
        {"HPRESUME_MAX_RESUMES": "6", "HPRESUME_MAX_NO_PROGRESS": "7"}, ("max_resumes", "8")
    )
    assert chosen.heartbeat == 0.5
    assert chosen.resume_on == "any"
    assert chosen.max_no_progress == 7
    assert chosen.max_resumes == 8


def test_the_last_flag_wins() -> None:
    assert load({}, ("max_resumes", "1"), ("max_resumes", "2")).max_resumes == 2


def test_a_file_of_ones_own_stands_in_for_the_administrators(
    no_system_file: Path, tmp_path: Path
) -> None:
    no_system_file.write_text("[resume]\nmax_resumes = 4\n")
    assert load().max_resumes == 4
    assert from_toml(tmp_path, "[resume]\nmax_no_progress = 9\n") == ResumeSettings(
        max_no_progress=9
    )


def test_an_empty_name_of_the_file_is_none(no_system_file: Path) -> None:
    no_system_file.write_text("[resume]\nmax_resumes = 4\n")
    assert load({"HPRESUME_CONFIG": ""}).max_resumes == 4


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "[health]\nlevel = 2\n", "[[groups]]\n", "[resume]\n"]
)
def test_a_file_without_settings_of_ours_changes_nothing(tmp_path: Path, text: str) -> None:
    assert from_toml(tmp_path, text) == ResumeSettings()


def test_every_setting_can_be_given_in_every_source(tmp_path: Path) -> None:
    samples = {
        "resume_on": "any",
        "max_resumes": "11",
        "max_no_progress": "4",
        "min_uptime": "61s",
        "checkpoint": "/ckpt/run 1",
        "backoff": "3",
        "backoff_max": "4m",
        "heartbeat": "500ms",
        "heartbeat_timeout": "7",
        "fence_timeout": "12s",
        "watch_delay": "3",
        "grow_timeout": "1h",
        "replace_timeout": "10m",
        "min_nodes": "2",
        "regrow": "true",
        "heartbeat_file": "/tmp/beat.{rank}",
        "hang_timeout": "5m",
        "hang_grace": "20m",
        "output_timeout": "30m",
        "health_check": "5s",
        "frozen_timeout": "45",
        "grace": "USR1@120",
        "min_time_left": "90",
        "ladder": "same,new",
        "journal_dir": "/shared/j",
        "controller": "http://ctl:6830,http://[fd00::1]:6830",
        "slurm_backend": "auto",
    }
    defaults = {name: default for name, default, _ in describe_settings()}
    assert samples.keys() == defaults.keys()
    by_flags = load({}, *samples.items())
    assert load({f"HPRESUME_{name.upper()}": text for name, text in samples.items()}) == by_flags
    lines = [f'{name} = "{text}"' for name, text in samples.items()]
    assert from_toml(tmp_path, "\n".join(["[resume]", *lines])) == by_flags
    assert all(getattr(by_flags, name) != default for name, default in defaults.items())


def test_describe_settings_has_words_for_each() -> None:
    assert all(doc for _, _, doc in describe_settings())


# -- mistakes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("resume_on", "always", "node-failure or any"),
        ("max_no_progress", "0", "from 1 to 1000"),
        ("heartbeat", "0.05", "from 0.1 s to 60 s"),
        ("grow_timeout", "0", "from 1 s to 86400 s"),
        ("ladder", "same,bigger", ", ".join(RUNGS)),
        ("slurm_backend", "rest", "auto or cli or pyslurm"),
        ("checkpoint", "a\0b", "a text"),
    ],
)
def test_an_error_names_source_setting_value_and_what_is_allowed(
    tmp_path: Path, name: str, text: str, allowed: str
) -> None:
    variable = f"HPRESUME_{name.upper()}"
    escaped = text.replace("\0", "\\u0000")
    for source, call in (
        (variable, lambda: load({variable: text})),
        ("--set", lambda: load({}, (name, text))),
        ("given.toml", lambda: from_toml(tmp_path, f'[resume]\n{name} = "{escaped}"\n')),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        message = str(caught.value)
        assert source in message
        assert name in message
        assert repr(text) in message
        assert allowed in message
        assert "\n" not in message


@pytest.mark.parametrize(
    "line",
    [
        "max_resumes = true",
        "max_resumes = 1.5",
        "max_resumes = -1",
        "max_resumes = []",
        "min_uptime = true",
        "min_uptime = false",
        "min_uptime = nan",
        "min_uptime = inf",
        "min_uptime = [1]",
        "min_uptime = 2024-01-01",
        "resume_on = 1",
        "resume_on = ['any']",
        "resume_on = {a = 1}",
        "checkpoint = 1",
        "checkpoint = ['a']",
        "ladder = 1",
        "ladder = [1]",
        "ladder = [['same']]",
        "ladder = {same = 1}",
    ],
)
def test_wrong_types_in_toml(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=f"given.toml: {line.split()[0]} is .*allowed is"):
        from_toml(tmp_path, f"[resume]\n{line}\n")


def test_an_unknown_name_in_the_file_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"resume\.max_resume; did you mean max_resumes\?"):
        from_toml(tmp_path, "[resume]\nmax_resume = 1\n")


@pytest.mark.parametrize("text", ["max_resumes = 1", "[resum]", "[Resume]", "[resumes]\na = 1"])
def test_settings_outside_of_their_table_are_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown \w+; settings belong into the table \[resume\]"
    ):
        from_toml(tmp_path, text)


def test_an_unknown_flag_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--set zzzzz: unknown setting; known are: resume_on"):
        load({}, ("zzzzz", "1"))


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match=r"none\.toml: no such file; HPRESUME_CONFIG"):
        load({"HPRESUME_CONFIG": str(missing)})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):  # a directory: root reads all files
        load({"HPRESUME_CONFIG": str(tmp_path)})


def test_the_administrators_file_that_cannot_be_read(no_system_file: Path) -> None:
    no_system_file.mkdir()
    with pytest.raises(ConfigError, match=r"etc\.toml: cannot be read"):
        load()


@pytest.mark.parametrize(
    "text", [b"[resume", b"[resume]\nheartbeat = \n", b"\xff\xfe", b"a = 1\na = 2\n"]
)
def test_bad_toml_names_the_file(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "given.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"given\.toml: not valid TOML"):
        load({"HPRESUME_CONFIG": str(path)})


@pytest.mark.parametrize("text", ["resume = 1", "resume = 'any'", "[[resume]]\nheartbeat = 1"])
def test_resume_has_to_be_a_table(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"resume must be a table: \[resume\]"):
        from_toml(tmp_path, text)


def test_toml_that_is_nested_too_deeply(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"given\.toml: not valid TOML"):
        from_toml(tmp_path, "x = " + "[" * 5000)


@pytest.mark.parametrize("value", ["0x{}", "[0x{}]", "{{a = 0x{}}}"])
@pytest.mark.parametrize("name", ["max_resumes", "min_uptime", "ladder", "checkpoint"])
def test_a_number_too_long_for_decimals(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is a value too long to show; allowed is a"):
        from_toml(tmp_path, f"[resume]\n{name} = {value.format('f' * 5000)}\n")


def test_a_text_too_long_to_show() -> None:
    with pytest.raises(ConfigError, match="HPRESUME_LADDER: ladder is a value too long to show; "):
        load({"HPRESUME_LADDER": "x" * 5000})


# -- variables that are no settings -------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("HPRESUME_MAX_RESUME", "did you mean HPRESUME_MAX_RESUMES?"),
        ("HPRESUME_HEARTBEATTIMEOUT", "did you mean HPRESUME_HEARTBEAT_TIMEOUT?"),
        ("HPRESUME_max_resumes", "did you mean HPRESUME_MAX_RESUMES?"),
        ("HPRESUME_ZZZZZ", "known are"),
        ("HPRESUME_", "known are"),
    ],
)
def test_an_unknown_variable_is_a_warning_with_a_suggestion(variable: str, hint: str) -> None:
    chosen, warnings = load_settings({variable: "1", "HPRESUME_BACKOFF": "9"})
    assert chosen == ResumeSettings(backoff=9.0)
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{variable} is no setting and is ignored")
    assert hint in warnings[0]


@pytest.mark.parametrize(
    "variable",
    [
        "HPRESUME_ATTEMPT",
        "HPRESUME_SRUN",
        "HPRESUME_SUPERVISOR",
        "HPRESUME_DEVCLUSTER_DIR",
        "HPRESUME_TEST_X",
        "PATH",
        "XHPRESUME_MAX_RESUMES",
        "hpresume_max_resumes",
    ],
)
def test_other_variables_are_passed_over(variable: str) -> None:
    assert load_settings({variable: "1"}) == (ResumeSettings(), ())


# -- the folder of the journals --------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "chosen", "folder"),
    [
        ({"XDG_STATE_HOME": "/state"}, "", "/state/hpresume"),
        ({"XDG_STATE_HOME": "/state"}, "/shared/journals", "/shared/journals"),
        ({"XDG_STATE_HOME": "not/absolute"}, "", "/home/u/.local/state/hpresume"),
        ({}, "", "/home/u/.local/state/hpresume"),
    ],
)
def test_state_dir(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], chosen: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert state_dir(environ, ResumeSettings(journal_dir=chosen)) == folder


# -- properties ---------------------------------------------------------------------------

NAMES = [name for name, _, _ in describe_settings()]
ODD = st.one_of(
    st.text(max_size=20),
    st.text("0123456789.,-+_eE smhdinaf\u0661", max_size=12),
    st.sampled_from(["same", "any", "cli", "1", "1s", "1" * 400, "1e400", "0x1", "\udcff"]),
)


def outcome(
    environ: dict[str, str], flags: dict[str, str], warnings: list[str] | None = None
) -> ResumeSettings | str:
    """The settings, or the words of the one error that is allowed."""
    try:
        chosen, said = load_settings(environ, flags.items())
    except ConfigError as error:
        return str(error)
    if warnings is not None:
        warnings.extend(said)
    return chosen


@settings(deadline=None, max_examples=400)
@given(st.dictionaries(st.sampled_from(NAMES), ODD, max_size=3), st.booleans())
def test_no_text_raises_anything_but_a_one_line_error(
    values: dict[str, str], as_flags: bool
) -> None:
    environ = {f"HPRESUME_{name.upper()}": text for name, text in values.items()}
    chosen = outcome({} if as_flags else environ, values if as_flags else {})
    if isinstance(chosen, str):
        assert "\n" not in chosen
        return
    assert 0 <= chosen.max_resumes <= 10_000
    assert 1 <= chosen.max_no_progress <= 1000
    assert 0 <= chosen.min_uptime <= 86_400
    assert 0.1 <= chosen.heartbeat <= 60
    assert chosen.silence_s > 0
    assert set(chosen.ladder) <= set(RUNGS)


@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=10))
def test_no_variable_of_ours_is_ignored_in_silence(rest: str, value: str) -> None:
    variable = f"HPRESUME_{rest}"
    warnings: list[str] = []
    chosen = outcome({variable: value}, {}, warnings)
    if isinstance(chosen, str):
        assert variable in chosen
        return
    known = rest.isupper() and rest.lower() in NAMES
    silent = rest in ("CONFIG", "ATTEMPT", "SRUN", "SUPERVISOR") or rest.startswith(
        ("DEVCLUSTER", "TEST_", "DEMO_", "ENV_")
    )
    assert bool(warnings) is not (known or silent)
    if not known:
        assert chosen == ResumeSettings()
