"""``/etc/hpresume/controller.toml``, read strictly: a typing error must not switch a limit off."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpresume.controller import api
from hpresume.errors import ConfigError, SlurmError
from hpresume.jobs.model import Policy as JobsPolicy
from hpresume.providers.table import Table
from hpresume.provision import setup
from hpresume.provision.setup import ProvisionConfig
from hpresume.recovery.model import Policy
from hpresume.recovery.reasons import Kind
from hpresume.slurm import nodeset
from hpresume.store import DEFAULT_URL

if TYPE_CHECKING:
    from hpresume.api.server import ApiSettings

SYSTEM_FILE = "/etc/hpresume/controller.toml"

#: Tables of the file; ``provider`` is read by the provider that it names.
_TABLES = ("controller", "recovery", "jobs", "provider", "provision", "api")

_DAY = 86400.0
_CHECK = ("hpresume", "check", "--profile", "quick")

_STEPS = {
    "reboot": (Kind.REBOOT,),
    "replace": (Kind.REPLACE,),
    "reboot-replace": (Kind.REBOOT, Kind.REPLACE),
}


@dataclass(frozen=True)
class ControllerConfig:
    """The whole file. ``check`` is ``slurm``, ``program`` or ``none``; times in seconds.

    ``devcluster`` names a development cluster whose Slurm is meant, instead of this host's.
    ``reports`` is where supervisors' messages are taken (``HOST:PORT``), empty for nowhere.
    ``provision`` and ``api`` are None where the file has no such table.
    """

    database: str = DEFAULT_URL
    interval_s: float = 5.0
    lease_s: float = 15.0
    keep_events_s: float = 90 * _DAY
    check: str = "slurm"
    check_command: tuple[str, ...] = _CHECK
    policy: Policy = field(default_factory=Policy)
    provider: Mapping[str, Any] = field(default_factory=dict)
    devcluster: str = ""
    reports: str = ""
    jobs: JobsPolicy = field(default_factory=JobsPolicy)
    provision: ProvisionConfig | None = None
    api: ApiSettings | None = None
    source: str = SYSTEM_FILE


def load(path: str = SYSTEM_FILE) -> ControllerConfig:
    """Read the file. Raises ConfigError, which names the file, the key and what is allowed."""
    try:
        with open(path, "rb") as stream:
            document = tomllib.load(stream)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; examples/controller/controller.toml is one"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    return parse(document, path)


def parse(document: Mapping[str, Any], path: str = SYSTEM_FILE) -> ControllerConfig:
    """The configuration in a document that has been read."""
    for name, value in document.items():
        if name not in _TABLES:
            raise ConfigError(f"{path}: unknown table [{name}]: use {', '.join(_TABLES)}")
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: {name} must be a table: [{name}]")
    if "provider" not in document:
        raise ConfigError(f"{path}: no [provider]: say where machines come from (type = …)")
    service = Table(document.get("controller", {}), f"{path}: [controller]")
    recovery = Table(document.get("recovery", {}), f"{path}: [recovery]")
    check = recovery.choice("check", ("slurm", "program", "none"), "slurm")
    if recovery.has("check_command") or check == "program":
        command = recovery.words("check_command")
    else:
        command = _CHECK
    policy = _policy(recovery, document.get("recovery", {}))
    jobs = Table(document.get("jobs", {}), f"{path}: [jobs]")
    config = ControllerConfig(
        database=service.text("database", DEFAULT_URL),
        interval_s=service.seconds("interval", 5.0, 0.1, 600.0),
        lease_s=service.seconds("lease", 15.0, 1.0, 600.0),
        keep_events_s=service.seconds("keep_events", 90 * _DAY, 3600.0, 3650 * _DAY),
        check=check,
        check_command=command,
        policy=policy,
        reports=_address(service),
        jobs=_jobs(jobs, policy),
        provider=document["provider"],
        devcluster=service.text("devcluster", ""),
        provision=_provision(document, path),
        api=_api(document, path),
        source=path,
    )
    service.finish()
    recovery.finish()
    jobs.finish()
    return config


def _provision(document: Mapping[str, Any], path: str) -> ProvisionConfig | None:
    if "provision" not in document:
        return None
    return setup.parse(document["provision"], f"{path}: [provision]")


def _api(document: Mapping[str, Any], path: str) -> ApiSettings | None:
    if "api" not in document:
        return None
    provision = _provision(document, path)
    if provision is None:
        raise ConfigError(f"{path}: [api] serves instance groups: it needs a table [provision]")
    return api.parse(document["api"], f"{path}: [api]", provision.region)


def _policy(table: Table, given: Mapping[str, Any]) -> Policy:
    share = given.get("halt_share", 0.3)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise table.error("halt_share", "write a share from 0 to 1, such as 0.3")
    steps = table.choice("on_down", tuple(_STEPS), "reboot-replace")
    return Policy(
        automatic=table.choice("node_recovery", ("Automatic", "None"), "Automatic") == "Automatic",
        down_grace_s=table.seconds("down_grace", 60.0, 0.0, _DAY),
        silent_for_s=table.seconds("silent_for", 5.0, 0.0, 3600.0),
        down_steps=_STEPS[steps],
        max_attempts=table.count("max_attempts", 3, 1, 20),
        attempts_window_s=table.seconds("attempts_window", _DAY, 60.0, 365 * _DAY),
        max_concurrent=table.count("max_concurrent", 2, 1, 1000),
        max_per_hour=table.count("max_per_hour", 10, 1, 10000),
        halt_share=table.seconds("halt_share", 0.3, 0.0, 1.0),
        allowed=_nodes(table, "nodes") if table.has("nodes") else None,
        denied=_nodes(table, "never"),
        wait_jobs_s=table.seconds("wait_for_jobs", 7 * _DAY, 0.0, 365 * _DAY),
        completing_s=table.seconds("completing", 120.0, 0.0, _DAY),
        terminate_s=table.seconds("terminate_timeout", 600.0, 1.0, _DAY),
        launch_s=table.seconds("launch_timeout", 3600.0, 1.0, 7 * _DAY),
        reboot_s=table.seconds("reboot_timeout", 300.0, 1.0, _DAY),
        boot_s=table.seconds("boot_timeout", 900.0, 1.0, _DAY),
        check_s=table.seconds("check_timeout", 300.0, 1.0, _DAY),
        retry_s=table.seconds("retry", 5.0, 0.01, 3600.0),
        max_retry_s=table.seconds("max_retry", 120.0, 0.01, _DAY),
        describe_every_s=table.seconds("describe_every", 10.0, 0.1, 3600.0),
        sweep_every_s=table.seconds("sweep_every", 300.0, 1.0, _DAY),
        can_reboot=table.flag("can_reboot", True),
    )


def _jobs(table: Table, recovery: Policy) -> JobsPolicy:
    return JobsPolicy(
        probe_every_s=table.seconds("probe_every", 1.0, 0.1, 60.0),
        probes=table.count("probes", 3, 2, 100),
        lost_after_s=table.seconds("lost_after", 1.5, 0.5, 3600.0),
        keep_s=table.seconds("keep_places", 300.0, 0.0, 3600.0),
        halt_share=recovery.halt_share,
        allowed=recovery.allowed,
        denied=recovery.denied,
    )


def _address(table: Table) -> str:
    address = table.text("reports", "")
    host, colon, port = address.rpartition(":")
    usable = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536
    if address and not (host and colon and usable):
        raise table.error("reports", "write HOST:PORT, such as 0.0.0.0:6830")
    return address


def _nodes(table: Table, key: str) -> frozenset[str]:
    text = table.text(key, "")
    try:
        names = frozenset(nodeset.expand(text))
    except SlurmError:
        names = frozenset()
    if not names and (text or key == "nodes"):
        raise table.error(key, "write a node list such as n[1-8],gpu1")
    return names
