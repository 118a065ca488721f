"""controller.toml: what is read, and the one clear line for what cannot be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpresume.controller.config import load, parse
from hpresume.errors import ConfigError
from hpresume.recovery.reasons import Kind

EXAMPLE = Path(__file__).parents[2] / "examples/controller/controller.toml"
ALL = EXAMPLE.with_name("provisioning.toml")
PROVIDER = {"provider": {"type": "devcluster"}}
PROVISION = {**PROVIDER, "provision": {"region": "eu-central-1"}}


def test_the_example_is_valid():
    config = load(str(EXAMPLE))
    assert config.policy.automatic
    assert config.policy.max_concurrent == 4
    assert config.policy.allowed is not None
    assert len(config.policy.allowed) == 128
    assert config.check_command[-1] == "quick"
    assert config.provider["type"] == "command"


def test_the_example_with_provisioning_is_valid():
    config = load(str(ALL))
    assert config.provision is not None
    assert config.provision.policy.max_per_group == 3
    assert config.provision.pace.look_s == 0.5
    assert config.api is not None
    assert (config.api.host, config.api.port) == ("127.0.0.1", 8600)


def test_without_their_tables_there_is_neither_provisioning_nor_api():
    config = parse(PROVIDER)
    assert (config.provision, config.api) == (None, None)


def test_the_api_is_of_the_region_of_the_groups():
    config = parse(
        {**PROVISION, "api": {"address": "::1", "certificate": "/a", "certificate_key": "/b"}}
    )
    assert config.api is not None
    assert config.api.region == "eu-central-1"
    assert (config.api.host, str(config.api.cert), str(config.api.key)) == ("::1", "/a", "/b")


def test_defaults_are_careful():
    policy = parse(PROVIDER).policy
    assert policy.allowed is None
    assert policy.down_steps == (Kind.REBOOT, Kind.REPLACE)
    assert (policy.max_concurrent, policy.max_per_hour, policy.halt_share) == (2, 10, 0.3)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, r"no \[provider\]"),
        ({**PROVIDER, "recvery": {}}, r"unknown table \[recvery\]: use controller, recovery"),
        ({**PROVIDER, "recovery": 1}, r"recovery must be a table"),
        ({**PROVIDER, "provision": 1}, r"provision must be a table"),
        ({**PROVIDER, "provision": {"slurmconf": ""}}, r"\[provision\]: unknown key 'slurmconf'"),
        ({**PROVIDER, "provision": {"max_per_group": 0}}, r"whole number from 1 to 6758"),
        ({**PROVIDER, "provision": {"look_every": 0}}, r"number of seconds from 0.1 to 600"),
        (
            {**PROVIDER, "api": {}},
            r"\[api\] serves instance groups: it needs a table \[provision\]",
        ),
        ({**PROVISION, "api": {"adress": "::1"}}, r"\[api\]: unknown key 'adress'"),
        ({**PROVISION, "api": {"port": 70000}}, r"port = 70000: write a whole number"),
        ({**PROVISION, "api": {"certificate": "/c.pem"}}, r"certificate_key is missing: TLS"),
        ({**PROVISION, "api": {"certificate_key": "/c"}}, r"certificate is missing: TLS"),
        ({**PROVIDER, "recovery": {"max_atempts": 1}}, r"\[recovery\]: unknown key 'max_atempts'"),
        ({**PROVIDER, "recovery": {"max_attempts": 0}}, r"whole number from 1 to 20"),
        ({**PROVIDER, "recovery": {"node_recovery": "automatic"}}, r'"Automatic" or "None"'),
        ({**PROVIDER, "recovery": {"halt_share": 20}}, r"share from 0 to 1"),
        ({**PROVIDER, "recovery": {"nodes": "n[1-"}}, r"nodes = .*write a node list"),
        ({**PROVIDER, "recovery": {"nodes": ""}}, r"nodes = '': write a node list"),
        ({**PROVIDER, "recovery": {"never": "n[1-999999999]"}}, r"never = .*write a node list"),
        ({**PROVIDER, "recovery": {"never": ["n1"]}}, r"never = .*write a text"),
        ({**PROVIDER, "recovery": {"halt_share": float("nan")}}, r"share from 0 to 1"),
        ({**PROVIDER, "recovery": {"boot_timeout": float("inf")}}, r"number of seconds from 1"),
        ({**PROVIDER, "recovery": {"on_down": "x" * 10**6}}, r"on_down = 'x{116}\.\.\.: choose"),
        ({**PROVIDER, "recovery": {"max_attempts": 10**30}}, r"whole number from 1 to 20"),
        ({**PROVIDER, "recovery": {"check": "program"}}, r"check_command is missing"),
        ({**PROVIDER, "controller": {"interval": 0}}, r"number of seconds from 0.1 to 600"),
    ],
)
def test_mistakes_are_named(document, words):
    with pytest.raises(ConfigError, match=words):
        parse(document, "c.toml")


def test_an_unknown_key_tells_every_key_that_may_stand_there():
    with pytest.raises(ConfigError) as found:
        parse({**PROVIDER, "recovery": {"nodez": "n1"}}, "c.toml")
    known = str(found.value).partition(": use ")[2].split(", ")
    documented = re.findall(r"`(\w+)`", " ".join(_settings("[recovery]")))
    assert sorted(documented) == known


def _settings(table):
    """The first cells of a table of docs/recovery.md."""
    text = (EXAMPLE.parents[2] / "docs/recovery.md").read_text(encoding="utf-8")
    rows = text.partition(f"| `{table}` |")[2].partition("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1] for row in rows]


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load(str(tmp_path / "none.toml"))
    bad = tmp_path / "bad.toml"
    bad.write_text("[recovery\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(str(bad))
