"""Rules of tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from hpresume.api.errors import ApiError
from hpresume.api.rules.registry import rule
from hpresume.provision.service import Document

#: Most tags of a cluster: the model's TagList.
MAX_TAGS = 50


@rule("request", "CreateCluster", "AddTags")
def tag_keys_differ(request: Document) -> Iterator[str]:
    """Each key is there once.

    Source: botocore's model, text of AddTags: tag keys are unique per resource.
    """
    keys = Counter(tag["Key"] for tag in request.get("Tags", ()))
    for key, times in keys.items():
        if times > 1:
            yield f"Tag {key} is there {times} times"


@rule("request", "CreateCluster", "AddTags", "DeleteTags")
def tag_keys_are_not_reserved(request: Document) -> Iterator[str]:
    """Keys that begin with ``aws:`` are AWS's.

    Source: AWS documentation, tag naming limits.
    """
    for key in (*(t["Key"] for t in request.get("Tags", ())), *request.get("TagKeys", ())):
        if key.lower().startswith("aws:"):
            yield f"Tag {key}: keys that begin with aws: are reserved"


def added(tags: Mapping[str, str], new: Mapping[str, str]) -> Mapping[str, str]:
    """The tags with new ones added or overwritten; ValidationException beyond 50."""
    result = {**tags, **new}
    if len(result) > MAX_TAGS:
        raise ApiError(
            "ValidationException", f"a cluster has at most {MAX_TAGS} tags, not {len(result)}"
        )
    return result
