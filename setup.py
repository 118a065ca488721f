"""Build step for the SPANK plugin; everything else about the package is in pyproject.toml.

``pip install .`` builds the plugin where ``slurm/spank.h``, make and a C compiler are found and
installs it as ``hpresume/hpresume.so``, inside the package. Where one of them is missing the
package installs all the same, without the plugin, and a line says what to install (``pip -v``
shows it). A plugin works with one Slurm major.minor only: the file
``hpresume.so.slurm-version`` next to it names that version.

``python setup.py build_spank --inplace`` (and an editable install) puts both at
``spank/hpresume.so`` of the checkout instead; the former fails where it cannot build. Options:
``--slurm-include=DIR`` for a Slurm outside /usr, ``--supervisor=PATH`` for the program that the
plugin starts where plugstack.conf names none.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.build import build
from setuptools.errors import ExecError

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

SPANK = Path("spank")
MODULES = ("arguments", "messages", "supervisor", "lost_host", "unanswered")
SOURCES = ("Makefile", "hpresume.map", "plugin.c", *(f"{name}.c" for name in MODULES))
HEADERS = tuple(f"{name}.h" for name in MODULES)
PRODUCTS = ("hpresume.so", "hpresume.so.slurm-version")


def missing(slurm_include):
    """Return what the plugin's build lacks, each with the Debian package that brings it."""
    compiler = os.environ.get("CC", "cc").split()[0]
    include = Path(slurm_include or "/usr/include")
    wanted = {
        f"the compiler {compiler} (apt: gcc)": shutil.which(compiler),
        "make (apt: make)": shutil.which("make"),
        f"{include}/slurm/spank.h (apt: libslurm-dev)": (include / "slurm/spank.h").exists(),
    }
    return [name for name, found in wanted.items() if not found]


class build_spank(Command):  # noqa: N801
    """Compile the SPANK plugin with spank/Makefile."""

    description = "build the SPANK plugin (hpresume.so)"
    user_options: ClassVar = [
        ("build-lib=", "b", "directory to build the package into"),
        ("inplace", "i", "put the plugin into spank/ of the source tree"),
        ("slurm-include=", None, "directory with slurm/spank.h, where it is not /usr/include"),
        ("supervisor=", None, "program that the plugin starts by default"),
    ]
    boolean_options: ClassVar = ["inplace"]

    def initialize_options(self):
        self.build_lib = None
        self.inplace = False
        self.slurm_include = None
        self.supervisor = None
        self.editable_mode = False
        # Set where the plugin is a part of a larger build: then it may be left out.
        self.optional = False

    def finalize_options(self):
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    @property
    def folder(self):
        return SPANK if self.inplace or self.editable_mode else Path(self.build_lib, "hpresume")

    def run(self):
        lacking = missing(self.slurm_include)
        if lacking:
            line = f"the SPANK plugin was not built: missing {', '.join(lacking)}"
            if not (self.optional or self.editable_mode):
                raise ExecError(line)
            self.warn(f"{line}; srun --auto-resume will be unknown to srun itself")
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            self.make(scratch)
            for name in PRODUCTS:
                # Replaced as a whole: a running srun may have the old plugin mapped.
                new = self.folder / f"{name}.new"
                shutil.copy(Path(scratch, name), new)
                new.replace(self.folder / name)
        version = (self.folder / PRODUCTS[1]).read_text().strip()
        self.announce(f"built {self.folder / PRODUCTS[0]} for Slurm {version}", level=2)

    def make(self, folder):
        command = ["make", "-C", str(SPANK), f"BUILD_DIR={folder}"]
        if self.slurm_include:
            command.append(f"SLURM_INCLUDE={self.slurm_include}")
        if self.supervisor:
            command.append(f"SUPERVISOR={self.supervisor}")
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise ExecError(f"the SPANK plugin does not compile:\n{done.stdout}")

    def get_source_files(self):
        return [str(SPANK / name) for name in SOURCES + HEADERS]

    def get_outputs(self):
        return [str(self.folder / name) for name in PRODUCTS if (self.folder / name).exists()]

    def get_output_mapping(self):
        return {}


class build_with_spank(build):  # noqa: N801
    """The usual build, and the plugin where it can be built."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_spank", None)]

    def run(self):
        self.get_finalized_command("build_spank").optional = True
        super().run()


class bdist_wheel_with_spank(bdist_wheel):  # noqa: N801
    """A wheel for this platform if the plugin is in it, for any Python 3 in both cases."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class DistributionWithSpank(Distribution):
    """Belongs to a platform as soon as the plugin can be built."""

    def has_ext_modules(self):
        return not missing(None)


setup(
    distclass=DistributionWithSpank,
    cmdclass={
        "build": build_with_spank,
        "build_spank": build_spank,
        "bdist_wheel": bdist_wheel_with_spank,
    },
)
