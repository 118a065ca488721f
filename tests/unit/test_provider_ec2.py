"""The EC2 provider: contract and addresses against moto, errors by botocore's Stubber."""

from __future__ import annotations

import functools

import boto3
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.stub import Stubber
from moto import mock_aws
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from provider_contract import ProviderContract, new_token

from hpresume.errors import (
    CapacityError,
    ConfigError,
    ProviderRefusedError,
    ProviderTimeoutError,
    ProviderTransientError,
)
from hpresume.providers.config import open_provider
from hpresume.providers.ec2 import Ec2Provider, Ec2Settings
from hpresume.providers.ec2_address import AddressPolicy
from hpresume.providers.ec2_errors import translated
from hpresume.providers.model import LaunchRequest, MachineState

REGION = "eu-central-1"
REQUEST = LaunchRequest("t1", "n1")


@functools.cache
def ec2_client():
    """One for all tests: making it takes longer than most of them."""
    return boto3.client("ec2", region_name=REGION)


@pytest.fixture(autouse=True)
def aws(monkeypatch):
    """Moto's EC2, and credentials that nobody has."""
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with mock_aws():
        yield


class Cloud:
    """An account with a subnet and a launch template."""

    nodes = ("n1", "n2")
    image = "ami-12345678"

    def __init__(self) -> None:
        self.client = ec2_client()
        vpc = self.client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        self.subnet = self._subnet(vpc, "10.9.1.0/24")
        self.other_subnet = self._subnet(vpc, "10.9.2.0/24")
        self.template("plain", ImageId=self.image, InstanceType="m5.large")

    def _subnet(self, vpc: str, block: str) -> str:
        return self.client.create_subnet(VpcId=vpc, CidrBlock=block)["Subnet"]["SubnetId"]

    def template(self, name: str, **data) -> None:
        self.client.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)

    def open(self, **settings) -> Ec2Provider:
        chosen = {"cluster": "c1", "launch_template": "plain", "subnet": self.subnet, **settings}
        return Ec2Provider(Ec2Settings(**chosen), ec2_client())

    def settle(self, condition) -> None:
        assert condition(), "moto is done when it answers"

    def instance(self, machine_id: str) -> dict:
        answer = self.client.describe_instances(InstanceIds=[machine_id])
        return answer["Reservations"][0]["Instances"][0]

    def instances(self) -> int:
        return sum(len(r["Instances"]) for r in self.client.describe_instances()["Reservations"])


@pytest.fixture
def world() -> Cloud:
    return Cloud()


class TestContract(ProviderContract):
    """The contract of all providers, against moto."""

    unknown = "i-0123456789abcdef0"

    def give_up(self, world, machine):
        super().give_up(world, machine)
        # EC2 deletes a machine's interface with it; moto keeps it for ever
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][REGION]
        for key, interface in list(backend.enis.items()):
            if interface.private_ip_address == machine.address:
                del backend.enis[key]
        backend.get_subnet(world.subnet).del_subnet_ip(machine.address)


def test_what_an_instance_is_told(world):
    request = LaunchRequest("t1", "n1", "ml.c5.large", "workers")
    machine = world.open(tags={"team": "research"}).launch(request)
    instance = world.instance(machine.machine_id)
    assert instance["InstanceType"] == "c5.large"  # EC2's name for it
    assert instance["SubnetId"] == world.subnet
    assert instance["ClientToken"] == "t1"
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert {key: value for key, value in tags.items() if not key.startswith("aws:")} == {
        "Name": "n1",
        "team": "research",
        "hpresume:cluster": "c1",
        "hpresume:node": "n1",
        "hpresume:token": "t1",
        "hpresume:group": "workers",
    }
    assert machine.launched_at == instance["LaunchTime"].timestamp()


