"""Tables of provisioning, and the records they hold.

A record's members are columns of the same name; enumerations are stored by their values.
"""

from __future__ import annotations

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from hpresume.store import Base


class ClusterRow(Base):
    """Live clusters; the row goes with the cluster."""

    __tablename__ = "provision_clusters"

    cluster_id: Mapped[str] = mapped_column(primary_key=True)
    arn: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str] = mapped_column(unique=True)
    status: Mapped[str]
    created_at: Mapped[float]
    spec: Mapped[dict[str, object]]
    tags: Mapped[dict[str, object]]
    failure: Mapped[str]
    next_serial: Mapped[int]
    controller_up_at: Mapped[float | None]


class GroupRow(Base):
    """Instance groups; ``good`` is a pair of counts."""

    __tablename__ = "provision_groups"

    cluster_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    node_type: Mapped[str]
    target: Mapped[int]
    minimum: Mapped[int]
    status: Mapped[str]
    created_at: Mapped[float]
    minimum_since: Mapped[float]
    spec: Mapped[dict[str, object]]
    good: Mapped[dict[str, object] | None]
    operation: Mapped[str]
    software: Mapped[dict[str, object]]
    update: Mapped[dict[str, object] | None] = mapped_column("software_update")


class NodeRow(Base):
    """Nodes; a row goes with its node."""

    __tablename__ = "provision_nodes"

    logical_id: Mapped[str] = mapped_column(primary_key=True)
    cluster_id: Mapped[str] = mapped_column(index=True)
    instance_group: Mapped[str]
    name: Mapped[str]
    number: Mapped[int]
    phase: Mapped[str]
    created_at: Mapped[float]
    phase_since: Mapped[float]
    attempt: Mapped[int]
    token: Mapped[str]
    machine_id: Mapped[str]
    address: Mapped[str]
    launched_at: Mapped[float]
    running_since: Mapped[float]
    not_before: Mapped[float]
    failures: Mapped[int]
    message: Mapped[str]
    leave: Mapped[str]
    in_slurm: Mapped[bool]
    shape: Mapped[str]
    operation: Mapped[str]
    image: Mapped[str]
    revision: Mapped[int]
    updating: Mapped[bool]
    updated_at: Mapped[float]
    checking: Mapped[str]


class OperationRow(Base):
    """Operations, ended ones included; ``details`` are their groups, or their checks."""

    __tablename__ = "provision_operations"

    operation_id: Mapped[str] = mapped_column(primary_key=True)
    cluster_id: Mapped[str] = mapped_column(index=True)
    created_at: Mapped[float]
    status: Mapped[str]
    kind: Mapped[str]
    details: Mapped[dict[str, object]]


class EventRow(Base):
    """Events, which outlive their cluster."""

    __tablename__ = "provision_events"
    __table_args__ = (Index("ix_provision_events_place", "cluster_id", "time", "event_id"),)

    event_id: Mapped[str] = mapped_column(primary_key=True)
    cluster_id: Mapped[str]
    time: Mapped[float] = mapped_column(index=True)
    resource: Mapped[str]
    level: Mapped[str]
    description: Mapped[str]
    instance_group: Mapped[str]
    instance_id: Mapped[str]
    operation: Mapped[str]
    details: Mapped[dict[str, object]]


class BillRow(Base):
    """One billing interval for each machine, ever; open while ``ended_at`` is empty."""

    __tablename__ = "provision_billing"

    machine_id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str] = mapped_column(primary_key=True)
    cluster_id: Mapped[str] = mapped_column(index=True)
    cluster_arn: Mapped[str] = mapped_column(index=True)
    cluster_name: Mapped[str]
    instance_group: Mapped[str]
    logical_id: Mapped[str]
    instance_type: Mapped[str]
    began_at: Mapped[float]
    ended_at: Mapped[float | None]


class TokenRow(Base):
    """Client tokens of BatchAddClusterNodes and the nodes they made."""

    __tablename__ = "provision_client_tokens"

    cluster_id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    expires_at: Mapped[float]
    answer: Mapped[dict[str, object]]
