"""Machines of Amazon EC2, made from a launch template.

A machine is an instance with the tags ``hpresume:cluster``, ``hpresume:node`` and
``hpresume:token``. The client token is EC2's own ClientToken as well: EC2 forgets that after
a while and the tag stays as long as the instance, but only the ClientToken covers the
seconds in which a new instance cannot be found by its tags yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config

from hpresume.errors import ProviderRefusedError, ProviderTransientError
from hpresume.providers.ec2_address import AddressPolicy, placement
from hpresume.providers.ec2_errors import NOT_FOUND, code_of, translated
from hpresume.providers.model import LaunchRequest, Machine, MachineState
from hpresume.providers.table import Table

CLUSTER_TAG, NODE_TAG, TOKEN_TAG = "hpresume:cluster", "hpresume:node", "hpresume:token"
GROUP_TAG = "hpresume:group"
ATTRIBUTES = ("launch_template", "launch_template_version", "subnet")

_STATES = {
    "pending": MachineState.PENDING,
    "running": MachineState.RUNNING,
    "stopping": MachineState.STOPPED,
    "stopped": MachineState.STOPPED,
    "shutting-down": MachineState.TERMINATING,
    "terminated": MachineState.TERMINATED,
}
_HERE = ["pending", "running", "stopping", "stopped"]

#: How SageMaker's names of instance types begin; EC2 has the same names without it.
_SAGEMAKER = "ml."

#: EC2 shows a new instance to every reader within seconds; a minute is beyond doubt.
_UNSEEN_S = 60.0


@dataclass(frozen=True)
class Ec2Settings:
    """What the configuration says: ``launch_template`` is an id (``lt-…``) or a name.

    ``subnet`` (empty: the template's) and the template can be given for each launch too,
    as attributes. ``releases`` are AMIs by ImageReleaseVersion.
    Times in seconds; ``attempts`` counts all those that botocore
    makes for one call.
    """

    cluster: str
    launch_template: str
    launch_template_version: str = "$Default"
    subnet: str = ""
    region: str = ""
    endpoint: str = ""
    address: AddressPolicy = AddressPolicy.PREFER
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 20.0
    attempts: int = 4
    tags: Mapping[str, str] = field(default_factory=dict)
    releases: Mapping[str, str] = field(default_factory=dict)


class Ec2Provider:
    """The instances of one cluster; ``client`` is boto3's for EC2."""

    def __init__(
        self,
        settings: Ec2Settings,
        client: Any = None,
        *,
        name: str = "ec2",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._settings = settings
        self._client = open_client(settings) if client is None else client
        self._clock = clock
        self._launched: dict[str, tuple[float, Machine]] = {}

    def launch(self, request: LaunchRequest) -> Machine:
        """RunInstances, unless an instance has this token's tag already."""
        known = self._find({f"tag:{TOKEN_TAG}": [request.token]})
        if known:
            return known[0]
        template, subnet = self._template(request.attributes), self._subnet(request.attributes)
        instance_type = request.instance_type.removeprefix(_SAGEMAKER)
        with translated(f"launch of {request.node}"):
            where = placement(
                self._client, self._settings.address, template, subnet, request.address
            )
            answer = self._client.run_instances(
                MinCount=1,
                MaxCount=1,
                ClientToken=request.token,
                LaunchTemplate=template,
                **({"InstanceType": instance_type} if instance_type else {}),
                **self._image(request.image),
                **where,
                TagSpecifications=[{"ResourceType": "instance", "Tags": self._tags(request)}],
            )
        machine = _machine(answer["Instances"][0])
        self._launched[machine.machine_id] = (self._clock(), machine)
        return machine

    def terminate(self, machine_id: str) -> None:
        """TerminateInstances, for an instance of this cluster."""
        machine = self._own(machine_id)
        if machine is None or machine.state.is_gone:
            return
        with translated(f"termination of {machine_id}"):
            self._client.terminate_instances(InstanceIds=[machine_id])

    def reboot(self, machine_id: str) -> None:
        """RebootInstances, or StartInstances for one that is stopped.

        EC2 cuts the power itself where the system does not shut down within minutes.
        """
        machine = self._own(machine_id)
        if machine is None or machine.state.is_gone:
            raise ProviderRefusedError(f"there is no machine {machine_id}: it cannot be rebooted")
        with translated(f"reboot of {machine_id}"):
            if machine.state is MachineState.STOPPED:
                self._client.start_instances(InstanceIds=[machine_id])
            else:
                self._client.reboot_instances(InstanceIds=[machine_id])

    def describe(self, machine_id: str) -> Machine | None:
        """The instance; EC2 knows it for about an hour after its end."""
        instance = self._instance(machine_id)
        if instance is None:
            return self._unseen(machine_id)
        self._launched.pop(machine_id, None)
        if _tags_of(instance).get(CLUSTER_TAG) != self._settings.cluster:
            return None
        return _machine(instance)

    def list(self) -> tuple[Machine, ...]:
        """Instances with this cluster's tag that are not gone."""
        found = self._find({"instance-state-name": _HERE})
        ids = {machine.machine_id for machine in found}
        unseen = [m for i in tuple(self._launched) if i not in ids and (m := self._unseen(i))]
        return (*found, *unseen)

    def _own(self, machine_id: str) -> Machine | None:
        """A machine to be acted on: never one that is not this cluster's."""
        instance = self._instance(machine_id)
        if instance is None:
            return self._unseen(machine_id)
        owner = _tags_of(instance).get(CLUSTER_TAG)
        if owner != self._settings.cluster:
            raise ProviderRefusedError(
                f"instance {machine_id} is not of cluster {self._settings.cluster}: its tag "
                f"{CLUSTER_TAG} is {owner or 'not there'}"
            )
        return _machine(instance)

    def _instance(self, machine_id: str) -> Mapping[str, Any] | None:
        with translated(f"description of {machine_id}"):
            try:
                answer = self._client.describe_instances(InstanceIds=[machine_id])
            except self._client.exceptions.ClientError as error:
                if code_of(error) in NOT_FOUND:
                    return None
                raise
        return next((i for r in answer["Reservations"] for i in r["Instances"]), None)

    def _unseen(self, machine_id: str) -> Machine | None:
        """One that this process launched just now and that EC2 does not show yet."""
        since, machine = self._launched.get(machine_id, (0.0, None))
        if machine is not None and self._clock() - since > _UNSEEN_S:
            del self._launched[machine_id]
            return None
        return machine

    def _find(self, filters: Mapping[str, Sequence[str]]) -> tuple[Machine, ...]:
        """Instances of this cluster, those that are not gone first, then the newest."""
        wanted = {f"tag:{CLUSTER_TAG}": [self._settings.cluster], **filters}
        with translated("list of instances"):
            pages = self._client.get_paginator("describe_instances").paginate(
                Filters=[{"Name": name, "Values": values} for name, values in wanted.items()]
            )
            instances = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
        machines = map(_machine, instances)
        return tuple(
            sorted(machines, key=lambda m: (m.state.is_gone, -m.launched_at, m.machine_id))
        )

    def _template(self, attributes: Mapping[str, str]) -> dict[str, str]:
        for key in attributes:
            if key not in ATTRIBUTES:
                raise ProviderRefusedError(
                    f"attribute {key!r}: an EC2 launch takes {', '.join(ATTRIBUTES)}"
                )
        template = attributes.get("launch_template", self._settings.launch_template)
        key = "LaunchTemplateId" if template.startswith("lt-") else "LaunchTemplateName"
        version = self._settings.launch_template_version
        return {key: template, "Version": attributes.get("launch_template_version", version)}

    def _subnet(self, attributes: Mapping[str, str]) -> str:
        return attributes.get("subnet", self._settings.subnet)

    def _image(self, image: str) -> dict[str, str]:
        if not image:
            return {}
        known = image if image.startswith("ami-") else self._settings.releases.get(image)
        if known is None:
            raise ProviderRefusedError(
                f"image release {image}: set its AMI in [provider.releases], or name an ImageId"
            )
        return {"ImageId": known}

    def _tags(self, request: LaunchRequest) -> Sequence[dict[str, str]]:
        tags = {
            "Name": request.node,
            **self._settings.tags,
            CLUSTER_TAG: self._settings.cluster,
            NODE_TAG: request.node,
            TOKEN_TAG: request.token,
            **({GROUP_TAG: request.group} if request.group else {}),
        }
        return [{"Key": key, "Value": value} for key, value in tags.items()]


def open_client(settings: Ec2Settings) -> Any:
    """A client whose calls are bounded in time and that repeats what EC2 could not answer."""
    config = Config(
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": settings.attempts},
    )
    with translated("opening EC2"):
        return boto3.client(
            "ec2",
            region_name=settings.region or None,
            endpoint_url=settings.endpoint or None,
            config=config,
        )


def from_table(name: str, table: Table) -> Ec2Provider:
    """The provider that a table of the configuration describes."""
    tags = table.texts("tags")
    for key in tags:
        if key.startswith(("hpresume:", "aws:")) or not key:
            raise table.error("tags", "the keys hpresume:* and aws:* are not yours")
    releases = table.texts("releases")
    if not all(image.startswith("ami-") for image in releases.values()):
        raise table.error("releases", 'write AMIs, such as { "1.2.3" = "ami-0123456789abcdef0" }')
    settings = Ec2Settings(
        cluster=table.text("cluster"),
        launch_template=table.text("launch_template"),
        launch_template_version=table.text("launch_template_version", "$Default"),
        subnet=table.text("subnet", ""),
        region=table.text("region", ""),
        endpoint=table.text("endpoint", ""),
        address=AddressPolicy(
            table.choice("address", tuple(AddressPolicy), AddressPolicy.PREFER.value)
        ),
        connect_timeout_s=table.seconds("connect_timeout", 5.0, 0.1, 60.0),
        read_timeout_s=table.seconds("read_timeout", 20.0, 1.0, 120.0),
        attempts=table.count("attempts", 4, 1, 10),
        tags=tags,
        releases=releases,
    )
    table.finish()
    return Ec2Provider(settings, name=name)


def _machine(instance: Mapping[str, Any]) -> Machine:
    tags = _tags_of(instance)
    state = instance["State"]["Name"]
    if state not in _STATES:
        raise ProviderTransientError(f"instance {instance['InstanceId']} is in state {state!r}")
    launched_at = instance.get("LaunchTime")
    return Machine(
        machine_id=instance["InstanceId"],
        node=tags.get(NODE_TAG, ""),
        token=tags.get(TOKEN_TAG, ""),
        state=_STATES[state],
        address=instance.get("PrivateIpAddress") or "",
        launched_at=launched_at.timestamp() if launched_at else 0.0,
    )


def _tags_of(instance: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