def test_attributes(world):
    world.template("big", ImageId=world.image, InstanceType="m5.24xlarge")
    attributes = {"launch_template": "big", "subnet": world.other_subnet}
    machine = world.open().launch(LaunchRequest("t1", "n1", attributes=attributes))
    instance = world.instance(machine.machine_id)
    assert (instance["InstanceType"], instance["SubnetId"]) == ("m5.24xlarge", world.other_subnet)
    with pytest.raises(ProviderRefusedError, match="attribute 'image': an EC2 launch takes"):
        world.open().launch(LaunchRequest("t2", "n1", attributes={"image": "x"}))


def test_a_template_that_is_not_there(world):
    with pytest.raises(ProviderRefusedError, match=r"launch of n1: .*LaunchTemplate"):
        world.open(launch_template="none").launch(REQUEST)


def test_a_stopped_machine_is_there_and_can_be_started(world):
    provider = world.open()
    machine = provider.launch(REQUEST)
    world.client.stop_instances(InstanceIds=[machine.machine_id])
    assert provider.describe(machine.machine_id).state is MachineState.STOPPED
    assert [m.machine_id for m in provider.list()] == [machine.machine_id]
    provider.reboot(machine.machine_id)
    assert provider.describe(machine.machine_id).state is MachineState.RUNNING


def test_the_instances_of_others_are_left_alone(world):
    theirs = world.open(cluster="c2").launch(REQUEST)
    provider = world.open()
    assert provider.list() == ()
    assert provider.describe(theirs.machine_id) is None
    for call in (provider.terminate, provider.reboot):
        with pytest.raises(ProviderRefusedError, match=r"is not of cluster c1: its tag .* is c2"):
            call(theirs.machine_id)
    assert world.instance(theirs.machine_id)["State"]["Name"] == "running"
    ours = provider.launch(REQUEST)  # the same token, another cluster
    assert ours.machine_id != theirs.machine_id


def test_many_pages(world, monkeypatch):
    provider = world.open()
    ids = {provider.launch(LaunchRequest(new_token(), f"n{i}")).machine_id for i in range(12)}
    client = provider._client
    paginate = client.get_paginator("describe_instances").paginate

    class Small:
        def paginate(self, **arguments):
            return paginate(**arguments, PaginationConfig={"PageSize": 5})

    monkeypatch.setattr(client, "get_paginator", lambda _: Small())
    assert {machine.machine_id for machine in provider.list()} == ids


# --- addresses ------------------------------------------------------------------


def test_keep_waits_for_its_address(world):
    holder = world.open().launch(REQUEST)
    provider = world.open(address=AddressPolicy.KEEP)
    request = LaunchRequest("t2", "n2", address=holder.address)
    stub = Stubber(provider._client)  # moto does not refuse an address that is taken
    stub.add_response("describe_instances", {"Reservations": []})
    stub.add_response("describe_launch_template_versions", _versions({}))
    stub.add_client_error("run_instances", "InvalidIPAddress.InUse", "is in use", 400)
    with stub, pytest.raises(ProviderTransientError, match=r"InvalidIPAddress\.InUse"):
        provider.launch(request)
    stub.assert_no_pending_responses()


def test_prefer_takes_another_address_where_this_one_is_taken_for_good(world):
    holder = world.open().launch(REQUEST)
    machine = world.open().launch(LaunchRequest("t2", "n2", address=holder.address))
    assert machine.address not in ("", holder.address)


def test_prefer_takes_another_address_where_this_one_is_of_another_subnet(world):
    machine = world.open().launch(LaunchRequest("t1", "n1", address="10.9.2.77"))
    assert machine.address.startswith("10.9.1.")


def test_prefer_waits_for_a_machine_on_its_way_out(world):
    provider = world.open()
    stub = Stubber(provider._client)  # in moto, what is terminated is gone at once
    stub.add_response("describe_instances", {"Reservations": []})
    stub.add_response("describe_launch_template_versions", _versions({}))
    stub.add_response("describe_subnets", {"Subnets": [{"CidrBlock": "10.9.1.0/24"}]})
    holder = {"Attachment": {"InstanceId": "i-0old"}}
    stub.add_response("describe_network_interfaces", {"NetworkInterfaces": [holder]})
    leaving = {"InstanceId": "i-0old", "State": {"Name": "shutting-down"}}
    stub.add_response("describe_instances", {"Reservations": [{"Instances": [leaving]}]})
    with stub, pytest.raises(ProviderTransientError, match="still that of i-0old"):
        provider.launch(LaunchRequest("t1", "n1", address="10.9.1.7"))
    stub.assert_no_pending_responses()


