"""The command line of ``hpresume supervise``, and errors before anything is started."""

from __future__ import annotations

import pytest

from hpresume.errors import UsageError
from hpresume.resume.main import Request, main


def test_as_the_plugin_writes_it() -> None:
    request = Request(
        ["--plugin", "--srun=/usr/bin/srun", "--command-index=3", "--", "srun", "-N", "2", "true"]
    )
    assert request.plugin
    assert (request.srun, request.command_index) == ("/usr/bin/srun", 3)
    assert request.argv == ["srun", "-N", "2", "true"]
    assert request.flags == []


def test_as_the_wrapper_writes_it() -> None:
    request = Request(["--wrapper", "--srun=/r/srun", "--", "srun", "--", "--plugin", "--", ""])
    assert not request.plugin
    assert request.command_index == -1
    assert request.argv == ["srun", "--", "--plugin", "--", ""]


def test_settings_on_the_command_line() -> None:
    request = Request(
        [
            "--srun=/r/s",
            "--set",
            "max_resumes=3",
            "--set",
            "checkpoint=a=b",
            "--set",
            "x=",
            "--",
            "s",
        ]
    )
    assert request.flags == [("max_resumes", "3"), ("checkpoint", "a=b"), ("x", "")]


BAD = [
    [],
    ["--srun=/r/srun"],
    ["--srun=/r/srun", "--"],
    ["--srun=", "--", "srun"],
    ["--srun", "/r/srun", "--", "srun"],
    ["--", "srun"],
    ["--srun=/r/srun", "--command-index=x", "--", "srun"],
    ["--srun=/r/srun", "--command-index=-1", "--", "srun"],
    ["--srun=/r/srun", "--command-index=", "--", "srun"],
    ["--srun=/r/srun", "--set", "--", "srun"],
    ["--srun=/r/srun", "--set"],
    ["--srun=/r/srun", "--set", "x", "--", "srun"],
    ["--srun=/r/srun", "--what", "--", "srun"],
    ["--srun=/r/srun", "srun", "true"],
    ["--plugin=1", "--srun=/r/srun", "--", "srun"],
]


@pytest.mark.parametrize("args", BAD, ids=" ".join)
def test_what_is_no_request(args: list[str]) -> None:
    with pytest.raises(UsageError, match="usage: hpresume supervise"):
        Request(args)


@pytest.mark.parametrize("index", ["²", "9" * 5000])
def test_an_index_that_python_takes_for_digits(index: str) -> None:
    with pytest.raises(UsageError, match="usage: hpresume supervise"):
        Request(["--srun=/r/srun", f"--command-index={index}", "--", "srun"])


@pytest.mark.parametrize(
    ("args", "environ", "words"),
    [
        (["--what"], {}, "unknown argument '--what'"),
        (["--srun=/r/s", "--command-index=1", "--", "srun", "a", ":", "b"], {}, "heterogeneous"),
        (
            ["--srun=/r/s", "--command-index=1", "--", "srun", "a"],
            {"SLURM_HET_SIZE": "2"},
            "heterog",
        ),
        (
            ["--srun=/r/s", "--set", "max_resumes=x", "--command-index=1", "--", "srun", "a"],
            {},
            "max_resumes is 'x'; allowed is a whole number",
        ),
        (
            ["--srun=/r/s", "--command-index=1", "--", "srun", "a"],
            {"HPRESUME_RESUME_ON": "never"},
            "HPRESUME_RESUME_ON: resume_on is 'never'; allowed is node-failure or any",
        ),
        (
            ["--srun=/r/s", "--command-index=1", "--", "srun", "a"],
            {"HPRESUME_CONFIG": "/nonexistent.toml"},
            "/nonexistent.toml: no such file",
        ),
    ],
)
def test_an_error_is_one_line_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    args: list[str],
    environ: dict[str, str],
    words: str,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("hpresume.resume.process.spawn", _never)
    assert main(args) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("[Auto Resume] error: ")
    assert words in err
    assert err.count("\n") == 1


def _never(*args: object, **options: object) -> None:
    raise AssertionError("a step was started")
