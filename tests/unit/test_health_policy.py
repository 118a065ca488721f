"""The policy: the shipped one is complete, an override is checked."""

import re
from pathlib import Path

import pytest

from hpresume.errors import ConfigError
from hpresume.health.model import Action
from hpresume.health.policy import SHIPPED_FILE, load_policy
from hpresume.health.registry import CHECKS


def override(tmp_path: Path, text: str) -> str:
    path = tmp_path / "health.toml"
    path.write_text(text)
    return str(path)


def test_every_check_has_a_policy_with_sources_and_the_other_way_round() -> None:
    policy = load_policy("/dev/null")
    assert [c.name for c in CHECKS] == list(dict.fromkeys(c.name for c in CHECKS))
    assert {c.name for c in CHECKS} == set(policy.checks)
    for of in policy.checks.values():
        assert of.about
        assert of.source
        assert all(limit.source for limit in of.limits.values())


def test_the_seeds_table_is_covered() -> None:
    sources = " ".join(of.source for of in load_policy("/dev/null").checks.values())
    for row in (
        "DCGM policies",
        "NVIDIA SMI",
        "Neuron sysfs",
        "EFA",
        "DCGM Diagnostic",
        "CPU stress",
    ):
        assert row in sources


def test_a_quick_run_is_quick() -> None:
    """Nothing that puts load on the node outside ``deep``."""
    policy = load_policy("/dev/null")
    for check in CHECKS:
        if check.load:
            assert policy.check(check.name).profiles == ("deep",)


def test_overrides(tmp_path: Path) -> None:
    path = override(
        tmp_path,
        '[gpu-temperature]\nmax_c = 90\naction = "replace"\nstrikes = 1\nprofiles = ["deep"]\n'
        "[clock]\nenabled = false\n"
        '[kernel-xid]\ncodes = { 74 = "replace" }\n'
        '[mounts]\nrequired = ["/shared"]\n'
        '[efa-devices]\nby_instance_type = { "x1" = 2 }\n',
    )
    policy = load_policy(path)
    of = policy.check("gpu-temperature")
    assert (of.number("max_c"), of.action, of.strikes) == (90, Action.REPLACE, 1)
    assert of.limits["max_c"].source == path
    assert of.limits["max_c"].unit == "°C"
    assert not policy.check("clock").enabled
    codes = policy.check("kernel-xid").table("codes")
    assert (codes["74"], codes["79"]) == ("replace", "reboot")
    assert policy.check("dcgm-policy").table("codes") == codes
    assert policy.check("efa-devices").table("by_instance_type")["p5.48xlarge"] == 32


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gpu-temp]\nmax_c = 1", "unknown check gpu-temp; did you mean gpu-"),
        (
            "[clock]\nmax_ofset_s = 1",
            "clock.max_ofset_s: unknown setting; did you mean max_offset_s?",
        ),
        ("clock = 3", "clock must be a table: [clock]"),
        (
            "[gpu-temperature]\nmax_c = 900",
            "max_c is 900; allowed is a whole number from 30 to 130",
        ),
        ("[gpu-temperature]\nmax_c = true", "max_c is True; allowed is a whole number"),
        ("[clock]\nmax_offset_s = nan", "allowed is a number from 0.001 to 300"),
        ("[clock]\nenabled = 1", "enabled is 1; allowed is true or false"),
        ('[clock]\naction = "drain"', "action is 'drain'; allowed is none, reboot, replace"),
        ("[clock]\naction = []", "allowed is none, reboot, replace"),
        ('[clock]\nprofiles = ["slow"]', "allowed is a list of quick, prolog, deep"),
        ('[mounts]\nrequired = "/x"', "allowed is a list of texts"),
        ('[mounts]\nrequired = ["x"]', "allowed is a list of absolute paths"),
        (
            '[kernel-xid]\ncodes = { 74 = "fatal" }',
            "replace, reboot, evidence, application, ignore",
        ),
        ('[efa-devices]\nby_instance_type = { "x" = -1 }', "whole numbers from 0 to 1024"),
        ("[munge]\nsocket = 3", "socket is 3; allowed is a text"),
        ("[clock", "not valid TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = override(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        load_policy(path)
    assert str(error.value).startswith(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_policy(str(tmp_path / "none"))
    assert load_policy().checks
    assert Path(SHIPPED_FILE).exists()


def test_the_documentation_has_every_check_with_its_source() -> None:
    text = (Path(__file__).parents[2] / "docs" / "health.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for of in load_policy("/dev/null").checks.values():
        row = next(row for row in rows if row.startswith(f"| `{of.name}` "))
        assert row.endswith(f"| {of.source} |")
        assert f"| {of.about} |" in row


def test_the_documented_examples_are_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "health.md").read_text()
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    policies = [load_policy(override(tmp_path, example)) for example in examples]
    assert policies[0].check("pair-network").number("rounds") == 0
    assert policies[1].check("mounts").items("required")
