"""Every check that asks a tool: releases, cut answers, tools that hang, crash or speak German."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from health_node import FakeNode, sample

from hpresume.health.model import Result, Status
from hpresume.health.policy import load_policy
from hpresume.health.registry import CHECKS

TRACKING = "A29FC87B,ntp1,3,1.0,-0.000123,-0.000012,0.0002,1.2,0.0,0.01,0.02,0.001,64.5,Normal\n"

#: What an answer says, in another language: nothing of it is in a parser.
GERMAN = "Fehler: kein Gerät gefunden\nZustand: gesund\nLeistung: 61,22 W\n"


@dataclass(frozen=True)
class Tool:
    """The tool of a check, and what its releases print on a healthy node."""

    name: str
    samples: tuple[str, ...]
    #: Behind this everything is told that the check looks for.
    enough: str = ""

    def texts(self) -> list[str]:
        return [text if "\n" in text else sample(text) for text in self.samples]


SMI = Tool("nvidia-smi", ("nvidia-smi-470.xml", "nvidia-smi-570.xml"))
TOOLS = {
    **{c.name: SMI for c in CHECKS if c.family == "nvidia-smi"},
    "gpu-recovery-action": Tool("nvidia-smi", ("nvidia-smi-570.xml",)),
    "gpu-nvlink": Tool("nvidia-smi", ("nvlink.txt", "nvlink-v100.txt")),
    "dcgm-health": Tool("dcgmi", ("dcgmi-health-healthy.json",)),
    "dcgm-policy": Tool("dcgmi", ("dcgmi-dmon.txt", "dcgmi-dmon-2.txt")),
    "dcgm-diag": Tool("dcgmi", ("dcgmi-diag-3.json",)),
    "efa-provider": Tool(
        "fi_info", ("fi_info-efa.txt", "fi_info-efa-2.1.txt"), enough="domain: rdmap32s27"
    ),
    "efa-loopback": Tool("fi_pingpong", ("fi_pingpong.txt",), enough="9532.51"),
    "cpu-stress": Tool(
        "stress-ng", ("stress-ng-done.txt", "stress-ng-0.17.txt"), enough="run completed"
    ),
    "munge": Tool("munge", ("MUNGE:AwQFAACnHHkkZg==:\n",)),
    "clock": Tool("chronyc", (TRACKING,)),
}
CASES = [(name, text) for name, tool in TOOLS.items() for text in tool.texts()]
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(CASES)]


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """A node with two of everything."""
    node = FakeNode(tmp_path)
    node.gpus(2)
    node.efa(2)
    node.file("/proc/stat", "cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 5 0 5 40 0 0 0 0 0 0\n")
    node.file("/etc/slurm/slurm.conf")
    return node


def look(node: FakeNode, name: str, timeout_s: float = 5.0) -> Result:
    # Where chronyc says nothing the kernel's own bound counts, which is this machine's.
    result = node.check(name, timeout_s)
    if name == "clock" and "the kernel" in result.evidence:
        return Result(name, Status.UNKNOWN, result.evidence)
    return result


def test_every_check_with_a_tool_is_here() -> None:
    # Without a tool, or with one that is asked in other tests: scontrol, journalctl.
    others = ("kernel-", "neuron-", "infiniband-", "disk-")
    alone = {"efa-devices", "efa-memlock", "efa-counters", "memory-size", "slurmd", "mounts"}
    names = {c.name for c in CHECKS if not c.name.startswith(others)} - alone - {"pair-network"}
    assert names == set(TOOLS)


@pytest.mark.parametrize(("name", "text"), CASES, ids=IDS)
def test_a_healthy_node(node: FakeNode, name: str, text: str) -> None:
    node.says(TOOLS[name].name, text)
    assert look(node, name).status is Status.PASS
    # Warnings on the side are none.
    node.says(TOOLS[name].name, text, 0, "WARNING: infoROM is corrupted at gpu 0000:3b:00.0")
    assert look(node, name).status is Status.PASS


@pytest.mark.parametrize(("name", "text"), CASES, ids=IDS)
def test_a_good_answer_with_a_bad_end_is_no_pass(node: FakeNode, name: str, text: str) -> None:
    node.says(TOOLS[name].name, text, 9, "something went wrong")
    assert look(node, name).status is not Status.PASS


@pytest.mark.parametrize(("name", "text"), CASES, ids=IDS)
def test_an_answer_that_was_cut_is_no_pass(node: FakeNode, name: str, text: str) -> None:
    enough = TOOLS[name].enough
    whole = text.partition(enough)[0] if enough else text.rstrip()
    cuts = {round(len(whole) * part / 8) for part in range(8)} | {len(whole) * 97 // 100}
    for cut in sorted(cuts):
        node.says(TOOLS[name].name, whole[:cut])
        result = look(node, name)
        assert result.status is not Status.PASS, (whole[:cut][-60:], result)


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize(
    "said", ["", "\n", "garbage", "\0\xff\n", GERMAN, "{}", "<a/>", "0\n" * 50]
)
def test_an_answer_that_is_none_is_no_pass(node: FakeNode, name: str, said: str) -> None:
    node.says(TOOLS[name].name, said)
    assert look(node, name).status is not Status.PASS


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_that_crashes_or_hangs_is_not_known(node: FakeNode, name: str) -> None:
    for body in ("kill -SEGV $$", "exec sleep 60", "echo error >&2; exit 77"):
        node.tool(TOOLS[name].name, body)
        result = look(node, name, timeout_s=0.4)
        # munge has no other reason to fail than a munged that does not answer.
        assert result.status is Status.UNKNOWN, (body, result)


@pytest.mark.parametrize(("name", "text"), CASES, ids=IDS)
def test_a_tool_is_asked_in_english(node: FakeNode, name: str, text: str) -> None:
    said = node.root.parent / "said"
    said.write_text(text)
    node.environ |= {"LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"}
    speaks = f'if [ "$LC_ALL" = C ]; then cat "{said}"; else echo Fehler; fi'
    node.tool(TOOLS[name].name, speaks)
    assert look(node, name).status is Status.PASS


def test_every_check_is_tested() -> None:
    tests = "".join(p.read_text() for p in Path(__file__).parent.glob("test_health_*.py"))
    for check in CHECKS:
        assert f'"{check.name}"' in tests


#: Issue: what there has to be, by check.
ASKED_FOR = {
    "DCGM policies": ("dcgm-policy", "dcgm-health", "kernel-xid"),
    "NVIDIA SMI": (
        "gpu-count", "gpu-ecc", "gpu-remapped-rows", "gpu-retired-pages", "gpu-temperature",
        "gpu-power", "gpu-throttle", "gpu-nvlink", "gpu-pcie", "gpu-memory",
    ),
    "Neuron sysfs": ("neuron-count", "neuron-ecc", "neuron-health", "kernel-neuron"),
    "EFA": ("efa-devices", "efa-provider", "efa-memlock", "efa-counters", "efa-loopback"),
    "InfiniBand": ("infiniband-ports", "infiniband-errors"),
    "DCGM Diagnostic": ("dcgm-diag",),
    "CPU stress": ("cpu-stress",),
    "several nodes": ("pair-network",),
    "the node": (
        "memory-size", "disk-space", "disk-readonly", "mounts", "kernel-hung-task",
        "kernel-machine-check", "clock", "slurmd", "munge",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ASKED_FOR)
def test_what_was_asked_for(row: str) -> None:
    policy = load_policy("/dev/null")
    known = {check.name for check in CHECKS}
    assert set(ASKED_FOR[row]) <= known
    deep = {name for name in ASKED_FOR[row] if policy.check(name).profiles == ("deep",)}
    assert deep == set(ASKED_FOR[row]) & {"dcgm-diag", "cpu-stress", "efa-loopback", "pair-network"}
