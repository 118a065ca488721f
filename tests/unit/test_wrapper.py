"""scripts/srun, with stand-ins for the real srun and for hpresume."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRAPPER = ROOT / "scripts" / "srun"


class Place:
    """A PATH of folders, each with or without an srun, and the wrapper in one of them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def program(self, name: str) -> Path:
        """A program that prints its own path and its arguments, one a line."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$#" "$@"\n')
        path.chmod(0o755)
        return path

    def wrapper(self, name: str = "wrapper/srun") -> Path:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        return Path(shutil.copy(WRAPPER, path))

    def run(
        self, *argv: str, path: str = "wrapper:bin", call: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        # Nothing else is on PATH: the wrapper must do with what the shell has built in.
        folders = os.pathsep.join(str(self.root / folder) for folder in path.split(":") if folder)
        program = str(self.root / call) if call else shutil.which("srun", path=folders)
        assert program is not None
        return subprocess.run(
            [program, *argv],
            env={"PATH": folders, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def started(done: subprocess.CompletedProcess[str], program: Path) -> list[str]:
    """The arguments that the stand-in got, after checking that it was this one."""
    assert done.stderr == ""
    path, count, *argv = done.stdout.splitlines()
    assert path == str(program)
    if not any("\n" in word for word in argv):
        assert len(argv) == int(count)
    return argv


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["-N2", "cmd"],
        ["", "a b", "*", "$HOME", "--", "-x", "'", '"'],
        ["--account", "x", "--automatic", "--audio=1", "cmd"],
        ["-auto-resume", "cmd"],
    ],
    ids=str,
)
def test_without_the_option_it_becomes_the_real_srun(place, argv):
    real = place.program("bin/srun")
    place.program("bin/hpresume")
    place.wrapper()
    assert started(place.run(*argv), real) == argv


@pytest.mark.parametrize(
    "argv",
    [
        ["--auto-resume", "cmd"],
        ["--auto-resume=1", "-N2", "", "a b", "*"],
        ["--auto-resume=0", "cmd"],
        ["--auto-resume=rubbish", "cmd"],
        ["--auto-r", "cmd"],
        ["--auto", "cmd"],
        ["--au=1", "cmd"],
        ["--aut=", "cmd"],
        # Not for the wrapper to tell apart.
        ["-J", "--auto-resume", "cmd"],
        ["cmd", "--auto-resume"],
    ],
    ids=str,
)
def test_with_the_option_it_becomes_the_supervisor(place, argv):
    real = place.program("bin/srun")
    hpresume = place.program("bin/hpresume")
    place.wrapper()
    expected = ["supervise", "--wrapper", f"--srun={real}", "--", "srun", *argv]
    assert started(place.run(*argv), hpresume) == expected


# -- which srun is the real one


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("wrapper:bin", None),
        ("empty:wrapper:empty:bin:later", None),
        ("earlier:wrapper:bin", "wrapper/srun"),
        ("bin", "wrapper/srun"),
        ("wrapper:wrapper:bin", None),
        ("wrapper:link:bin", None),
        ("link:wrapper:bin", None),
        ("wrapper:folder:plain:bin", None),
    ],
)
def test_the_next_srun_on_path(place, path, call):
    wrapper = place.wrapper()
    real = place.program("bin/srun")
    for folder in ("later", "earlier"):
        place.program(f"{folder}/srun")
    for folder in ("empty", "link", "folder", "plain"):
        (place.root / folder).mkdir()
    (place.root / "link/srun").symlink_to(wrapper)
    (place.root / "folder/srun").mkdir()
    (place.root / "plain/srun").write_text("not executable")
    assert started(place.run("cmd", path=path, call=call), real) == ["cmd"]


def test_two_copies_on_path_do_not_call_each_other(place):
    place.wrapper("wrapper/srun")
    place.wrapper("copy/srun")
    real = place.program("bin/srun")
    for path in ("wrapper:copy:bin", "copy:wrapper:bin"):
        assert started(place.run("cmd", path=path), real) == ["cmd"]


@pytest.mark.parametrize("path", ["wrapper", "wrapper:link", "bin:wrapper"])
def test_no_real_srun(place, path):
    wrapper = place.wrapper()
    place.program("bin/srun")
    (place.root / "link").mkdir()
    (place.root / "link/srun").symlink_to(wrapper)
    done = place.run("--auto-resume", "cmd", path=path, call="wrapper/srun")
    # Not the one before it either: that may be another copy of the wrapper.
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"srun: error: hpresume: there is no srun on PATH behind {wrapper}; "
        "set HPRESUME_SRUN to the real one; the step was not started\n"
    )


def test_srun_named_by_the_user(place):
    place.wrapper()
    place.program("bin/srun")
    other = place.program("opt/srun-24")
    assert started(place.run("cmd", HPRESUME_SRUN=str(other)), other) == ["cmd"]


@pytest.mark.parametrize("named", ["wrapper/srun", "missing", "bin", "plain"])
def test_a_wrong_name_for_srun(place, named):
    place.wrapper()
    place.program("bin/srun")
    (place.root / "plain").write_text("not executable")
    done = place.run("cmd", HPRESUME_SRUN=str(place.root / named))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"srun: error: hpresume: HPRESUME_SRUN={place.root / named} is not the path "
        "of the real srun; the step was not started\n"
    )


# -- which hpresume


def test_hpresume_beside_the_wrapper_comes_first(place):
    place.wrapper()
    place.program("bin/srun")
    place.program("bin/hpresume")
    beside = place.program("wrapper/hpresume")
    assert started(place.run("--auto-resume", "cmd"), beside)[0] == "supervise"


@pytest.mark.parametrize("present", ["none", "not executable", "folder"])
def test_without_hpresume_nothing_is_started(place, present):
    place.wrapper()
    place.program("bin/srun")
    if present == "folder":
        (place.root / "wrapper/hpresume").mkdir()
    elif present == "not executable":
        (place.root / "wrapper/hpresume").write_text("#!/bin/sh\n")
    done = place.run("--auto-resume", "cmd")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "srun: error: hpresume: --auto-resume: the command hpresume is not on PATH; "
        "the step was not started\n"
    )
    # An srun that does not ask for it needs no hpresume.
    assert place.run("cmd").returncode == 0


def test_exit_code_and_descriptors_are_those_of_the_real_srun(place):
    wrapper = place.wrapper()
    real = place.program("bin/srun")
    real.write_text(
        f"#!{sys.executable} -IS\nimport os, sys\nos.write(int(sys.argv[1]), b'x')\nsys.exit(77)\n"
    )
    read, write = os.pipe()
    try:
        environ = {"PATH": f"{place.root}/wrapper:{place.root}/bin"}
        command = [str(wrapper), str(write)]
        done = subprocess.run(command, env=environ, pass_fds=[write], check=False)
        assert (done.returncode, os.read(read, 1)) == (77, b"x")
    finally:
        os.close(read)
        os.close(write)


# -- the user's environment


def test_the_environment_is_passed_as_it_is(place):
    """Even what is no variable to a shell, or what a shell sets itself."""
    place.wrapper()
    script = (
        f'#!{sys.executable} -IS\nprint(open("/proc/self/environ").read().replace("\\0", "\\1"))\n'
    )
    for name in ("srun", "hpresume"):
        place.program(f"bin/{name}").write_text(script)
    given = {
        "BASH_FUNC_module%%": "() {  echo loaded\n}",
        "BASH_FUNC_which()": "() {  :\n}",
        "a.b": "1",
        "a-b": "",
        "BASH_ENV": "/nowhere",
        "ENV": "/nowhere",
        "SHELLOPTS": "braceexpand:xtrace",
        "POSIXLY_CORRECT": "1",
        "IFS": "x",
        "CDPATH": "/",
        "PWD": "/nowhere",
        "OLDPWD": "/nowhere",
        "PS4": "x",
        "SHLVL": "3",
        "_": "as it was",
        "-u": "PATH",
        "PYTHONPATH": "/p",
    }
    for options in ((), ("--auto-resume",)):
        done = place.run(*options, "cmd", **given)
        assert done.stderr == ""
        got = dict(entry.split("=", 1) for entry in done.stdout.split("\1")[:-1])
        got.pop("PATH")
        assert got == given


def test_python_s_variables_are_kept_from_the_supervisor_of_a_venv(place):
    place.wrapper()
    place.program("bin/srun")
    hpresume = place.root / "wrapper/hpresume"
    python = place.root / "venv/bin/python3"
    for folder in (python.parent, place.root / "venv/lib"):
        folder.mkdir(parents=True)
    python.symlink_to(sys.executable)
    hpresume.write_text(
        f"#!{python}\nimport sys\nprint(sys.flags.isolated, sys.argv[0], *sys.argv[2:])\n"
    )
    hpresume.chmod(0o755)
    arguments = [hpresume, "--wrapper", f"--srun={place.root}/bin/srun", "--", "srun"]
    expected = " ".join(map(str, [*arguments, "--auto-resume", "a b"]))
    # Without a venv, a module may well be found through PYTHONPATH only.
    assert place.run("--auto-resume", "a b").stdout == f"0 {expected}\n"
    (place.root / "venv/pyvenv.cfg").write_text("")
    done = place.run("--auto-resume", "a b", PYTHONHOME="/nowhere", PYTHONPATH="/nowhere")
    assert (done.stdout, done.stderr) == (f"1 {expected}\n", "")


def test_shellcheck():
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run(["shellcheck", WRAPPER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
