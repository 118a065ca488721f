"""Names of clusters and machines as the API has them: ARNs, cluster ids, instance ids.

The form of an ARN is the model's ClusterArn: ``arn:aws:sagemaker:REGION:ACCOUNT:cluster/ID``
with an id of twelve lower-case letters and digits, which is not the cluster's name.
"""

from __future__ import annotations

import functools
import hashlib
import re
import secrets
import string

_ALPHABET = string.ascii_lowercase + string.digits
_ID_LENGTH = 12


def new_cluster_id() -> str:
    """A new id of a cluster."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))


def cluster_arn(region: str, account: str, cluster_id: str, partition: str = "aws") -> str:
    """ARN of a cluster."""
    return f"arn:{partition}:sagemaker:{region}:{account}:cluster/{cluster_id}"


def is_arn(ref: str) -> bool:
    """Whether a ClusterNameOrArn is an ARN: names hold no colon."""
    return ref.startswith("arn:")


#: The model's ClusterNodeId.
_INSTANCE_ID = re.compile(r"i-[a-f0-9]{8}(?:[a-f0-9]{9})?")


@functools.lru_cache(maxsize=16_384)
def instance_id(machine_id: str) -> str:
    """Instance id of a provider's machine: its own if it has EC2's form, else one made of it.

    Clients name nodes by instance ids, and the API takes only EC2's form. Empty stays empty.
    """
    if not machine_id or _INSTANCE_ID.fullmatch(machine_id):
        return machine_id
    return "i-" + hashlib.sha256(machine_id.encode()).hexdigest()[:17]
