"""What can be asked of a development cluster, and its address plan."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpresume.devcluster.addresses import (
    NETWORK,
    NUMBERS,
    address_of,
    generation_of,
    hosts_file,
    mac_of,
)
from hpresume.devcluster.spec import ClusterSpec, parse_override
from hpresume.errors import UsageError

hosts = st.sampled_from(ClusterSpec(nodes=64).host_names)
generations = st.integers(0, 250)


def test_names_of_hosts():
    assert ClusterSpec(nodes=3).host_names == ("ctl", "n1", "n2", "n3")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nodes": 1}, "--nodes 1: must be from 2 to 64"),
        ({"nodes": 65}, "--nodes 65: must be from 2 to 64"),
        ({"gpus_per_node": 9}, "--gpus-per-node 9: must be from 0 to 8"),
        ({"cpus_per_node": 0}, "--cpus-per-node 0: must be from 1 to"),
        ({"memory_mb": 0}, "--memory 0: must be from 1"),
        ({"slurmd_timeout": 1}, "--slurmd-timeout 1: must be from 5"),
        ({"name": "../x"}, r"cluster name '../x': use at most 24"),
        ({"name": "x" * 25}, "use at most 24"),
        ({"name": ""}, "use at most 24"),
    ],
)
def test_values_out_of_range(fields, said):
    with pytest.raises(UsageError, match=said):
        ClusterSpec(**fields)


def test_files_must_exist(tmp_path):
    plugin = tmp_path / "plugin.so"
    with pytest.raises(UsageError, match=r"--plugin .*: no such file"):
        ClusterSpec(plugin=plugin)
    plugin.touch()
    with pytest.raises(UsageError, match="--supervisor goes with --plugin"):
        ClusterSpec(supervisor=plugin)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("KillWait=3", ("KillWait", "3")),
        ("SchedulerParameters=a=1,b=2", ("SchedulerParameters", "a=1,b=2")),
        ("Prolog=", ("Prolog", "")),
    ],
)
def test_override(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["KillWait", "=3", "Kill Wait=3", "A=1\nB=2"])
def test_malformed_override(text):
    with pytest.raises(UsageError, match="write it as KEY=VALUE"):
        parse_override(text)


@given(hosts, generations, hosts, generations)
def test_addresses_are_unique_and_in_the_network(host, generation, other, other_generation):
    address = address_of(host, generation)
    assert ipaddress.ip_address(address) in NETWORK
    same = address == address_of(other, other_generation)
    assert same == ((host, generation) == (other, other_generation))


def test_addresses_run_out():
    with pytest.raises(UsageError, match="n1 has no unused address left"):
        address_of("n1", 254)


def test_address_plan():
    addresses = [address_of("ctl"), address_of("n1"), address_of("n64"), address_of("n64", 2)]
    assert addresses == ["10.77.0.1", "10.77.1.1", "10.77.1.64", "10.77.3.64"]


def test_addresses_of_added_hosts():
    assert address_of("research-workers-17", 1, 65) == "10.77.2.65"
    assert generation_of("10.77.2.65", 65) == 1


@given(generations, st.sampled_from(NUMBERS))
def test_generations_are_found_again(generation, number):
    assert generation_of(address_of("x", generation, number), number) == generation


@pytest.mark.parametrize("address", ["", "n1", "10.77.0.1", "10.77.1.2", "10.78.1.1", "::1"])
def test_addresses_that_are_not_of_the_host(address):
    assert generation_of(address, 1) is None


def test_mac_is_local_unicast_and_of_the_address():
    assert mac_of("10.77.1.2") == "02:48:0a:4d:01:02"


@given(st.dictionaries(hosts, generations, min_size=1), st.randoms())
def test_hosts_file_keeps_its_length(plan, random):
    before = {host: address_of(host, generation) for host, generation in plan.items()}
    after = {host: address_of(host, random.randint(0, 250)) for host in plan}
    assert len(hosts_file(before)) == len(hosts_file(after))


def test_hosts_file():
    text = hosts_file({"ctl": "10.77.0.1", "n1": "10.77.1.1"})
    words = [line.split() for line in text.splitlines()]
    assert words == [["127.0.0.1", "localhost"], ["10.77.0.1", "ctl"], ["10.77.1.1", "n1"]]
