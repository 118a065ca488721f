"""Bad input: one clear line, an exit code that is not 0, and no job and no step anywhere."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import E2eCluster
from ways import PLUGIN, WRAPPER, Done, Result, Way, start

pytestmark = pytest.mark.e2e

#: What Slurm itself adds to an error in its options.
SLURMS_OWN = re.compile(r'Try "\w+ --help" for more|srun: error: Invalid --auto-resume argument')


@pytest.fixture(scope="module", params=[PLUGIN, WRAPPER])
def way_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def module_cluster(way_name: str, machine: None) -> Iterator[E2eCluster]:
    cluster = start(way_name, nodes=2, gpus_per_node=0)
    yield cluster
    cluster.down()


@pytest.fixture(scope="module")
def way(way_name: str, module_cluster: E2eCluster) -> Way:
    return Way(module_cluster, way_name)


@pytest.fixture(scope="module")
def inside(way: Way) -> Iterator[dict[str, str]]:
    """The environment of an allocation of one node."""
    with way.allocated("-N1") as environ:
        yield environ


@contextmanager
def nothing_started(way: Way, inside: dict[str, str]) -> Iterator[None]:
    """Neither a job nor a step; also none that has ended already."""
    jobs, step = way.all_jobs(), next_step(way, inside)
    yield
    assert way.all_jobs() == jobs
    assert next_step(way, inside) == step + 1


def next_step(way: Way, inside: dict[str, str]) -> int:
    """The number of a step that is started now; it is never given again."""
    return int(way.sh("srun -n1 printenv SLURM_STEP_ID", way.plain, **inside).stdout)


def is_error(done: Done, pattern: str) -> bool:
    """Whether ``pattern`` is in the only line of stderr, and nothing says that all is well."""
    lines = [line for line in done.stderr.splitlines() if not SLURMS_OWN.match(line)]
    assert len(lines) == 1, done
    assert re.search(pattern, lines[0]), done
    assert (done.code != 0, done.stdout) == (True, ""), done
    return True


HETEROGENEOUS = r"heterogeneous steps and jobs .* cannot be resumed; start one srun a component"
VALUE = r"--auto-resume={}: the value must be 1 \(or none\) for on, 0 for off"

WRONG = {
    # the command line
    "value 2": ("srun --auto-resume=2 -N1 touch it", VALUE.format("2")),
    "value yes": ("srun -N1 --auto-resume=yes touch it", VALUE.format("yes")),
    "a wrong value before a right one": (
        "srun --auto-resume=2 --auto-resume=1 -N1 touch it",
        VALUE.format("2"),
    ),
    "no command": ("srun --auto-resume=1", "fatal: No command given to execute"),
    "no command, options": ("srun -N1 --auto-resume -l", "fatal: No command given to execute"),
    "no command, dashes": ("srun --auto-resume=1 -N1 --", "fatal: No command given to execute"),
    "two components": ("srun -N1 --auto-resume=1 touch it : -N1 touch it", HETEROGENEOUS),
    "asked for by the second": ("srun -N1 touch it : -N1 --auto-resume=1 touch it", HETEROGENEOUS),
    "a heterogeneous job": ("SLURM_HET_SIZE=2 srun --auto-resume=1 touch it", HETEROGENEOUS),
    "unknown option": (
        "srun --auto-resume=1 --unknown touch it",
        "unrecognized option '--unknown'",
    ),
    "unknown letter": ("srun --auto-resume=1 -N1 -Y touch it", "invalid option -- 'Y'"),
    "ambiguous option": ("srun --auto-resume=1 --no touch it", "option '--no' is ambiguous"),
    "missing value": ("srun --auto-resume=1 --nodelist", "option '--nodelist' requires an arg"),
    "value for a flag": (
        "srun --auto-resume=1 --label=x touch it",
        "'--label' doesn't allow an arg",
    ),
    "sbatch": ("sbatch --auto-resume=1 --wrap='touch it'", "unrecognized option '--auto-resume=1'"),
    "salloc": ("salloc --auto-resume=1 touch it", "unrecognized option '--auto-resume=1'"),
    # settings in the environment
    "resume_on": (
        "HPRESUME_RESUME_ON=sometimes srun --auto-resume=1 touch it",
        "HPRESUME_RESUME_ON: resume_on is 'sometimes'; allowed is node-failure or any",
    ),
    "heartbeat": (
        "HPRESUME_HEARTBEAT=banana srun --auto-resume=1 touch it",
        "HPRESUME_HEARTBEAT: heartbeat is 'banana'; allowed is a time such as 30, 500ms",
    ),
    "max_resumes": (
        "HPRESUME_MAX_RESUMES=-1 srun --auto-resume=1 touch it",
        "HPRESUME_MAX_RESUMES: max_resumes is '-1'; allowed is a whole number from 0 to",
    ),
    "empty": (
        "HPRESUME_MAX_RESUMES= srun --auto-resume=1 touch it",
        "HPRESUME_MAX_RESUMES: max_resumes is ''; allowed is a whole number",
    ),
    "ladder": (
        "HPRESUME_LADDER=same,magic srun --auto-resume=1 touch it",
        "HPRESUME_LADDER: ladder is 'same,magic'; allowed is a list of same, spare",
    ),
    "backend": (
        "HPRESUME_SLURM_BACKEND=magic srun --auto-resume=1 touch it",
        "HPRESUME_SLURM_BACKEND: slurm_backend is 'magic'; allowed is auto or cli or pyslurm",
    ),
    # settings in a file
    "config missing": (
        "HPRESUME_CONFIG=/missing srun --auto-resume=1 touch it",
        "/missing: no such file; HPRESUME_CONFIG names it",
    ),
    "config a directory": ("HPRESUME_CONFIG=/ srun --auto-resume=1 touch it", "/: cannot be read"),
    "config unreadable": (
        ">file; chmod 0 file; HPRESUME_CONFIG=$PWD/file srun --auto-resume=1 touch it",
        "/file: cannot be read .Permission denied.; ask the administrator",
    ),
    "config not TOML": (
        "echo '[resume' >file; HPRESUME_CONFIG=file srun --auto-r touch it",
        "file: not valid TOML: .*line 1",
    ),
    "config not text": (
        r"printf '\xff' >file; HPRESUME_CONFIG=file srun --auto-r touch it",
        "file: not valid TOML: ",
    ),
    "config unknown key": (
        "printf '[resume]\nmax_resume = 3' >file; HPRESUME_CONFIG=file srun --auto-r touch it",
        "file: unknown setting resume.max_resume; did you mean max_resumes",
    ),
    "config wrong type": (
        "printf '[resume]\nladder = 3' >file; HPRESUME_CONFIG=file srun --auto-r touch it",
        "file: ladder is 3; allowed is a list of same, spare",
    ),
    "config misspelt table": (
        "printf '[resum]\nmax_resumes = 3' >file; HPRESUME_CONFIG=file srun --auto-r touch it",
        r"file: unknown resum; settings belong into the table \[resume\]",
    ),
}


@pytest.mark.parametrize(("script", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong(way: Way, inside: dict[str, str], script: str, message: str) -> None:
    with nothing_started(way, inside):
        for environ in ({}, inside):
            done = way.sh(script, **environ)
            assert is_error(done, message)
            assert "it" not in done.files


def test_wrong_settings_do_not_matter_to_a_step_that_is_not_protected(way: Way) -> None:
    for options in ("", "--auto-resume=0"):
        done = way.sh(f"srun {options} -N1 echo a", HPRESUME_CONFIG="/missing")
        assert (done.stdout, done.stderr, done.code) == ("a\n", "", 0)


def test_pyslurm_that_is_not_there(way: Way, inside: dict[str, str]) -> None:
    if importlib.util.find_spec("pyslurm"):
        pytest.skip("pyslurm is here")
    with nothing_started(way, inside):
        done = way.sh("HPRESUME_SLURM_BACKEND=pyslurm srun --auto-resume=1 touch it")
    assert is_error(done, "slurm_backend = pyslurm: pyslurm is not installed")


def test_a_variable_that_is_no_setting_is_a_warning(way: Way) -> None:
    done = way.sh("HPRESUME_MAX_RESUME=1 srun --auto-resume=1 -N1 echo a")
    assert (done.stdout, done.code) == ("a\n", 0)
    (line,) = done.stderr.splitlines()
    assert "warning: HPRESUME_MAX_RESUME is no setting and is ignored; did you mean" in line


def _anywhere(result: Result) -> Result:
    """The same on whichever node Slurm chose."""
    lines = [re.sub(r"\bn[12]\b", "NODE", line) for line in result[1]]
    return (result[0], lines, *result[2:])


def test_a_value_after_a_space_is_the_command(way: Way) -> None:
    """As with every optional value of srun's: --auto-resume 1 runs the program "1"."""
    ours, plain = way.both("$SRUN 1 touch it", protected="srun --auto-resume")
    assert _anywhere(ours) == _anywhere(plain)
    assert "execve(): 1: No such file or directory" in "".join(ours[1])
    assert ours[2:] == (2, {})
    done = way.sh("ln -s $(type -P echo) 1; PATH=.:$PATH srun --auto-resume 1 a")
    assert (done.stdout, done.code) == ("a\n", 0)


