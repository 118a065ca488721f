"""Rules of CreateCluster and UpdateCluster about the cluster as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from hpresume.api.rules.registry import rule
from hpresume.provision.service import ClusterRecord, Document

_BOTH = ("CreateCluster", "UpdateCluster")

#: What the model knows and this server does not do. A wish is refused, never dropped.
_NOT_SERVED = {
    "RestrictedInstanceGroups": "restricted instance groups are Amazon Nova's",
    "RestrictedInstanceGroupsConfig": "restricted instance groups are Amazon Nova's",
}
_NOT_SERVED_MODES = {
    "AutoScaling": "autoscaling is Karpenter's, on EKS",
    "TieredStorageConfig": "managed tiered checkpoint storage is not there",
}


@rule("request", *_BOTH)
def members_served(request: Document) -> Iterator[str]:
    """What this server does not do is refused: RIG, EKS, Karpenter, tiered storage, accounting
    database, Kubernetes, patch schedules. ``Mode: Disable`` is accepted.

    Source: hpresume; accepting it would promise what does not happen.
    """
    for name, why in _NOT_SERVED.items():
        if name in request:
            yield f"{name} is not served here: {why}; leave it out"
    for name, why in _NOT_SERVED_MODES.items():
        if request.get(name, {}).get("Mode") == "Enable":
            yield f"{name}.Mode=Enable is not served here: {why}; leave it out"
    orchestrator = request.get("Orchestrator", {})
    if "Eks" in orchestrator:
        yield "Orchestrator.Eks is not served here: this server provisions for Slurm"
    if "AccountingDatabase" in orchestrator.get("Slurm", {}):
        yield (
            "Orchestrator.Slurm.AccountingDatabase is not served here: "
            "set AccountingStorageHost in slurm.conf, which is kept"
        )
    for group in request.get("InstanceGroups", ()):
        for name in ("KubernetesConfig", "AutoPatchConfig", "ScheduledUpdateConfig"):
            if name in group:
                yield (
                    f"{name} of instance group {group['InstanceGroupName']} is not served here; "
                    "leave it out"
                )


@rule("request", *_BOTH)
def orchestrator_is_one(request: Document) -> Iterator[str]:
    """Orchestrator names exactly one of Eks and Slurm; left out, it is Slurm.

    Source: botocore's model, text of ClusterOrchestrator; seed 004 (second command: left out).
    """
    orchestrator = request.get("Orchestrator")
    if orchestrator is not None and len(orchestrator) != 1:
        yield "Orchestrator has to name exactly one of Eks and Slurm"


@rule("request", "CreateCluster")
def mode_is_continuous(request: Document) -> Iterator[str]:
    """NodeProvisioningMode is Continuous: the all-or-nothing default mode is not served.

    Source: hpresume (docs/api.md, decisions).
    """
    if request.get("NodeProvisioningMode") != "Continuous":
        yield (
            "NodeProvisioningMode has to be Continuous: "
            "this server has no all-or-nothing provisioning"
        )


@rule("request", *_BOTH)
def no_strategy_with_continuous(request: Document) -> Iterator[str]:
    """SlurmConfigStrategy, in any value, is refused with continuous provisioning.

    Source: seed 004, "Slurm configuration management": any value is an API error.
    """
    if "SlurmConfigStrategy" in request.get("Orchestrator", {}).get("Slurm", {}):
        yield (
            "SlurmConfigStrategy is not supported when NodeProvisioningMode is Continuous: "
            "slurm.conf is always merged; leave it out"
        )


@rule("request", "CreateCluster")
def one_controller_group(request: Document) -> Iterator[str]:
    """A new cluster has exactly one Controller group and at most one Login group.

    Source: AWS documentation, sagemaker-hyperpod-ref and ...-slurm-api-config-migration.
    """
    types = [
        group.get("SlurmConfig", {}).get("NodeType") for group in request.get("InstanceGroups", ())
    ]
    yield from controller_problems(request["ClusterName"], types)


def controller_problems(name: str, types: list[str | None]) -> Iterator[str]:
    """What is wrong with the node types of a cluster's groups, in HyperPod's words."""
    controllers, logins = types.count("Controller"), types.count("Login")
    if controllers > 1:
        yield (
            f"{controllers} Controller Groups found: "
            "SlurmConfig for InstanceGroups may only have one Controller Group."
        )
    if not controllers:
        yield f"Cluster {name} has no InstanceGroup with Controller node type."
    if logins > 1:
        yield (
            f"{logins} Login Groups found: "
            "SlurmConfig for InstanceGroups may only have one Login Group."
        )


@rule("request", "CreateCluster")
def fsx_needs_network(request: Document) -> Iterator[str]:
    """A group that mounts FSx needs a network: VpcConfig, or its own OverrideVpcConfig.

    Source: AWS documentation, sagemaker-hyperpod-ref (FSx mounts).
    """
    yield from _mounts_without_network(request, has_network="VpcConfig" in request)


@rule("cluster", "UpdateCluster")
def fsx_needs_the_clusters_network(request: Document, cluster: ClusterRecord) -> Iterator[str]:
    """The same for groups of an update: the network is the cluster's.

    Source: AWS documentation, sagemaker-hyperpod-ref (FSx mounts).
    """
    yield from _mounts_without_network(request, has_network="VpcConfig" in cluster.document)


def _mounts_without_network(request: Document, *, has_network: bool) -> Iterator[str]:
    for group in request.get("InstanceGroups", ()):
        mounts = [c for c in group.get("InstanceStorageConfigs", ()) if "EbsVolumeConfig" not in c]
        if mounts and not has_network and "OverrideVpcConfig" not in group:
            yield f"Instance group {group['InstanceGroupName']} mounts FSx: VpcConfig is needed"
