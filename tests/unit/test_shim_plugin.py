"""The SPANK plugin, driven by a stand-in for srun and slurmstepd (fake_spank/host.c)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from shim import Build, build_shim
from shim_host import Seen, run_host, write_supervisor

REMOTE_VARIABLE = "_SLURM_SPANK_OPTION_hpresume_auto_resume"
LOCAL_VARIABLE = "SLURM_SPANK_" + REMOTE_VARIABLE
BLOCKED_BY_SRUN = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGWINCH)


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build_shim(tmp_path_factory.mktemp("shim"), request.param == "sanitized", "host.c")


@pytest.fixture
def supervisor(tmp_path: Path) -> Path:
    return write_supervisor(tmp_path)


@pytest.fixture
def host(build: Build, tmp_path: Path, supervisor: Path) -> Callable[..., Seen]:
    return partial(run_host, build, tmp_path, supervisor)


# -- contexts


def test_srun_gets_the_option_with_an_optional_argument(host):
    seen = host("cmd", orders="init")
    assert "registered --auto-resume has_arg=2" in seen.stdout


def test_slurmstepd_knows_the_option_and_stays_quiet(host):
    orders = """
    context remote
    init
    remote-option 0
    remote-option rubbish
    post-opt
    """
    seen = host("cmd", orders=orders, plugstack=["nonsense"])
    assert seen.stdout == [
        "registered --auto-resume has_arg=2",
        "init rc=0",
        "callback rc=0",
        "callback rc=0",
        "post-opt",
        "post-opt rc=0",
    ]
    assert (seen.stderr, seen.supervised) == ("", False)


@pytest.mark.parametrize("context", ["allocator", "slurmd"])
def test_other_commands_do_not_get_the_option(host, context):
    orders = f"context {context}\ninit\npost-opt"
    seen = host("cmd", orders=orders, env={LOCAL_VARIABLE: "1"})
    assert seen.stdout == ["init rc=0", "post-opt", "post-opt rc=0"]
    assert (seen.stderr, seen.supervised) == ("", False)


# -- an srun that does not use the option


@pytest.mark.parametrize(
    "plugstack",
    [[], ["nonsense"], ["supervisor="], ["supervisor=bin/hpresume"], ["supervisor=/nowhere"]],
    ids=" ".join,
)
def test_a_plain_srun_notices_nothing(host, plugstack):
    seen = host("-N2", "cmd", plugstack=plugstack)
    assert seen.stdout[1:] == ["init rc=0", "optind 2", "post-opt", "post-opt rc=0"]
    assert (seen.returncode, seen.stderr, seen.supervised) == (0, "", False)


def test_a_plain_srun_survives_a_refused_registration(host):
    seen = host("cmd", env={"FAKE_SPANK_REFUSE_OPTION": "1"})
    assert (seen.returncode, seen.supervised) == (0, False)
    assert "error" not in seen.stderr


def test_off_leaves_no_trace_in_the_step(host):
    orders = f"init\nparse\npost-opt\ngetenv {LOCAL_VARIABLE}\ngetenv {REMOTE_VARIABLE}"
    seen = host("--auto-resume=0", "cmd", orders=orders)
    assert seen.stdout[-3:] == [
        "post-opt rc=0",
        f"{LOCAL_VARIABLE} unset",
        f"{REMOTE_VARIABLE} unset",
    ]
    assert f"job control unsetenv {REMOTE_VARIABLE}" in seen.stdout
    assert (seen.stderr, seen.supervised) == ("", False)


@pytest.mark.parametrize("variable", [LOCAL_VARIABLE, REMOTE_VARIABLE])
def test_an_outer_command_does_not_switch_it_on(host, variable):
    orders = f"init\nparse\npost-opt\ngetenv {variable}"
    seen = host("cmd", orders=orders, env={variable: "1"})
    assert seen.stdout[-1] == f"{variable} unset"
    assert "callback rc=0" not in seen.stdout
    assert (seen.stderr, seen.supervised) == ("", False)


# -- values


@pytest.mark.parametrize(
    ("options", "on"),
    [
        (["--auto-resume"], True),
        (["--auto-resume="], True),
        (["--auto-resume=1"], True),
        (["--auto-resume=(null)"], True),
        (["--auto-r"], True),
        (["--auto-resume=0"], False),
        (["--auto-resume=1", "--auto-resume=0"], False),
        (["--auto-resume=0", "--auto-resume"], True),
    ],
    ids=str,
)
def test_values(host, options, on):
    seen = host(*options, "cmd")
    assert seen.supervised is on
    assert (seen.returncode, seen.stderr) == (0, "")


def test_the_command_line_wins_over_the_environment(host):
    # srun reads this variable after slurm_spank_init: a plugin may have set it.
    orders = f"init\nsetenv {LOCAL_VARIABLE}=1\nparse\npost-opt"
    seen = host("--auto-resume=0", "cmd", orders=orders)
    assert seen.stdout.count("callback rc=0") == 2
    assert not seen.supervised


@pytest.mark.parametrize("value", ["2", "yes", "01", "1 ", "-1", "on"])
def test_other_values_are_refused(host, value):
    seen = host(f"--auto-resume={value}", "cmd")
    assert seen.returncode == 255
    assert seen.stderr == (
        f"error: hpresume: --auto-resume={value}: the value must be 1 (or none) for on, 0 for off\n"
    )
    assert not seen.supervised


def test_the_commands_own_arguments_do_not_count(host):
    assert not host("cmd", "--auto-resume=1").supervised
    assert not host("-J", "--auto-resume", "cmd").supervised
    assert not host("--", "cmd", "--auto-resume").supervised


# -- the hand-over


def handed_over(build: Build, supervisor: Path, index: int, argv: list[str | bytes]) -> list[bytes]:
    """What the supervisor must be started with."""
    own = [supervisor, "supervise", "--plugin", f"--srun={build.host}", f"--command-index={index}"]
    return [os.fsencode(word) for word in (*own, f"--slurm={build.release}", "--", "srun", *argv)]


@pytest.mark.parametrize(
    ("argv", "index"),
    [
        (["--auto-resume", "cmd"], 2),
        (["-N", "2", "--auto-resume=1", "-lJname", "cmd", "-x", "y"], 5),
        (["--auto-r", "--nodes", "2", "--", "cmd", "--"], 5),
        (["--auto-resume", "-J", "--", "cmd"], 4),
        (["--auto-resume", "cmd", "", "a b", "new\nline", "tab\t", "", ""], 2),
        (["--auto-resume", "-J", "", "cmd"], 4),
        (["--auto-resume", "cmd", b"\xff\xfe not utf-8 \x80"], 2),
        (["--auto-resume", "cmd", "--auto-resume=0", "$HOME", "'\"`"], 2),
        (["--auto-resume", "cmd", "--", "--srun=x", "supervise"], 2),
    ],
    ids=str,
)
def test_srun_s_arguments_arrive_unchanged(host, build, supervisor, argv, index):
    seen = host(*argv)
    assert seen.argv == handed_over(build, supervisor, index, argv)
    assert seen.stderr == ""


@pytest.mark.parametrize("length", [65535, 65536, 120_000])
def test_huge_arguments(host, build, supervisor, length):
    argv = ["--auto-resume", "cmd", *(["x" * length] * (1_500_000 // length))]
    assert host(*argv).argv == handed_over(build, supervisor, 2, argv)


def test_very_many_arguments(host, build, supervisor):
    argv = ["--auto-resume", "cmd", *map(str, range(60_000))]
    assert host(*argv).argv == handed_over(build, supervisor, 2, argv)


@pytest.mark.parametrize("shift", range(-70, -40))
def test_arguments_that_just_fill_the_read_buffer(host, build, supervisor, shift):
    argv = ["--auto-resume", "cmd", "x" * (65536 + shift)]
    assert host(*argv).argv == handed_over(build, supervisor, 2, argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["--auto-resume", "-N1", "a", ":", "-N1", "b"],
        ["-N1", "a", ":", "--auto-resume", "-N1", "-n", "2", "b"],
        ["-N1", "a", ":", "-N2", "b", ":", "--auto-resume", "c"],
    ],
    ids=" ".join,
)
def test_the_index_is_that_of_the_first_component(host, build, supervisor, argv):
    one = "parse\npost-opt\n"
    seen = host(*argv, orders=f"init\n{one}component\n{one}component\n{one}")
    first = argv.index("a") + 1
    assert seen.argv == handed_over(build, supervisor, first, argv)


def test_the_signal_mask_is_empty_and_srun_s_dispositions_are_undone(host):
    seen = host("--auto-resume", "cmd", orders="like-srun\ninit\nparse\npost-opt")
    assert seen.signals("SigBlk") == set()
    assert signal.SIGTTIN not in seen.signals("SigIgn")


def test_signals_that_the_user_ignores_stay_ignored(host):
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    seen = host("--auto-resume", "cmd", orders="like-srun\ninit\nparse\npost-opt", preexec_fn=nohup)
    assert signal.SIGHUP in seen.signals("SigIgn")


def test_the_environment_is_the_one_srun_was_started_with(host):
    orders = """
    init
    parse
    setenv SLURM_CONF=/set/by/srun
    setenv _SLURM_SPANK_OPTION_pyxis_container_image=set-by-srun
    post-opt
    """
    given = {
        "SLURM_CONF": "/given/by/the/user",
        "SLURM_SPANK_OTHER": "kept",
        LOCAL_VARIABLE: "1",
        REMOTE_VARIABLE: "1",
        "EMPTY": "",
        "WITH": "new\nline = x",
    }
    seen = host("--auto-resume", "cmd", orders=orders, env=given)
    environ = dict(entry.split(b"=", 1) for entry in seen.environ)
    assert environ[b"SLURM_CONF"] == b"/given/by/the/user"
    assert environ[b"SLURM_SPANK_OTHER"] == b"kept"
    assert environ[b"EMPTY"] == b""
    assert environ[b"WITH"] == b"new\nline = x"
    assert not [name for name in environ if b"SPANK_OPTION" in name]


def test_file_descriptors_of_the_user_survive_and_no_other_is_added(host, tmp_path):
    given = tmp_path / "given"
    given.write_text("x")
    with given.open() as file:
        seen = host("--auto-resume", "cmd", pass_fds=[file.fileno()])
        assert seen.fds[file.fileno()] == str(given)
        # The stand-in opens its script close-on-exec; the rest is stdin, stdout, stderr and the
        # dump itself.
        others = {fd: name for fd, name in seen.fds.items() if fd > 2 and fd != file.fileno()}
    assert all("dump" in name or "/proc/" in name for name in others.values())


@pytest.mark.parametrize(
    ("first_line", "isolated"),
    [
        ("#!{python}", True),
        ("#!/usr/bin/env {python}", False),
        ("#!{python} -S", False),
        ("#! {python}", False),
    ],
)
def test_python_s_variables_are_kept_from_the_supervisor(host, supervisor, first_line, isolated):
    python = supervisor.parent / "python3.x"
    python.symlink_to(sys.executable)
    first_line = first_line.format(python=python)
    supervisor.write_text(
        f"{first_line}\nimport os, sys\n"
        "print(sys.flags.isolated, os.environ['PYTHONPATH'], *sys.argv)\n"
    )
    seen = host("--auto-resume", "cmd", env={"PYTHONPATH": "/nowhere"})
    flag, path, program, *argv = seen.stdout[-1].split()
    assert (flag, path) == ("1" if isolated else "0", "/nowhere")
    assert (program, argv[0], argv[-3:]) == (
        str(supervisor), "supervise", ["srun", "--auto-resume", "cmd"],
    )  # fmt: skip


# -- what srun says about its options: the real srun will say it again


WARN = "init\nparse\nwarn careful"


@pytest.mark.parametrize(
    ("options", "orders", "shown"),
    [
        (["--auto-resume"], f"{WARN}\npost-opt", ""),
        (["--auto-resume"], f"init\nwarn early\n{WARN[5:]}\npost-opt", "info: early\n"),
        (["--auto-resume"], f"{WARN}\nwarn more\nexit 7", "info: careful\ninfo: more\n"),
        (["--auto-resume", "--auto-resume=0"], f"{WARN}\npost-opt", "info: careful\n"),
        (["--auto-resume=0"], f"{WARN}\npost-opt\nwarn more", "info: careful\ninfo: more\n"),
        ([], f"{WARN}\npost-opt", "info: careful\n"),
    ],
)
@pytest.mark.parametrize("count", [1, 3000])
def test_messages_come_once(host, options, orders, shown, count):
    line = "\nwarn careful"
    seen = host(*options, "cmd", orders=orders.replace(line, line * count))
    assert seen.stderr == shown.replace("info: careful\n", "info: careful\n" * count)
    assert seen.returncode == (7 if "exit" in orders else 0)
    assert seen.supervised is (options == ["--auto-resume"] and "exit" not in orders)


def test_messages_and_a_wrong_value(host):
    seen = host("--auto-resume", "--auto-resume=2", "cmd", orders="init\nparse")
    assert seen.returncode == 255
    assert seen.stderr.count("--auto-resume=2") == 1


def test_messages_and_a_supervisor_that_is_missing(host):
    seen = host("--auto-resume", "cmd", orders=f"{WARN}\npost-opt", plugstack=["supervisor=/no"])
    assert seen.returncode == 1
    assert seen.stderr.startswith("error: hpresume: cannot start the supervisor /no: ")


def test_stderr_that_is_closed_stays_closed(host):
    closed = partial(os.close, 2)
    seen = host("--auto-resume", "cmd", orders=f"{WARN}\npost-opt", preexec_fn=closed)
    assert seen.supervised
    # The dump took its number.
    assert "dump" in seen.fds[2]


# -- a supervisor that cannot be started


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("supervisor=bin/hpresume", "supervisor=bin/hpresume"),
        ("supervisor=", "supervisor="),
        ("nonsense", "nonsense"),
        ("Supervisor=/bin/true", "Supervisor=/bin/true"),
    ],
)
def test_a_wrong_plugstack_argument_stops_a_protected_step(host, supervisor, argument, shown):
    seen = host("--auto-resume", "cmd", plugstack=[f"supervisor={supervisor}", argument])
    assert seen.returncode == 1
    assert seen.stderr == (
        f"error: hpresume: plugstack.conf: {shown} is not supervisor=/absolute/path; "
        "the step was not started\n"
    )
    assert not seen.supervised


def test_no_supervisor(host, tmp_path):
    seen = host("--auto-resume", "cmd", plugstack=[f"supervisor={tmp_path}/missing"])
    assert seen.returncode == 1
    assert seen.stderr == (
        f"error: hpresume: cannot start the supervisor {tmp_path}/missing: "
        "No such file or directory; the step was not started\n"
    )


def test_a_supervisor_without_its_interpreter(host, supervisor):
    supervisor.write_text("#!/nowhere/python\n")
    seen = host("--auto-resume", "cmd")
    assert seen.returncode == 1
    assert f"{supervisor}: No such file or directory (its interpreter); the step was" in seen.stderr


def test_a_supervisor_that_is_not_executable(host, supervisor):
    supervisor.chmod(0o644)
    seen = host("--auto-resume", "cmd")
    assert seen.returncode == 1
    assert f"cannot start the supervisor {supervisor}: Permission denied; " in seen.stderr


def test_a_supervisor_that_is_no_program(host, supervisor):
    supervisor.write_bytes(b"\x7fELF rubbish")
    seen = host("--auto-resume", "cmd")
    assert seen.returncode == 1
    assert "Exec format error" in seen.stderr


def test_the_last_supervisor_argument_counts(host, supervisor):
    seen = host(
        "--auto-resume", "cmd", plugstack=["supervisor=/nowhere", f"supervisor={supervisor}"]
    )
    assert seen.supervised
