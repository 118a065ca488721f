"""The SPANK plugin, built for a test, and a stand-in for the program that loads it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "spank"


def compile_with(*command: str) -> None:
    """Run a compiler or make; what it says is the failure's."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Build:
    """``host`` is the stand-in."""

    host: Path
    plugin: Path
    sanitized: bool

    @property
    def release(self) -> str:
        """Of the Slurm whose headers it was built with, as the build wrote it down."""
        return self.plugin.with_name(f"{self.plugin.name}.slurm-version").read_text().strip()


def build_shim(folder: Path, sanitized: bool, stand_in: str) -> Build:
    """Build both into ``folder``; skips the test where that cannot be done here."""
    if not (
        shutil.which("cc") and shutil.which("make") and Path("/usr/include/slurm/spank.h").exists()
    ):
        pytest.skip("needs cc, make and slurm/spank.h")
    if sanitized and not _sanitizers_work(folder):
        pytest.skip("the compiler has no sanitizers")
    flags = ["CFLAGS=-fsanitize=address,undefined -fno-sanitize-recover=all"] if sanitized else []
    compile_with("make", "-C", str(SOURCES), f"BUILD_DIR={folder}", *flags)
    host = folder / "host"
    host_flags = ["-fsanitize=address,undefined"] if sanitized else []
    source = str(HERE / "fake_spank" / stand_in)
    compile_with("cc", "-Wall", "-rdynamic", *host_flags, "-o", str(host), source)
    return Build(host, folder / "hpresume.so", sanitized)


def _sanitizers_work(folder: Path) -> bool:
    program = folder / "probe.c"
    program.write_text("int main(void) { return 0; }\n")
    flags = ["-fsanitize=address,undefined", "-o", str(folder / "probe")]
    built = subprocess.run(["cc", *flags, str(program)], capture_output=True, check=False)
    return built.returncode == 0 and subprocess.run([folder / "probe"], check=False).returncode == 0