def test_any_asks_for_no_address(world):
    machine = world.open(address=AddressPolicy.ANY).launch(
        LaunchRequest("t1", "n1", address="10.9.1.77")
    )
    assert machine.address not in ("", "10.9.1.77")


@pytest.mark.parametrize("policy", list(AddressPolicy))
def test_a_template_with_network_interfaces_keeps_them(policy):
    """For EFA the template lists interfaces: EC2 refuses a subnet or an address beside them."""
    efa = [
        {"DeviceIndex": 1, "NetworkCardIndex": 1, "InterfaceType": "efa-only", "Groups": ["sg-1"]},
        {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "efa", "SubnetId": "subnet-1"},
    ]
    client = ec2_client()
    provider = Ec2Provider(Ec2Settings("c1", "lt-0efa", address=policy), client)
    stub = Stubber(client)
    stub.add_response("describe_instances", {"Reservations": []})
    expected: dict = {}
    if policy is not AddressPolicy.ANY:
        stub.add_response(
            "describe_launch_template_versions", _versions({"NetworkInterfaces": efa})
        )
        expected = {"NetworkInterfaces": [efa[0], {**efa[1], "PrivateIpAddress": "10.9.1.7"}]}
    if policy is AddressPolicy.PREFER:
        stub.add_response("describe_subnets", {"Subnets": [{"CidrBlock": "10.9.1.0/24"}]})
        stub.add_response("describe_network_interfaces", {"NetworkInterfaces": []})
    tags = [("Name", "n1"), ("hpresume:cluster", "c1"), ("hpresume:node", "n1")]
    tags.append(("hpresume:token", "t1"))
    asked = {
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": "t1",
        "LaunchTemplate": {"LaunchTemplateId": "lt-0efa", "Version": "$Default"},
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags]}
        ],
        **expected,
    }
    made = {"InstanceId": "i-0new", "State": {"Name": "pending"}}
    stub.add_response("run_instances", {"Instances": [made]}, asked)
    with stub:
        provider.launch(LaunchRequest("t1", "n1", address="10.9.1.7"))
    stub.assert_no_pending_responses()


# --- errors and eventual consistency ---------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, CapacityError),
        ("InstanceLimitExceeded", 400, CapacityError),
        ("VcpuLimitExceeded", 400, CapacityError),
        ("MaxSpotInstanceCountExceeded", 400, CapacityError),
        ("InsufficientFreeAddressesInSubnet", 400, CapacityError),
        ("ReservationCapacityExceeded", 400, CapacityError),
        ("RequestLimitExceeded", 503, ProviderTransientError),
        ("Throttling", 400, ProviderTransientError),
        ("InternalError", 500, ProviderTransientError),
        ("AnythingElse", 503, ProviderTransientError),
        ("InvalidIPAddress.InUse", 400, ProviderTransientError),
        ("IdempotentParameterMismatch", 400, ProviderTransientError),
        ("IdempotentInstanceTerminated", 400, ProviderRefusedError),
        ("InvalidParameterValue", 400, ProviderRefusedError),
        ("InvalidParameterCombination", 400, ProviderRefusedError),
        ("InvalidAMIID.NotFound", 400, ProviderRefusedError),
        ("UnauthorizedOperation", 403, ProviderRefusedError),
        ("AuthFailure", 401, ProviderRefusedError),
        ("Unsupported", 400, ProviderRefusedError),
    ],
)
def test_error_codes(code, status, kind):
    client = ec2_client()
    provider = Ec2Provider(Ec2Settings("c1", "plain"), client)
    stub = Stubber(client)
    stub.add_response("describe_instances", {"Reservations": []})
    message = "Not now.\n Encoded authorization failure message: abc"
    stub.add_client_error("run_instances", code, message, status)
    with stub, pytest.raises(kind) as raised:
        provider.launch(REQUEST)
    assert type(raised.value) is kind
    assert str(raised.value) == f"launch of n1: EC2 says {code}: Not now."


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectTimeoutError(endpoint_url="x"), ProviderTimeoutError),
        (ReadTimeoutError(endpoint_url="x"), ProviderTimeoutError),
        (EndpointConnectionError(endpoint_url="x"), ProviderTransientError),
        (NoCredentialsError(), ProviderRefusedError),
        (ParamValidationError(report="x"), ProviderRefusedError),
        (ClientError({}, "RunInstances"), ProviderRefusedError),
    ],
)
def test_errors_without_a_code(error, kind):
    with pytest.raises(kind) as raised, translated("launch of n1"):
        raise error
    assert type(raised.value) is kind