# -- no supervisor ------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["missing", "not executable", "no interpreter"])
def test_a_supervisor_that_cannot_be_started(way: Way, inside: dict[str, str], fault: str) -> None:
    folder = way.cluster.home() / "other"
    folder.mkdir(exist_ok=True)
    program = folder / "hpresume"
    program.unlink(missing_ok=True)
    if fault != "missing":
        program.write_text("#!/nowhere/python\n")
        program.chmod(0o644 if fault == "not executable" else 0o755)
    path = f"{folder}:{way.path}"
    if way.name == PLUGIN:
        way.plugstack(hpresume=str(program))
    else:
        # Without the directory of this Python, where hpresume is.
        path = ":".join([str(folder), *way.path.split(":")[0:1], *way.path.split(":")[2:]])
    try:
        with nothing_started(way, inside):
            done = way.sh("srun --auto-resume=1 -N1 touch it", PATH=path)
        other = way.sh("srun -N1 echo a", PATH=path)
    finally:
        way.plugstack()
    assert is_error(done, "hpresume.*(No such file|Permission denied|is not on PATH)")
    # Nobody else is disturbed.
    assert (other.stdout, other.stderr, other.code) == ("a\n", "", 0)


@pytest.mark.parametrize("named", ["missing", "wrapper"])
def test_a_wrong_name_of_the_real_srun(way: Way, inside: dict[str, str], named: str) -> None:
    wrapper = Path(way.path.split(":")[0]) / "srun"
    other = "/missing" if named == "missing" else str(wrapper)
    script = f"HPRESUME_SRUN={other} srun --auto-resume=1 -n1 touch it"
    if way.name == PLUGIN:  # which knows what called it
        done = way.sh(script, **inside)
        assert (done.stderr, done.code, list(done.files)) == ("", 0, ["it"])
        return
    with nothing_started(way, inside):
        done = way.sh(script)
    assert is_error(done, f"HPRESUME_SRUN={other} is not the path of the real srun; the step")
