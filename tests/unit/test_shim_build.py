"""What the plugin is built into: its symbols, its flags, and its place in the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION_HEADER = Path("/usr/include/slurm/slurm_version.h")

pytestmark = pytest.mark.skipif(
    not (shutil.which("cc") and shutil.which("make") and VERSION_HEADER.exists()),
    reason="needs cc, make and slurm/spank.h",
)


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def slurm_version() -> str:
    number = int(re.search(r"SLURM_VERSION_NUMBER (0x\w+)", VERSION_HEADER.read_text())[1], 16)
    return f"{number >> 16}.{number >> 8 & 255:02d}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    run("make", "-C", ROOT / "spank", f"BUILD_DIR={folder}", "CFLAGS=-O0", "SUPERVISOR=/a/b")
    return folder


def symbols(plugin: Path, kinds: str) -> set[str]:
    lines = run("nm", "-D", plugin).splitlines()
    return {line.split()[-1] for line in lines if line.split()[-2] in kinds}


def test_it_exports_what_slurm_looks_for_and_nothing_else(folder):
    assert symbols(folder / "hpresume.so", "TDBRVW") == {
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "slurm_spank_exit",
        "slurm_spank_init",
        "slurm_spank_init_post_opt",
        "slurm_spank_task_exit",
    }


def test_it_needs_libc_and_the_host_only(folder):
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", folder / "hpresume.so"))
    assert [name for name in needed if not name.startswith(("libc.so", "ld-linux"))] == []
    of_the_host = {name for name in symbols(folder / "hpresume.so", "U") if "@" not in name}
    assert all(name.startswith(("slurm_", "spank_")) for name in of_the_host)


def test_it_is_hardened_whatever_the_flags(folder):
    dynamic = run("readelf", "-W", "-d", "-l", folder / "hpresume.so")
    assert "BIND_NOW" in dynamic
    assert "GNU_RELRO" in dynamic
    assert re.search(r"GNU_STACK .* RW +0x", dynamic)
    assert "TEXTREL" not in dynamic
    # Its thread runs on when Slurm has done with the plugin.
    assert "NODELETE" in dynamic
    undefined = {name.partition("@")[0] for name in symbols(folder / "hpresume.so", "U")}
    assert {"__stack_chk_fail", "__vasprintf_chk"} <= undefined


def test_it_says_for_which_slurm_it_is(folder):
    assert (folder / "hpresume.so.slurm-version").read_text() == f"{slurm_version()}\n"


def test_the_default_supervisor_is_a_build_setting(folder):
    assert b"\0/a/b\0" in (folder / "hpresume.so").read_bytes()


def test_make_install(folder, tmp_path):
    run(
        *("make", "-C", ROOT / "spank", f"BUILD_DIR={folder}", "SUPERVISOR=/a/b", "install"),
        *(f"DESTDIR={tmp_path}", "PREFIX=/opt/hpresume"),
    )
    installed = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert installed == {
        "opt/hpresume/lib/hpresume/hpresume.so",
        "opt/hpresume/lib/hpresume/hpresume.so.slurm-version",
        "opt/hpresume/share/hpresume/plugstack.conf",
    }
    assert (tmp_path / "opt/hpresume/share/hpresume/plugstack.conf").read_text() == (
        "optional /opt/hpresume/lib/hpresume/hpresume.so supervisor=/a/b\n"
    )


# -- setup.py


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the build of the package reads."""
    copy = tmp_path / "checkout"
    (copy / "hpresume").mkdir(parents=True)
    shutil.copy(ROOT / "hpresume" / "__init__.py", copy / "hpresume")
    shutil.copytree(ROOT / "scripts", copy / "scripts")
    shutil.copytree(ROOT / "spank", copy / "spank", ignore=shutil.ignore_patterns("*.so*"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    return copy


def setup(checkout: Path, *arguments: str, **env: str) -> str:
    command = (sys.executable, "-W", "ignore", "setup.py", *arguments)
    return run(*command, cwd=checkout, **env)


def test_the_plugin_becomes_part_of_the_package(checkout):
    setup(checkout, "-q", "bdist_wheel")
    (wheel,) = (checkout / "dist").iterdir()
    assert re.fullmatch(r"hpresume-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert "hpresume/hpresume.so" in names
    assert "hpresume/hpresume.so.slurm-version" in names


@pytest.mark.parametrize("missing", ["compiler", "make"])
def test_without_tools_the_package_is_built_without_the_plugin(checkout, tmp_path, missing):
    env = {"CC": "no-such-compiler"} if missing == "compiler" else {"PATH": str(tmp_path)}
    if missing == "make":
        (tmp_path / "cc").symlink_to(shutil.which("cc"))
    said = setup(checkout, "bdist_wheel", **env)
    assert "the SPANK plugin was not built: missing" in said
    assert ("(apt: gcc)" in said, "(apt: make)" in said) == (
        missing == "compiler",
        missing == "make",
    )
    (wheel,) = (checkout / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")


def test_in_place(checkout):
    setup(checkout, "-q", "build_spank", "--inplace")
    assert (checkout / "spank/hpresume.so").exists()
    assert (checkout / "spank/hpresume.so.slurm-version").exists()
    assert not (checkout / "build").exists()


def test_in_place_names_the_package_that_is_missing(checkout):
    with pytest.raises(AssertionError, match=r"missing /nowhere/slurm/spank.h \(apt: libslurm-dev"):
        setup(checkout, "build_spank", "--inplace", "--slurm-include=/nowhere")


def test_a_plugin_that_does_not_compile_is_an_error(checkout):
    (checkout / "spank/plugin.c").write_text("#error broken\n")
    with pytest.raises(AssertionError, match="the SPANK plugin does not compile"):
        setup(checkout, "bdist_wheel")


def test_sources_are_in_the_source_distribution(checkout):
    setup(checkout, "-q", "sdist")
    names = run("tar", "-tzf", next((checkout / "dist").iterdir()))
    for source in (ROOT / "spank").iterdir():
        if source.suffix in (".c", ".h", ".map") or source.name == "Makefile":
            assert f"spank/{source.name}\n" in names
