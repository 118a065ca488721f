"""AddTags, ListTags, DeleteTags of clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpresume.api.handlers.call import Call
from hpresume.api.rules import tags as rules


def _document(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def add(call: Call) -> dict[str, Any]:
    """Add or overwrite tags; answers all of them."""
    new = {tag["Key"]: tag["Value"] for tag in call.request["Tags"]}
    tags = call.service.change_tags(call.text("ResourceArn"), lambda tags: rules.added(tags, new))
    return {"Tags": _document(tags)}


def list_all(call: Call) -> dict[str, Any]:
    """All tags: a cluster's 50 fit in the smallest page there is."""
    call.start(call.text("ResourceArn"))
    return {"Tags": _document(call.service.tags(call.text("ResourceArn")))}


def delete(call: Call) -> dict[str, Any]:
    """Delete tags; keys that are not there are no error."""
    keys = set(call.request["TagKeys"])
    call.service.change_tags(
        call.text("ResourceArn"), lambda tags: {k: v for k, v in tags.items() if k not in keys}
    )
    return {}
