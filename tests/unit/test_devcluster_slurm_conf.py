"""The Slurm configuration files of a development cluster, for every version."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpresume.devcluster.layout import Layout
from hpresume.devcluster.slurm_conf import (
    cgroup_conf,
    gres_conf,
    parse_version,
    plugstack_conf,
    slurm_conf,
)
from hpresume.devcluster.spec import ClusterSpec
from hpresume.errors import DevClusterError

LAYOUT = Layout(Path("/var/tmp/x"))
VERSIONS = [(21, 8), (22, 5), (23, 11), (24, 11), (26, 5)]


def lines(spec: ClusterSpec, version: tuple[int, int] = (22, 5)) -> list[tuple[str, str]]:
    text = slurm_conf(spec, LAYOUT, version)
    return [tuple(line.split("=", 1)) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8", (22, 5)),
        ("slurm 24.11.5\n", (24, 11)),
        ("slurm-wlm 21.08.5", (21, 8)),
        ("slurm 26.05.0-rc1", (26, 5)),
    ],
)
def test_version(text, version):
    assert parse_version(text) == version


def test_unreadable_version():
    with pytest.raises(DevClusterError, match="cannot read a Slurm version from 'slurm x'"):
        parse_version("slurm x")


@pytest.mark.parametrize("version", VERSIONS)
def test_slurm_conf_of_all_versions(version):
    found = dict(lines(ClusterSpec(nodes=3, slurmd_timeout=60), version))
    assert found["ClusterName"] == "dev"
    assert found["SlurmctldHost"] == "ctl"
    assert found["SlurmdTimeout"] == "60"
    assert found["ProctrackType"] == "proctrack/linuxproc"
    assert found["NodeName"].startswith("n[1-3] ")
    assert found["NodeName"].endswith(" Gres=gpu:4 State=UNKNOWN")
    assert all(
        found[key].startswith("/var/tmp/x/") for key in found if key.endswith(("File", "Dir"))
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_address_cache_option_only_where_it_exists(version):
    """Slurm 22.05 compares the whole value, so it must stand alone."""
    found = dict(lines(ClusterSpec(), version))
    expected = "NoAddrCache" if version < (23, 11) else None
    assert found.get("CommunicationParameters") == expected


def test_no_gpus():
    found = dict(lines(ClusterSpec(gpus_per_node=0)))
    assert "GresTypes" not in found
    assert "Gres" not in found["NodeName"]
    assert gres_conf(ClusterSpec(gpus_per_node=0), LAYOUT) == ""


@pytest.mark.parametrize(("gpus", "files"), [(1, "gpu0"), (2, "gpu[0-1]"), (8, "gpu[0-7]")])
def test_gpus_are_device_files_of_their_node(gpus, files):
    assert gres_conf(ClusterSpec(nodes=2, gpus_per_node=gpus), LAYOUT).splitlines() == [
        f"NodeName=n1 Name=gpu File=/var/tmp/x/host/n1/gpu/{files}",
        f"NodeName=n2 Name=gpu File=/var/tmp/x/host/n2/gpu/{files}",
    ]


class TestOverrides:
    def test_replaces_in_place_whatever_the_case(self):
        plain, changed = lines(ClusterSpec()), lines(ClusterSpec(overrides=(("killwait", "9"),)))
        assert [(key, value) for key, value in changed if key.lower() == "killwait"] == [
            ("killwait", "9")
        ]
        assert len(plain) == len(changed)

    def test_adds_before_nodes(self):
        found = lines(ClusterSpec(overrides=(("Epilog", "/bin/true"),)))
        keys = [key for key, _ in found]
        assert keys.index("Epilog") < keys.index("NodeName")

    def test_same_key_twice_makes_two_lines(self):
        partitions = (("PartitionName", "a Nodes=n1"), ("PartitionName", "b Nodes=n2"))
        found = lines(ClusterSpec(overrides=partitions))
        assert [pair for pair in found if pair[0] == "PartitionName"] == list(partitions)

    def test_empty_value_removes(self):
        keys = [key for key, _ in lines(ClusterSpec(overrides=(("KillWait", ""),)))]
        assert "KillWait" not in keys

    def test_overrides_what_cgroup_asks_for(self):
        found = lines(ClusterSpec(cgroup=True, overrides=(("PrologFlags", "Alloc"),)))
        assert [value for key, value in found if key == "PrologFlags"] == ["Alloc"]


def test_cgroup_settings():
    found = dict(lines(ClusterSpec(cgroup=True)))
    assert found["ProctrackType"] == "proctrack/cgroup"
    assert found["TaskPlugin"] == "task/cgroup,task/affinity"
    assert found["PrologFlags"] == "Alloc,Contain"


@pytest.mark.parametrize(
    ("version", "plugin", "first"),
    [
        ((21, 8), None, "CgroupPlugin=cgroup/v1"),
        ((23, 11), None, "CgroupPlugin=cgroup/v1"),
        ((24, 11), None, "CgroupPlugin=disabled"),
        ((26, 5), None, "CgroupPlugin=disabled"),
        ((22, 5), "cgroup/v1", "CgroupPlugin=cgroup/v1"),
        ((24, 11), "cgroup/v2", "CgroupPlugin=cgroup/v2"),
    ],
)
def test_cgroup_conf(version, plugin, first):
    text = cgroup_conf(version, plugin)
    assert text.splitlines()[0] == first
    assert ("IgnoreSystemd=yes" in text) == (plugin == "cgroup/v2")


def test_plugstack_conf(tmp_path):
    plugin, supervisor = tmp_path / "p.so", tmp_path / "hpresume"
    plugin.touch()
    supervisor.touch()
    assert plugstack_conf(ClusterSpec()) == ""
    assert plugstack_conf(ClusterSpec(plugin=plugin)) == f"optional {plugin}\n"
    text = plugstack_conf(ClusterSpec(plugin=plugin, supervisor=supervisor))
    assert text == f"optional {plugin} supervisor={supervisor}\n"
