"""Words and frozen records of continuous provisioning.

A *cluster* has *instance groups*, a group has *nodes*. A node has a logical id and a
host name for life, and a machine (an instance) behind it for a while. Status names are
those of the SageMaker HyperPod API, so that a view of a record needs no translation.
Times are Unix seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hpresume.provision.arn import instance_id
from hpresume.provision.software import Software, Update

#: ``Node.shape`` of a machine that was looked at and says nothing of itself.
NO_SHAPE = "-"

#: Longest host name (RFC 1123, and HOST_NAME_MAX of Linux less one).
MAX_HOST_NAME = 63


class NodeType(StrEnum):
    """``SlurmConfig.NodeType``."""

    CONTROLLER = "Controller"
    LOGIN = "Login"
    COMPUTE = "Compute"


class ClusterStatus(StrEnum):
    """``ClusterStatus``: the values this control plane uses."""

    CREATING = "Creating"
    IN_SERVICE = "InService"
    UPDATING = "Updating"
    SYSTEM_UPDATING = "SystemUpdating"
    ROLLING_BACK = "RollingBack"
    DELETING = "Deleting"
    FAILED = "Failed"


class GroupStatus(StrEnum):
    """``InstanceGroupStatus``: the values this control plane uses."""

    CREATING = "Creating"
    UPDATING = "Updating"
    IN_SERVICE = "InService"
    SYSTEM_UPDATING = "SystemUpdating"
    DELETING = "Deleting"


class Phase(StrEnum):
    """Where a node stands; the order is that of its life."""

    WAITING = "waiting"  # has no machine
    LAUNCHING = "launching"  # a machine was asked for, or is about to be
    BOOTING = "booting"  # there is a machine, it is not up yet
    CONFIGURING = "configuring"  # up; slurm.conf is to name it
    LIFECYCLE = "lifecycle"  # its lifecycle scripts run
    JOINING = "joining"  # done; Slurm has not heard of it yet
    RUNNING = "running"
    REBOOTING = "rebooting"
    DRAINING = "draining"  # no new jobs, running ones end; then it leaves, or its machine does
    TERMINATING = "terminating"  # its machine is given up


class Leave(StrEnum):
    """Why a machine is given up."""

    STAY = ""
    REMOVE = "remove"  # the node goes with it
    REPLACE = "replace"  # the node gets another one
    UPDATE = "update"  # the same, when its jobs have ended


class OperationStatus(StrEnum):
    """``ClusterOperationStatus``."""

    IN_PROGRESS = "InProgress"
    SUPERSEDED = "Superseded"
    DONE = "Done"


@dataclass(frozen=True)
class Counts:
    """``MinCount`` and ``TargetCount`` of a group at one moment."""

    minimum: int
    target: int


@dataclass(frozen=True)
class Cluster:
    """One cluster.

    ``spec`` holds the members of the request that are echoed and not interpreted here.
    ``next_serial`` numbers its nodes. ``controller_up_at`` is when a controller node
    first ran: nothing else is launched before.
    """

    cluster_id: str
    arn: str
    name: str
    status: ClusterStatus
    created_at: float
    spec: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    next_serial: int = 1
    controller_up_at: float | None = None


@dataclass(frozen=True)
class Group:
    """One instance group.

    ``good`` are the counts of its last InService state, None for a group that never
    was InService. ``minimum_since`` is when the MinCount timer was last started. ``software`` is
    what its machines are made of, ``update`` the last update of that.
    """

    name: str
    node_type: NodeType
    target: int
    minimum: int
    status: GroupStatus
    created_at: float
    minimum_since: float
    spec: Mapping[str, Any] = field(default_factory=dict)
    good: Counts | None = None
    operation: str = ""
    software: Software = field(default_factory=Software)
    update: Update | None = None

    @property
    def instance_type(self) -> str:
        """The type that its machines are asked for."""
        requirements = self.spec.get("InstanceRequirements") or {}
        types = requirements.get("InstanceTypes") or [""]
        return str(self.spec.get("InstanceType") or types[0])

    @property
    def partition(self) -> str:
        """The Slurm partition its nodes are in; empty for none."""
        names = (self.spec.get("SlurmConfig") or {}).get("PartitionNames") or [""]
        return str(names[0])

    @property
    def scripts(self) -> Mapping[str, str]:
        """``LifeCycleConfig``; empty where there is none."""
        return self.spec.get("LifeCycleConfig") or {}

    @property
    def in_flux(self) -> bool:
        """Whether it waits for its MinCount, which blocks other changes of its nodes."""
        return self.status in (GroupStatus.CREATING, GroupStatus.UPDATING)


@dataclass(frozen=True)
class Node:
    """One node.

    ``token`` is the client token of the present launch, ``attempt`` its number.
    ``failures`` counts the failed launches in a row, ``message`` is what the last one said.
    ``in_slurm`` is whether slurm.conf is to name it, ``shape`` with which parameters (empty until
    a machine of it was looked at). ``not_before`` holds back the next try of
    whatever the phase calls for. ``image`` and ``revision`` are the software of the present launch;
    ``updating``: a software update has taken it out of service, ``updated_at`` is when the last
    one had brought it back. ``checking`` is the operation of a deep health check that it waits for.
    """

    logical_id: str
    group: str
    name: str
    index: int
    phase: Phase
    created_at: float
    phase_since: float
    attempt: int = 0
    token: str = ""
    machine_id: str = ""
    address: str = ""
    launched_at: float = 0.0
    running_since: float = 0.0
    not_before: float = 0.0
    failures: int = 0
    message: str = ""
    leave: Leave = Leave.STAY
    in_slurm: bool = False
    shape: str = ""
    operation: str = ""
    image: str = ""
    revision: int = 0
    updating: bool = False
    updated_at: float = 0.0
    checking: str = ""

    @property
    def instance_id(self) -> str:
        """The machine's id as the API has it."""
        return instance_id(self.machine_id)

    @property
    def is_up(self) -> bool:
        """Whether it counts as provisioned and ready."""
        return self.phase is Phase.RUNNING and self.leave is Leave.STAY

    @property
    def is_removed(self) -> bool:
        """Whether it is on its way out for good."""
        return self.leave is Leave.REMOVE


