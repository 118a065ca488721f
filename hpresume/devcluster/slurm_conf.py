"""Slurm's configuration files for a development cluster, as text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpresume.devcluster.layout import Layout
from hpresume.devcluster.spec import CONTROLLER, ClusterSpec
from hpresume.errors import DevClusterError

Version = tuple[int, int]

_NO_CGROUP_PLUGIN: Version = (24, 5)
_NO_ADDRESS_CACHE_OPTION: Version = (23, 11)


def parse_version(text: str) -> Version:
    """Read ``slurmctld -V``, such as ``slurm-wlm 22.05.8``.

    Raises DevClusterError where there is no version in it.
    """
    match = re.search(r"\b(\d{2})\.(\d{2})\b", text)
    if match is None:
        raise DevClusterError(f"cannot read a Slurm version from {text.strip()!r}")
    return int(match[1]), int(match[2])


def slurm_conf(spec: ClusterSpec, layout: Layout, version: Version) -> str:
    """Text of slurm.conf for ``spec``; its files lie in ``layout``."""
    lines = _with_overrides(_settings(spec, layout, version), _reaching_munge(spec, layout))
    return "".join(f"{key}={value}\n" for key, value in lines)


def gres_conf(spec: ClusterSpec, layout: Layout) -> str:
    """Text of gres.conf: each GPU is a device file of its node.

    A bare count is no use here: Slurm marks such nodes invalid.
    """
    return "".join(gres_line(layout, node, spec.gpus_per_node) for node in spec.node_names)


def gres_line(layout: Layout, node: str, gpus: int) -> str:
    """Line of gres.conf for one node; nothing where it has no GPU."""
    if not gpus:
        return ""
    numbers = f"[0-{gpus - 1}]" if gpus > 1 else "0"
    return f"NodeName={node} Name=gpu File={layout.gpus(node)}/gpu{numbers}\n"


def cgroup_conf(version: Version, plugin: str | None) -> str:
    """Text of cgroup.conf; ``plugin`` is ``cgroup/v1``, ``cgroup/v2`` or None for no cgroups.

    slurmd loads a plugin even then: that of version 1 does nothing until it is used,
    that of version 2 asks systemd for a scope.
    """
    if plugin is None:
        unused = "disabled" if version >= _NO_CGROUP_PLUGIN else "cgroup/v1"
        return f"CgroupPlugin={unused}\n"
    lines = [f"CgroupPlugin={plugin}", "ConstrainCores=yes", "ConstrainDevices=no"]
    if plugin == "cgroup/v2":
        lines.append("IgnoreSystemd=yes")
    return "".join(f"{line}\n" for line in lines)


def plugstack_conf(spec: ClusterSpec) -> str:
    """Text of plugstack.conf: hpresume's plugin, or nothing where there is none."""
    if spec.plugin is None:
        return ""
    argument = f" supervisor={spec.supervisor}" if spec.supervisor else ""
    return f"optional {spec.plugin}{argument}\n"


def _settings(spec: ClusterSpec, layout: Layout, version: Version) -> list[tuple[str, str]]:
    settings = [
        ("ClusterName", spec.name),
        ("SlurmctldHost", CONTROLLER),
        ("SlurmUser", "root"),
        ("SlurmdUser", "root"),
        ("AuthType", "auth/munge"),
        ("CredType", "cred/munge"),
        ("AuthInfo", f"socket={layout.munge_socket}"),
        ("StateSaveLocation", str(layout.controller_state)),
        ("SlurmctldPidFile", str(layout.pid_file(CONTROLLER, "slurmctld"))),
        ("SlurmctldLogFile", str(layout.slurm_log("slurmctld", CONTROLLER))),
        ("SlurmdPidFile", str(layout.pid_file("%n", "slurmd"))),
        ("SlurmdSpoolDir", str(layout.spool("%n"))),
        ("SlurmdLogFile", str(layout.slurm_log("slurmd", "%n"))),
        ("PlugStackConfig", str(layout.plugstack_conf)),
        ("MailProg", "/bin/true"),
        ("MpiDefault", "none"),
        ("ProctrackType", "proctrack/cgroup" if spec.cgroup else "proctrack/linuxproc"),
        ("TaskPlugin", "task/cgroup,task/affinity" if spec.cgroup else "task/none"),
        ("SelectType", "select/cons_tres"),
        ("SelectTypeParameters", "CR_Core"),
        ("SlurmdParameters", "config_overrides"),
        (
            "SchedulerParameters",
            "permit_job_expansion,bf_interval=2,sched_interval=2,batch_sched_delay=0",
        ),
        ("ReturnToService", "1"),
        ("SlurmdTimeout", str(spec.slurmd_timeout)),
        ("KillWait", "5"),
        ("MessageTimeout", "10"),
        ("UnkillableStepTimeout", "60"),
        ("JobRequeue", "1"),
    ]
    if spec.configless:
        settings.append(("SlurmctldParameters", "enable_configless"))
    if spec.accounting:
        settings += [
            ("AccountingStorageType", "accounting_storage/slurmdbd"),
            ("AccountingStorageHost", CONTROLLER),
            # what is said to slurmdbd is signed by the munged of this socket
            ("AccountingStoragePass", str(layout.munge_socket)),
        ]
    if spec.cgroup:
        settings.append(("PrologFlags", "Alloc,Contain"))
    if version < _NO_ADDRESS_CACHE_OPTION:
        # Slurm compares the whole value: nothing may stand beside it.
        settings.append(("CommunicationParameters", "NoAddrCache"))
    gres = ""
    if spec.gpus_per_node:
        settings.append(("GresTypes", "gpu"))
        gres = f" Gres=gpu:{spec.gpus_per_node}"
    settings += [
        (
            "NodeName",
            f"n[1-{spec.nodes}] Sockets=1 CoresPerSocket={spec.cpus_per_node} ThreadsPerCore=1 "
            f"RealMemory={spec.memory_mb}{gres} State=UNKNOWN",
        ),
        ("PartitionName", "main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"),
    ]
    return settings


def _reaching_munge(spec: ClusterSpec, layout: Layout) -> list[tuple[str, str]]:
    """The overrides; one of AuthInfo keeps the cluster's own munged."""
    socket = f"socket={layout.munge_socket}"
    return [
        (
            key,
            f"{value},{socket}" if key.lower() == "authinfo" and "socket=" not in value else value,
        )
        for key, value in spec.overrides
    ]


def _with_overrides(
    settings: Iterable[tuple[str, str]], overrides: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """``settings`` with each overridden key replaced in its place, other keys added.

    A key given several times becomes several lines (as for PartitionName). An
    empty value removes the line.
    """
    wanted: dict[str, list[tuple[str, str]]] = {}
    for key, value in overrides:
        wanted.setdefault(key.lower(), []).append((key, value))
    lines: list[tuple[str, str]] = []
    for key, value in settings:
        lines += wanted.pop(key.lower(), [(key, value)])
    # nodes and partitions come last: defaults must stand before them
    places = [i for i, (key, _) in enumerate(lines) if key.lower() in ("nodename", "partitionname")]
    at = min(places, default=len(lines))
    lines[at:at] = [pair for pairs in wanted.values() for pair in pairs]
    return [(key, value) for key, value in lines if value]
