"""The stand-in for srun and slurmstepd (fake_spank/host.c), and what a supervisor sees from it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from shim import Build

# Writes what a supervisor sees of itself, from /proc: Python would touch its own view.
SUPERVISOR = """#!{python} -IS
import os, re
out = os.environb[b"DUMP"]
def read(name):
    with open(b"/proc/self/" + name, "rb") as file:
        return file.read()
fds = [int(name) for name in os.listdir("/proc/self/fd")]
with open(out + b".argv", "wb") as file:
    file.write(read(b"cmdline"))
with open(out + b".environ", "wb") as file:
    file.write(read(b"environ"))
with open(out + b".status", "wb") as file:
    file.write(read(b"status"))
with open(out + b".fds", "w") as file:
    for fd in fds:
        if os.path.exists("/proc/self/fd/%d" % fd):
            print(fd, os.readlink("/proc/self/fd/%d" % fd), file=file)
"""


@dataclass(frozen=True)
class Seen:
    """How the stand-in ended, and what the supervisor saw if it was started."""

    returncode: int
    stdout: list[str]
    stderr: str
    dump: Path

    @property
    def supervised(self) -> bool:
        return self.dump.with_suffix(".argv").exists()

    @property
    def argv(self) -> list[bytes]:
        # The interpreter's own two words come first.
        return self.dump.with_suffix(".argv").read_bytes().split(b"\0")[2:-1]

    @property
    def environ(self) -> list[bytes]:
        return self.dump.with_suffix(".environ").read_bytes().split(b"\0")[:-1]

    def signals(self, field: str) -> set[int]:
        for line in self.dump.with_suffix(".status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                mask = int(value, 16)
                return {number for number in range(1, 65) if mask >> (number - 1) & 1}
        raise AssertionError(field)

    @property
    def fds(self) -> dict[int, str]:
        lines = self.dump.with_suffix(".fds").read_text().splitlines()
        return {int(line.split(" ", 1)[0]): line.split(" ", 1)[1] for line in lines}


def write_supervisor(folder: Path) -> Path:
    path = folder / "supervisor"
    path.write_text(SUPERVISOR.format(python=sys.executable))
    path.chmod(0o755)
    return path


def run_host(
    build: Build,
    folder: Path,
    supervisor: Path,
    *argv: str | bytes,
    orders: str = "init parse post-opt",
    plugstack: list[str] | None = None,
    env: dict[str, str] | None = None,
    **options: object,
) -> Seen:
    """Run the stand-in as srun, with the plugin and ``orders``."""
    arguments = [f"supervisor={supervisor}"] if plugstack is None else plugstack
    script = folder / "orders"
    lines = [f"plugstack {argument}" for argument in arguments]
    lines += orders.split("\n") if "\n" in orders else orders.split()
    script.write_text("".join(f"{line.strip()}\n" for line in lines if line.strip()))
    environ = {
        "PATH": os.defpath,
        "FAKE_SPANK_SCRIPT": str(script),
        "FAKE_SPANK_PLUGIN": str(build.plugin),
        "DUMP": str(folder / "dump"),
        # What is handed to exec is not freed before.
        "ASAN_OPTIONS": "detect_leaks=0",
        **(env or {}),
    }
    done = subprocess.run(
        ["srun", *argv],
        executable=build.host,
        env=environ,
        capture_output=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    return Seen(
        done.returncode,
        done.stdout.decode().splitlines(),
        done.stderr.decode(errors="replace"),
        folder / "dump",
    )
