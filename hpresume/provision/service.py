"""The seam between the HyperPod API and provisioning.

The API validates requests, judges them with pure rules and writes responses;
the service keeps the state. Rules that depend on the state reach the service
as a function (``guard``, ``judge``), which it calls inside the transaction with
the state that this transaction changes: what the function raises ends the
transaction with nothing done, so a rule never judges an old state.

Documents are mappings in the API's own shapes (botocore's ``sagemaker`` model), validated,
without nulls, safe to store as JSON. Times are Unix times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from hpresume.provision.page import Page, Position

Document = Mapping[str, Any]


@dataclass(frozen=True)
class GroupSpec:
    """One instance group as it was asked for.

    ``document`` is a ClusterInstanceGroupSpecification with ``MinInstanceCount`` filled in
    where a default applies.
    """

    document: Document

    @property
    def name(self) -> str:
        """Name of the group, unique in its cluster."""
        return str(self.document["InstanceGroupName"])

    @property
    def count(self) -> int:
        """Target count."""
        return int(self.document["InstanceCount"])

    @property
    def min_count(self) -> int:
        """Instances that make the group InService; 0 where nothing is asked for."""
        return int(self.document.get("MinInstanceCount", 0))

    @property
    def instance_types(self) -> tuple[str, ...]:
        """Instance types in order of preference."""
        if "InstanceType" in self.document:
            return (str(self.document["InstanceType"]),)
        return tuple(self.document["InstanceRequirements"]["InstanceTypes"])

    @property
    def node_type(self) -> str:
        """``Controller``, ``Login`` or ``Compute``; empty without SlurmConfig."""
        return str(self.document.get("SlurmConfig", {}).get("NodeType", ""))

    @property
    def partitions(self) -> tuple[str, ...]:
        """Partitions that the group's nodes belong to."""
        return tuple(self.document.get("SlurmConfig", {}).get("PartitionNames", ()))


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster as it was asked for: a CreateClusterRequest, the groups and tags apart."""

    name: str
    document: Document
    groups: tuple[GroupSpec, ...]
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterUpdate:
    """What UpdateCluster changes: groups to create or change, groups to delete, and the rest.

    Groups that are not named stay as they are. ``document`` holds the other members of the
    request.
    """

    document: Document
    groups: tuple[GroupSpec, ...] = ()
    delete: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupRecord:
    """One instance group as it is.

    ``details`` holds further members of ClusterInstanceGroupDetails (SoftwareUpdateStatus,
    CurrentImageId, …), which the response takes over. ``awaits_min_count`` is true while the
    group is Creating or Updating because MinCount is not reached.
    """

    spec: GroupSpec
    status: str
    current_count: int
    target_count: int
    min_count: int
    awaits_min_count: bool = False
    scaling_operations: int = 0
    details: Document = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterRecord:
    """One cluster as it is.

    ``document`` holds the members of CreateClusterRequest that DescribeCluster answers with
    (VpcConfig, Orchestrator, NodeRecovery, NodeProvisioningMode, …).
    """

    arn: str
    name: str
    status: str
    created_at: float
    groups: tuple[GroupRecord, ...] = ()
    document: Document = field(default_factory=dict)
    failure_message: str = ""
    health_check_active: bool = False

    def group(self, name: str) -> GroupRecord | None:
        """The group of this name."""
        return next((g for g in self.groups if g.spec.name == name), None)


@dataclass(frozen=True)
class NodeRecord:
    """One node: a logical id for life, an instance id for each machine (empty without one).

    ``name`` is the node's name in Slurm. ``created_at`` is when the node was asked for,
    ``launched_at`` when its present machine was launched (0.0 without one).
    """

    logical_id: str
    name: str
    group: str
    instance_type: str
    status: str
    created_at: float
    instance_id: str = ""
    launched_at: float = 0.0
    updated_at: float = 0.0
    message: str = ""
    address: str = ""
    hostname: str = ""
    details: Document = field(default_factory=dict)


@dataclass(frozen=True)
class EventRecord:
    """One event; ``resource_type`` is Cluster, InstanceGroup or Instance.

    ``metadata`` is an EventMetadata: exactly one member, or none at all.
    """

    event_id: str
    resource_type: str
    time: float
    description: str
    level: str = "Info"
    group: str = ""
    instance_id: str = ""
    operation_id: str = ""
    metadata: Document = field(default_factory=dict)


@dataclass(frozen=True)
class OperationRecord:
    """One scaling or health check operation of a cluster.

    ``details`` holds ScalingDetails or DeepHealthCheckDetails.
    """

    operation_id: str
    type: str
    status: str
    created_at: float
    details: Document = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterQuery:
    """Which clusters, in which order; ``sort_by`` is CREATION_TIME or NAME.

    Bounds in time are exclusive. ``after`` is where the page before this one ended.
    """

    limit: int
    sort_by: str = "CREATION_TIME"
    descending: bool = False
    after: Position | None = None
    created_after: float | None = None
    created_before: float | None = None
    name_contains: str = ""
    training_plan: str = ""


@dataclass(frozen=True)
class NodeQuery:
    """Which nodes of a cluster; ``sort_by`` is CREATION_TIME or NAME.

    Nodes without an instance are left out unless ``include_logical``.
    """

    limit: int
    sort_by: str = "CREATION_TIME"
    descending: bool = False
    after: Position | None = None
    created_after: float | None = None
    created_before: float | None = None
    group_contains: str = ""
    include_logical: bool = False


@dataclass(frozen=True)
class EventQuery:
    """Which events of a cluster, by time; newest first unless said otherwise."""

    limit: int
    descending: bool = True
    after: Position | None = None
    time_after: float | None = None
    time_before: float | None = None
    group: str = ""
    instance_id: str = ""
    resource_type: str = ""
    operation_id: str = ""


@dataclass(frozen=True)
class OperationQuery:
    """Which operations of a cluster, by creation time; newest first unless said otherwise."""

    limit: int
    descending: bool = True
    after: Position | None = None
    created_after: float | None = None
    created_before: float | None = None
    status: str = ""
    type: str = ""


class NodeAction(StrEnum):
    """What can be asked for chosen nodes."""

    DELETE = "delete"
    REBOOT = "reboot"
    REPLACE = "replace"


@dataclass(frozen=True)
class Addition:
    """Nodes to add to one group: an AddClusterNodeSpecification."""

    group: str
    count: int
    document: Document


@dataclass(frozen=True)
class AdditionVerdict:
    """Which additions are carried out, and the BatchAddClusterNodesErrors for the others."""

    accepted: tuple[Addition, ...]
    failed: tuple[Document, ...] = ()


@dataclass(frozen=True)
class AddedNodes:
    """Answer to an addition: the nodes with their present state, and what failed."""

    nodes: tuple[NodeRecord, ...]
    failed: tuple[Document, ...] = ()


@dataclass(frozen=True)
class ClientToken:
    """An idempotency token and the digest of the parameters it was sent with.

    The service keeps both for ``lifetime_s`` with the answer, in the transaction that does
    the work.
    """

    value: str
    digest: str
    lifetime_s: float = 8 * 3600.0


Guard = Callable[[ClusterRecord], None]
AdditionGuard = Callable[[ClusterRecord], AdditionVerdict]
#: From the cluster and the nodes that were found (by logical id) to the logical ids to act on.
NodeJudge = Callable[[ClusterRecord, Mapping[str, NodeRecord]], tuple[str, ...]]


class ClusterService(Protocol):
    """State of all clusters of one account and region.

    ``ref`` is a cluster's name or ARN. All calls block, may come from many threads at
    once, and raise a ``ServiceError``; ``ResourceNotFoundError`` where there is no such
    cluster, node, event or operation. A cluster is found until its deletion is complete.
    """

    def cluster(self, ref: str) -> ClusterRecord:
        """One cluster with its groups."""
        ...

    def clusters(self, query: ClusterQuery) -> Page[ClusterRecord]:
        """A page of clusters; the id of a position is the ARN."""
        ...

    def nodes(self, ref: str, query: NodeQuery) -> Page[NodeRecord]:
        """A page of a cluster's nodes; the id of a position is the logical id."""
        ...

    def node(self, ref: str, *, instance_id: str = "", logical_id: str = "") -> NodeRecord:
        """One node, by one of its ids."""
        ...

    def events(self, ref: str, query: EventQuery) -> Page[EventRecord]:
        """A page of a cluster's events; the id of a position is the event id."""
        ...

    def event(self, ref: str, event_id: str) -> EventRecord:
        """One event."""
        ...

    def operations(self, ref: str, query: OperationQuery) -> Page[OperationRecord]:
        """A page of a cluster's operations; the id of a position is the operation id."""
        ...

    def operation(self, ref: str, operation_id: str) -> OperationRecord:
        """One operation."""
        ...

    def tags(self, arn: str) -> Mapping[str, str]:
        """Tags of a cluster."""
        ...

    def create_cluster(self, spec: ClusterSpec) -> str:
        """Record a new cluster and answer its ARN; ``ResourceInUseError`` if the name is taken."""
        ...

    def update_cluster(self, ref: str, update: ClusterUpdate, guard: Guard) -> str:
        """Record new targets; answers the ARN."""
        ...

    def delete_cluster(self, ref: str, guard: Guard) -> str:
        """Start the deletion of a cluster in whatever state it is; answers the ARN."""
        ...

    def add_nodes(
        self, ref: str, additions: tuple[Addition, ...], token: ClientToken, guard: AdditionGuard
    ) -> AddedNodes:
        """Raise target counts, one new node for each; once only for each client token.

        A token that is known gives the nodes it has made, as they are now, and the guard is
        not asked; with another digest it raises ``RequestRefusedError``.
        """
        ...

    def act_on_nodes(
        self,
        ref: str,
        action: NodeAction,
        *,
        instance_ids: tuple[str, ...],
        logical_ids: tuple[str, ...],
        judge: NodeJudge,
    ) -> str:
        """Act on those of the named nodes that ``judge`` accepts; answers the ARN.

        Deletion also lowers the target counts of their groups. ``judge`` gets each node once.
        """
        ...

    def start_health_check(
        self, ref: str, configurations: tuple[Document, ...], guard: Guard
    ) -> str:
        """Start deep checks (InstanceGroupHealthCheckConfiguration); answers the ARN."""
        ...

    def update_software(self, ref: str, document: Document, guard: Guard) -> str:
        """Start an UpdateClusterSoftwareRequest; answers the ARN."""
        ...

    def change_tags(
        self, arn: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Put ``change(tags)`` in the place of a cluster's tags; answers the new ones."""
        ...