def test_calls_are_bounded_and_repeated_by_botocore():
    provider = open_provider(
        "cloud",
        {
            "type": "ec2",
            "cluster": "c1",
            "launch_template": "plain",
            "region": REGION,
            "connect_timeout": 1.5,
            "read_timeout": 7,
            "attempts": 2,
        },
    )
    config = provider._client.meta.config
    assert (config.connect_timeout, config.read_timeout) == (1.5, 7.0)
    assert config.retries == {"mode": "standard", "total_max_attempts": 2}


def test_a_new_machine_that_ec2_does_not_show_yet():
    """EC2 answers DescribeInstances from copies that learn of an instance later."""
    now = [1000.0]
    client = ec2_client()
    provider = Ec2Provider(Ec2Settings("c1", "plain"), client, clock=lambda: now[0])
    stub = Stubber(client)
    none: dict = {"Reservations": []}
    stub.add_response("describe_instances", none)
    made = {"InstanceId": "i-0new", "State": {"Name": "pending"}}
    stub.add_response("run_instances", {"Instances": [made]})
    for _ in range(2):
        stub.add_client_error("describe_instances", "InvalidInstanceID.NotFound", "", 400)
        stub.add_response("describe_instances", none)
    with stub:
        machine = provider.launch(REQUEST)
        assert machine.state is MachineState.PENDING
        now[0] += 59
        assert provider.describe("i-0new") == machine
        assert provider.list() == (machine,)
        now[0] += 2
        assert provider.describe("i-0new") is None
        assert provider.list() == ()
    stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "cluster is missing: write a text"),
        ({"cluster": ""}, "cluster = '': write a text"),
        ({"cluster": "c1"}, "launch_template is missing"),
        ({"cluster": "c1", "launch_template": "x", "address": "same"}, "address = 'same': choose"),
        ({"cluster": "c1", "launch_template": "x", "tags": {"a": 1}}, "write a table of texts"),
        ({"cluster": "c1", "launch_template": "x", "tags": {"hpresume:a": ""}}, "are not yours"),
        ({"cluster": "c1", "launch_template": "x", "releases": {"1.2.3": "x"}}, "write AMIs"),
        ({"cluster": "c1", "launch_template": "x", "attempts": 0}, "whole number from 1 to 10"),
        ({"cluster": "c1", "launch_template": "x", "regoin": "y"}, "unknown key 'regoin'"),
    ],
)
def test_configuration(table, message):
    with pytest.raises(ConfigError, match=message):
        open_provider("cloud", {"type": "ec2", **table})


def _versions(data: dict) -> dict:
    return {"LaunchTemplateVersions": [{"LaunchTemplateData": data}]}


def test_an_image_takes_the_place_of_the_templates(world):
    amis = {"1.2.3": "ami-0abcdef12"}
    provider = world.open(releases=amis)
    for image, ami in (("", world.image), ("ami-0fedcba98", "ami-0fedcba98"), *amis.items()):
        machine = provider.launch(LaunchRequest(new_token(), "n1", image=image))
        assert world.instance(machine.machine_id)["ImageId"] == ami
    with pytest.raises(ProviderRefusedError, match=r"release 9\.9\.9: set its AMI"):
        provider.launch(LaunchRequest(new_token(), "n1", image="9.9.9"))
