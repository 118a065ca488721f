"""What becomes of slurm.conf and slurmctld where a change goes wrong half-way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hpresume.errors import SlurmError, SlurmToolError
from hpresume.provision import conf_files, slurm_side
from hpresume.provision.ports import NodeEntry, SlurmEntries
from hpresume.provision.slurm_side import UNAPPLIED, LocalSlurm
from hpresume.slurm.runner import Answer, Runner

ADMIN = "ClusterName=c\nNodeName=n1 CPUs=2\nPartitionName=main Nodes=n1\n"
GRES = ("Name=gpu File=/dev/nvidia0",)
ENTRIES = SlurmEntries((NodeEntry("w-1", "10.0.0.1", "CPUs=2", GRES),), {"gpu": ("w-1",)})


class Tools(Runner):
    """Slurm 22.05 with one node, whose tools answer; ``reconfigure`` may fail."""

    def __init__(self, reconfigured: int = 0) -> None:
        super().__init__({})
        self.reconfigured = reconfigured
        self.node = "State=IDLE"
        self.calls: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
        self.calls.append(tuple(argv))
        if "config" in argv:
            return Answer("ClusterName = c\nSLURM_VERSION = 22.05.8\n", "", 0)
        if "node" in argv:
            return Answer(f"NodeName=n1 {self.node} SlurmdStartTime=1\n", "", 0)
        return Answer("", "slurm_reconfigure error: no", self.reconfigured)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text(ADMIN)
    return path


def side(conf: Path, tools: Tools, restarts: list[str]) -> LocalSlurm:
    return LocalSlurm(conf, tools, lambda: restarts.append("restart"))


def test_slurmctld_is_not_restarted_over_a_file_that_an_administrator_broke(conf: Path) -> None:
    """gres.conf was written already and is put back: Slurm had been told of nothing."""
    broken = ADMIN + "NodeName=n1 CPUs=4\n"  # slurmctld ends over it, scontrol does not
    conf.write_text(broken)
    tools, restarts = Tools(), list[str]()
    with pytest.raises(SlurmError, match="node n1 is defined twice"):
        side(conf, tools, restarts).configure(ENTRIES)
    assert restarts == []
    assert ("scontrol", "reconfigure") not in tools.calls
    assert conf.read_text() == broken
    assert not conf.with_name("gres.conf").exists()
    assert not conf.with_name(conf.name + UNAPPLIED).exists()


def test_a_missing_scontrol_is_not_told_as_a_broken_file(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(conf.parent))
    with pytest.raises(SlurmToolError, match=r"^scontrol is not on PATH"):
        side(conf, Tools(), []).configure(ENTRIES)
    assert conf.read_text() == ADMIN


def test_what_slurm_refuses_is_put_back_and_slurm_told(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalSlurm, "_check", lambda *_: None)
    tools, restarts = Tools(reconfigured=1), list[str]()
    with pytest.raises(SlurmError, match="slurm_reconfigure error"):
        side(conf, tools, restarts).configure(ENTRIES)
    assert restarts == ["restart", "restart"]
    assert conf.read_text() == ADMIN
    # the second reconfigure failed as well: it is ours to see to
    assert conf.with_name(conf.name + UNAPPLIED).exists()


def test_what_cannot_be_put_back_is_told_beside_the_first_error_and_stays_ours(
    conf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LocalSlurm, "_check", lambda *_: None)
    tools, restarts = Tools(reconfigured=1), list[str]()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    class Filling(Tools):
        def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
            if "reconfigure" in argv:
                monkeypatch.setattr(conf_files, "_write", full)
            return super().run(argv, timeout_s, cwd)

    tools = Filling(reconfigured=1)
    with pytest.raises(SlurmError, match="slurm_reconfigure error"):
        side(conf, tools, restarts).configure(ENTRIES)
    assert "cannot be put back: No space left on device" in caplog.text
    # nothing was put behind the one that failed: gres.conf, which was new, is gone
    assert not conf.with_name("gres.conf").exists()
    assert conf.with_name(conf.name + UNAPPLIED).exists()
    assert restarts == ["restart"]


def test_what_an_administrator_mends_meanwhile_is_not_put_back(
    conf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """slurmctld ends over a mistake in the file that only it finds; it is mended while we wait."""
    monkeypatch.setattr(LocalSlurm, "_check", lambda *_: None)
    conf.write_text(ADMIN + "SchedulerType=sched/nosuch\n")

    class Mending(Tools):
        def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
            if "reconfigure" in argv:
                conf.write_text(conf.read_text().replace("SchedulerType=sched/nosuch\n", ""))
            return super().run(argv, timeout_s, cwd)

    restarts: list[str] = []
    with pytest.raises(SlurmError, match="slurm_reconfigure error"):
        side(conf, Mending(reconfigured=1), restarts).configure(ENTRIES)
    assert "nosuch" not in conf.read_text()
    assert "slurm.conf was changed by somebody else meanwhile: it is not put back" in caplog.text
    # Slurm is not up yet: the next try starts it
    assert conf.with_name(conf.name + UNAPPLIED).exists()
    side(conf, Tools(), restarts).configure(ENTRIES)
    assert restarts == ["restart", "restart"]
    assert "NodeName=w-1 " in conf.read_text()
    assert not conf.with_name(conf.name + UNAPPLIED).exists()


def test_a_mark_that_cannot_be_removed_is_an_error_that_is_told(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system went read-only: an OSError would be nobody's, and tried without a pause."""
    monkeypatch.setattr(LocalSlurm, "_check", lambda *_: None)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    class Turning(Tools):
        def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
            if "reconfigure" in argv:
                monkeypatch.setattr(Path, "unlink", read_only)
            return super().run(argv, timeout_s, cwd)

    with pytest.raises(SlurmError, match="cannot be removed: Read-only file system"):
        side(conf, Turning(), []).configure(ENTRIES)


def test_a_full_disk_leaves_no_scraps(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalSlurm, "_check", lambda *_: None)
    change = conf_files.install(conf, lambda text: text + "# more\n", lambda _: None)
    assert change is not None

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conf_files.os, "fsync", full)
    with pytest.raises(SlurmError, match="cannot be put back: No space left"):
        change.undo()
    assert {p.name for p in conf.parent.iterdir()} == {
        "slurm.conf",
        f"slurm.conf{conf_files.BACKUP}",
    }


@pytest.mark.parametrize(
    ("node", "is_ready"),
    [
        ("State=IDLE", True),
        ("State=IDLE+FAIL Reason=Action:Replace [root@2026-11-30T10:19:30]", True),
        ("State=DOWN+FAIL Reason=Action:Replace [root@2026-11-30T10:19:30]", True),
        ("State=DOWN*+FAIL Reason=Action:Replace [root@2026-11-30T10:19:30]", False),
        ("State=DOWN Reason=Not responding [slurm@2026-11-30T10:19:30]", False),
        ("State=DOWN Reason=the fan is loud [root@2026-11-30T10:19:30]", False),
        ("State=IDLE+DRAIN Reason=the fan is loud [root@2026-11-30T10:19:30]", True),
        ("State=IDLE+DRAIN Reason=hpresume: the scripts run [root@2026-11-30T10:19:30]", False),
    ],
)
def test_when_a_node_is_up(
    conf: Path, monkeypatch: pytest.MonkeyPatch, node: str, is_ready: bool
) -> None:
    """An order for node recovery that came meanwhile does not keep it from coming up."""
    monkeypatch.setattr(slurm_side, "SETTLE_S", 0.0)
    tools = Tools()
    tools.node = node
    assert side(conf, tools, []).look()["n1"].is_ready is is_ready