@dataclass(frozen=True)
class OperationDetail:
    """What an operation does to one group."""

    group: str
    current: int
    original: Counts
    desired: Counts
    status: OperationStatus = OperationStatus.IN_PROGRESS


class OperationKind(StrEnum):
    """``ClusterOperationType``."""

    SCALING = "Scaling"
    DEEP_HEALTH_CHECK = "DeepHealthCheck"


@dataclass(frozen=True)
class CheckedGroup:
    """What a deep health check is asked for in one group: all of it without instance ids."""

    group: str
    checks: tuple[str, ...]
    instance_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operation:
    """One scaling request, until every group of it is done or superseded, or one health check.

    A check that could not be run is tried again ``not_before`` (Unix s), after ``failures`` in a
    row.
    """

    operation_id: str
    created_at: float
    details: tuple[OperationDetail, ...]
    status: OperationStatus = OperationStatus.IN_PROGRESS
    kind: OperationKind = OperationKind.SCALING
    checks: tuple[CheckedGroup, ...] = ()
    not_before: float = 0.0
    failures: int = 0


@dataclass(frozen=True)
class Event:
    """One event; ``metadata`` is one member of the API's ``EventMetadata`` union."""

    time: float
    resource: str
    level: str
    description: str
    group: str = ""
    instance_id: str = ""
    operation: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bill:
    """A change of a machine's one billing interval: it begins, or it ends."""

    machine_id: str
    token: str
    logical_id: str
    group: str
    instance_type: str
    at: float
    ends: bool = False


@dataclass(frozen=True)
class State:
    """Everything about one cluster that decides what comes next."""

    cluster: Cluster
    groups: Mapping[str, Group] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    operations: Mapping[str, Operation] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """What a decision does to a state, and what is told about it.

    Everything in it is written in one transaction.
    """

    cluster: Cluster | None = None
    is_gone: bool = False
    groups: Mapping[str, Group | None] = field(default_factory=dict)
    nodes: Mapping[str, Node | None] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    events: tuple[Event, ...] = ()
    bills: tuple[Bill, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (
            self.cluster
            or self.is_gone
            or self.groups
            or self.nodes
            or self.operations
            or self.events
            or self.bills
        )


def host_name(group: str, index: int) -> str:
    """The host name of a group's node: ``<group>-<n>``, as in HyperPod's resource_config.json.

    In lower case, as host names are; groups of a cluster differ in more than case. A group's
    name may be as long as a host name: a long one is cut and gets a digest of itself.
    """
    group = group.lower()
    name = f"{group}-{index}"
    if len(name) <= MAX_HOST_NAME:
        return name
    digest = hashlib.sha256(group.encode()).hexdigest()[:6]
    return f"{group[: MAX_HOST_NAME - 8 - len(str(index))]}-{digest}-{index}"


def token_of(node: Node, attempt: int) -> str:
    """The client token of a node's launch: the same launch always has the same one."""
    return f"{node.logical_id}-{attempt}"
