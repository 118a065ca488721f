"""Provisioning as the controller's file describes it.

[provision]
slurm_conf = "/etc/slurm/slurm.conf"
restart_slurmctld = ["systemctl", "restart", "slurmctld"]
run_on = ["ssh", "-o", "BatchMode=yes", "root@{address}"]

[provision.instance_types."ml.p5.48xlarge"]
parameters = "Gres=gpu:8"
gres = ["Name=gpu File=/dev/nvidia[0-7]"]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpresume.devcluster.cluster import DevCluster
from hpresume.providers.model import Provider
from hpresume.providers.programs import Programs
from hpresume.providers.table import Table
from hpresume.provision import devcluster
from hpresume.provision.alarms import CommandAlarms
from hpresume.provision.book import Book
from hpresume.provision.clock import SteadyClock
from hpresume.provision.control import Provisioner
from hpresume.provision.deep_checks import CommandDeepChecks
from hpresume.provision.engine import Engine
from hpresume.provision.lifecycle import LifecycleScripts, Where
from hpresume.provision.pace import Pace
from hpresume.provision.policy import HOUR, Policy
from hpresume.provision.ports import Hardware, SlurmSide
from hpresume.provision.remote import RemotePrograms
from hpresume.provision.slurm_side import LocalSlurm
from hpresume.slurm.runner import Runner
from hpresume.store import Fence, Store
from hpresume.store.holds import Holds

_RESTART_S = 120.0

#: ``hpresume deep-check`` of this installation.
DEEP_CHECK = (sys.executable, "-m", "hpresume", "deep-check")


@dataclass(frozen=True)
class ProvisionConfig:
    """The table; without ``slurm_conf`` no Slurm is managed, without ``run_on`` no script runs.

    ``alarm_command`` says whether an alarm of AutoRollbackConfiguration rings; ``deep_check`` is
    the command to which options and nodes are added.
    """

    region: str = "us-east-1"
    account: str = "000000000000"
    slurm_conf: str = ""
    restart_slurmctld: tuple[str, ...] = ()
    partition_of_all: str = "dev"
    run_on: tuple[str, ...] = ()
    alarm_command: tuple[str, ...] = ()
    deep_check: tuple[str, ...] = DEEP_CHECK
    logs: str = str(Where.logs)
    script_limit_s: float = HOUR
    policy: Policy = field(default_factory=Policy)
    pace: Pace = field(default_factory=Pace)
    hardware: Mapping[str, Hardware] = field(default_factory=dict)


def parse(
    values: Mapping[str, Any], where: str = "controller.toml: [provision]"
) -> ProvisionConfig:
    """Read the table strictly. Raises ConfigError, which names the key and what is allowed."""
    table = Table({k: v for k, v in values.items() if k != "instance_types"}, where)
    default = ProvisionConfig()
    policy = Policy(
        drain_timeout_s=table.seconds("drain_timeout", HOUR, 0.0, 30 * 24 * HOUR),
        boot_timeout_s=table.seconds(
            "boot_timeout", default.policy.boot_timeout_s, 10.0, 24 * HOUR
        ),
        join_timeout_s=table.seconds(
            "join_timeout", default.policy.join_timeout_s, 10.0, 24 * HOUR
        ),
        retry_s=table.seconds("retry", default.policy.retry_s, 1.0, HOUR),
        retry_max_s=table.seconds("retry_max", default.policy.retry_max_s, 1.0, 24 * HOUR),
        check_wait_s=table.seconds("check_wait", default.policy.check_wait_s, 0.0, 24 * HOUR),
        check_limit_s=table.seconds(
            "check_limit", default.policy.check_limit_s, 60.0, 7 * 24 * HOUR
        ),
        max_per_group=_limit(table, values),
    )
    pace = Pace(
        look_s=table.seconds("look_every", default.pace.look_s, 0.1, 600.0),
        configure_s=table.seconds("configure_every", default.pace.configure_s, 0.0, 600.0),
    )
    config = ProvisionConfig(
        region=table.text("region", default.region),
        account=table.text("account", default.account),
        slurm_conf=table.text("slurm_conf", ""),
        restart_slurmctld=_words(table, values, "restart_slurmctld"),
        partition_of_all=table.text("partition_of_all", default.partition_of_all),
        run_on=_words(table, values, "run_on"),
        alarm_command=_words(table, values, "alarm_command"),
        deep_check=_words(table, values, "deep_check", DEEP_CHECK),
        logs=table.text("logs", default.logs),
        script_limit_s=table.seconds("script_limit", default.script_limit_s, 1.0, 24 * HOUR),
        policy=policy,
        pace=pace,
        hardware=_hardware(values.get("instance_types", {}), where),
    )
    table.finish()
    if not (config.account.isascii() and config.account.isdigit() and len(config.account) == 12):
        raise table.error("account", "write the twelve digits that ARNs have")
    if not re.fullmatch(r"[a-z0-9-]+", config.region):
        raise table.error("region", 'write a region as ARNs have it, such as "us-east-1"')
    return config


def open_provisioning(
    config: ProvisionConfig,
    store: Store,
    provider: Provider,
    *,
    fence: Callable[[], Fence | None] | None = None,
    holds: Holds | None = None,
    dev: DevCluster | None = None,
    pace: Pace | None = None,
    woken: Callable[[], None] = lambda: None,
) -> tuple[Provisioner, Engine]:
    """The service and the engine behind it; ``engine.run`` is for a thread of its own.

    Only while this instance leads: the book is read here once. ``holds`` is shared with node
    recovery. With ``dev``, the Slurm and the hosts are those of a development cluster.
    """
    book = Book(store, fence)
    clock = SteadyClock(book.latest())
    engine = Engine(
        book,
        provider,
        clock,
        policy=config.policy,
        pace=pace or config.pace,
        woken=woken,
        slurm=_slurm(config, dev),
        scripts=_scripts(config, provider, dev),
        holds=holds,
        attributes=devcluster.attributes_of if dev else None,
        default_partition=config.partition_of_all,
        hardware=config.hardware,
        alarms=CommandAlarms(config.alarm_command) if config.alarm_command else None,
        deep_checks=_deep_checks(config, dev),
    )
    service = Provisioner(
        book,
        clock,
        region=config.region,
        account=config.account,
        has_slurm=dev is not None or bool(config.slurm_conf),
        changed=engine.wake,
        has_alarms=bool(config.alarm_command),
        has_checks=dev is not None or bool(config.slurm_conf),
    )
    return service, engine


def _slurm(config: ProvisionConfig, dev: DevCluster | None) -> Callable[[Any], SlurmSide | None]:
    side: SlurmSide | None = None
    if dev is not None:
        side = devcluster.slurm_of(dev)
    elif config.slurm_conf:
        runner = Runner()
        command = config.restart_slurmctld
        restart = (lambda: _run(runner, command)) if command else None
        side = LocalSlurm(Path(config.slurm_conf), runner, restart)
    return lambda _state: side


def _deep_checks(config: ProvisionConfig, dev: DevCluster | None) -> CommandDeepChecks:
    policy = config.policy
    return CommandDeepChecks(
        devcluster.ControllerRunner(dev) if dev is not None else Runner(),
        config.deep_check,
        wait_s=policy.check_wait_s,
        limit_s=policy.check_limit_s,
    )


def _scripts(
    config: ProvisionConfig, provider: Provider, dev: DevCluster | None
) -> LifecycleScripts | None:
    programs: Programs
    if dev is not None:
        programs, where = devcluster.HostPrograms(dev), devcluster.where_of(dev)
    elif config.run_on:
        programs, where = RemotePrograms(config.run_on, provider), Where(logs=Path(config.logs))
    else:
        return None
    return LifecycleScripts(programs, where=where, limit_s=config.script_limit_s)


def _run(runner: Runner, command: tuple[str, ...]) -> None:
    runner.check(command, _RESTART_S)


def _words(
    table: Table, values: Mapping[str, Any], key: str, default: tuple[str, ...] = ()
) -> tuple[str, ...]:
    if key in values:
        return table.words(key)
    table.text(key, "")  # an error about another key names this one as well
    return default


def _limit(table: Table, values: Mapping[str, Any]) -> int | None:
    # 0 stands for no limit in an error about another key; as a value it would be a mistake.
    limit = table.count("max_per_group", 0, 1 if "max_per_group" in values else 0, 6758)
    return limit or None


def _hardware(values: object, where: str) -> dict[str, Hardware]:
    table = Table({"instance_types": values}, where)
    if not isinstance(values, Mapping):
        raise table.error("instance_types", 'write tables: [provision.instance_types."ml.…"]')
    found: dict[str, Hardware] = {}
    for name, entry in values.items():
        if not isinstance(entry, Mapping):
            raise table.error("instance_types", 'write tables: [provision.instance_types."ml.…"]')
        one = Table(entry, f"{where}: instance_types.{name}")
        found[name] = Hardware(one.text("parameters", ""), _words(one, entry, "gres"))
        one.finish()
    return found
