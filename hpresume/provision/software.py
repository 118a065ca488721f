"""What machines are made of, and how a group goes from one image to another.

An image is an ``ImageId`` (``ami-…``) or an ``ImageReleaseVersion`` (``1.2.3``) as it was asked
for; empty for the provider's own. The revision counts the updates: an update without an image
gives every node a new machine too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: ``ImageId`` of the provider's own image.
DEFAULT_IMAGE = "default"


class Stage(StrEnum):
    """``SoftwareUpdateStatus``, in the order in which an update goes through it."""

    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    SUCCEEDED = "Succeeded"
    ROLLBACK_IN_PROGRESS = "RollbackInProgress"
    ROLLBACK_COMPLETE = "RollbackComplete"
    FAILED = "Failed"


@dataclass(frozen=True)
class Software:
    """An image, and which one it is in the order of the group's updates."""

    revision: int = 0
    image: str = ""


@dataclass(frozen=True)
class Update:
    """The last software update of one group.

    ``config`` is the request's DeploymentConfig. ``batching``: nodes were taken out of service
    and the end of that was not noted yet. No batch begins before ``not_before`` (Unix s).
    ``failures`` counts by logical id the machines that did not come up, ``broken`` says why
    that was too many of them.
    """

    goal: Software
    stage: Stage = Stage.PENDING
    config: Mapping[str, Any] = field(default_factory=dict)
    batching: bool = False
    not_before: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    broken: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it is not at its end."""
        return self.stage in (Stage.PENDING, Stage.IN_PROGRESS, Stage.ROLLBACK_IN_PROGRESS)

    @property
    def wait_s(self) -> float:
        """``WaitIntervalInSeconds``."""
        return float(self.config.get("WaitIntervalInSeconds", 0))

    @property
    def alarms(self) -> frozenset[str]:
        """Names in ``AutoRollbackConfiguration``."""
        entries = self.config.get("AutoRollbackConfiguration") or ()
        return frozenset(str(entry["AlarmName"]) for entry in entries)

    def batch(self, nodes: int) -> int:
        """How many of a group's nodes may be out of service at a time for the present stage.

        At least 1. Without a policy all of them: HyperPod's documentation of the operation says
        that all nodes have downtime then. A rollback without a size of its own has the update's.
        """
        policy = self.config.get("RollingUpdatePolicy") or {}
        size = policy.get("MaximumBatchSize")
        if self.stage is Stage.ROLLBACK_IN_PROGRESS:
            size = policy.get("RollbackMaximumBatchSize", size)
        if size is None:
            return max(nodes, 1)
        value = int(size["Value"])
        if size["Type"] == "CAPACITY_PERCENTAGE":
            value = nodes * value // 100
        return max(value, 1)


def image_of(document: Mapping[str, Any]) -> str:
    """The image that a group's or a request's document names; empty for the provider's own."""
    image = str(document.get("ImageId") or document.get("ImageReleaseVersion") or "")
    return "" if image == DEFAULT_IMAGE else image


def members_of(image: str, which: str) -> dict[str, str]:
    """An image as the API has it: ``which`` is Current or Desired; nothing for the provider's."""
    if not image:
        return {}
    kind = "ImageId" if image.startswith("ami-") else "ImageReleaseVersion"
    return {f"{which}{kind}": image}
