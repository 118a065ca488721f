"""FAKE hardware on the nodes of a cluster, and faults of it.

Two GPUs on each node's PCI bus, an ``nvidia-smi`` that says what a file has for the
node, and a kernel log in place of the machine's. Only for hardware that cannot be
here: all else is real, and the checks run as in any job.
"""

from __future__ import annotations

import time
from pathlib import Path

from cluster import E2eCluster
from steps import Run

SAMPLES = Path(__file__).parents[1] / "unit" / "health_samples"

_SMI = """#!/bin/sh
here=${{0%/*}}
if [ -e "$here/$SLURMD_NODENAME.hangs" ]; then trap '' TERM; sleep 300; fi
case "$1" in
nvlink) cat {samples}/nvlink.txt;;
*) if [ -e "$here/$SLURMD_NODENAME.xml" ]; then cat "$here/$SLURMD_NODENAME.xml";
   else cat {samples}/nvidia-smi-570.xml; fi;;
esac
"""

_GPU = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}


class FakeHardware:
    """The hardware of all nodes, well at first; ``environ`` puts its tool on PATH."""

    def __init__(self, cluster: E2eCluster, run: Run) -> None:
        self.cluster = cluster
        self.folder = run.dir / "hardware"
        pci = self.folder / "pci"
        for number in range(2):
            at = pci / f"0000:{number:02x}:00.0"
            at.mkdir(parents=True)
            for name, text in _GPU.items():
                (at / name).write_text(text + "\n")
        # Below the home of the trainer, but not the trainer's: a step cannot change it.
        tool = self.folder / "nvidia-smi"
        tool.write_text(_SMI.format(samples=self._samples()))
        tool.chmod(0o755)
        self.nodes = cluster.spec.node_names
        for node in self.nodes:
            self.log(node).write_text("6,1,1000,-;Linux version 6.1\n")
            self._mount(node, pci, "/sys/bus/pci/devices")
            self._mount(node, self.log(node), "/dev/kmsg")
        run.environ["PATH"] = f"{self.folder}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

    def _samples(self) -> Path:
        """Samples where the trainer may read them."""
        copies = self.folder / "samples"
        copies.mkdir()
        for name in ("nvlink.txt", "nvidia-smi-570.xml"):
            (copies / name).write_bytes((SAMPLES / name).read_bytes())
        return copies

    def _mount(self, node: str, source: Path, target: str) -> None:
        self.cluster.exec(["mount", "--bind", str(source), target], node, check=True)

    def log(self, node: str) -> Path:
        """The kernel log of a node."""
        return self.folder / f"{node}.kmsg"

    def xid(self, node: str, code: int, ago_s: float = 0.0) -> None:
        """The driver of a node reports an error."""
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        moment = int(1e6 * max(0.0, uptime - ago_s))
        with self.log(node).open("a") as log:
            log.write(f"3,9,{moment},-;NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, text of it\n")

    def uncorrected(self, node: str, count: int) -> None:
        """A GPU of a node has uncorrected memory errors."""
        text = (SAMPLES / "nvidia-smi-570.xml").read_text()
        changed = text.replace("<dram_uncorrectable>0<", f"<dram_uncorrectable>{count}<", 1)
        assert changed != text
        (self.folder / f"{node}.xml").write_text(changed)

    def hangs(self, node: str) -> None:
        """nvidia-smi hangs on a node, as it does where a GPU does not answer."""
        (self.folder / f"{node}.hangs").touch()

    def remove(self) -> None:
        """The nodes as they were."""
        for node in self.nodes:
            for target in ("/sys/bus/pci/devices", "/dev/kmsg"):
                self.cluster.exec(["umount", target], node)
