"""Opening a provider from configuration: what is refused, and in which words."""

from __future__ import annotations

import pytest

from hpresume.errors import ConfigError, MissingDependencyError
from hpresume.providers import config
from hpresume.providers.command import ACTIONS
from hpresume.providers.config import open_provider

PROGRAMS = {action: ["/opt/x", action] for action in ACTIONS}
COMMAND = {"type": "command", **PROGRAMS}
SOURCE = "/etc/hpresume/hpresume.toml: [provider]"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, 'type is missing: choose "command" or "devcluster" or "ec2" or "power"'),
        ({"type": "gcp"}, "type = 'gcp': choose"),
        ({"type": "command"}, "launch is missing: write a list of texts"),
        (COMMAND | {"launch": "/opt/x"}, "launch = '/opt/x': write a list of texts"),
        (COMMAND | {"launch": []}, "launch = []: write a list of texts"),
        (COMMAND | {"launch": ["", "x"]}, "write a list of texts"),
        (COMMAND | {"timeout": 0}, "timeout = 0: write a number of seconds from 1 to 3600"),
        (COMMAND | {"timeout": "5"}, "timeout = '5'"),
        (COMMAND | {"timeout": True}, "timeout = True"),
        (COMMAND | {"lunch": ["x"]}, "unknown key 'lunch': use describe, launch, "),
        ({"type": "devcluster", "address": "old"}, 'address = \'old\': choose "same" or "new"'),
        ({"type": "devcluster", "report_boot": "no"}, "report_boot = 'no': write true or false"),
        ({"type": "devcluster", "cluster": "No such"}, "cluster = 'No such': cluster name"),
    ],
)
def test_what_is_refused(table, message):
    with pytest.raises(ConfigError) as raised:
        open_provider("main", table, SOURCE)
    assert str(raised.value).startswith(f"{SOURCE}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_name_is_the_given_one():
    assert open_provider("spares", COMMAND).name == "spares"


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(config._TYPES, "ec2", "no_such_package")
    with pytest.raises(MissingDependencyError, match=r"pip install '.\[ec2\]'"):
        open_provider("cloud", {"type": "ec2"})
