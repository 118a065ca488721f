"""Every constraint of botocore's model is enforced, for every member of every served operation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from api_samples import sample

from hpresume.api.errors import ApiError
from hpresume.api.model import SERVED, load_model
from hpresume.api.walker import MAX_VIOLATIONS, check_request, violations

MODEL = load_model()
OPERATIONS = sorted(MODEL.operations)

Path = tuple[Any, ...]


def _places(shape: Any, value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every place in a sample with its shape."""
    yield path, shape
    if shape.type_name == "structure":
        for name in value:
            yield from _places(shape.members[name], value[name], (*path, name))
    elif shape.type_name == "list":
        yield from _places(shape.member, value[0], (*path, 0))
    elif shape.type_name == "map":
        key = next(iter(value))
        yield from _places(shape.value, value[key], (*path, key))


def _put(root: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    root = copy.deepcopy(root)
    at = root
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return root


def _wrong(shape: Any) -> Iterator[tuple[str, Any]]:
    """Values that break one constraint each; the words that the message has to have."""
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    kind = shape.type_name
    if kind == "string":
        if shape.metadata.get("enum"):
            yield "enum value set", "Nonsense"
            return
        if most is not None:
            yield f"length less than or equal to {most}", "a" * (most + 1)
        if least:
            yield f"length greater than or equal to {least}", "a" * (least - 1)
        if shape.metadata.get("pattern") and shape.name not in ("NextToken",):
            yield "regular expression", _not_matching(shape)
    elif kind in ("integer", "long"):
        if most is not None:
            yield f"value less than or equal to {most}", most + 1
        if least is not None:
            yield f"value greater than or equal to {least}", least - 1
    elif kind == "list":
        entry = sample(shape.member)
        if most is not None:
            yield f"length less than or equal to {most}", [entry] * (most + 1)
        if least:
            yield f"length greater than or equal to {least}", [entry] * (least - 1)
    elif kind == "structure" and shape.is_tagged_union:
        yield "exactly one of", {}
        both = {name: sample(member) for name, member in list(shape.members.items())[:2]}
        yield "exactly one of", both


def _not_matching(shape: Any) -> str:
    text = "\n" if shape.name in ("AlarmName", "InstanceGroupName") else "#\u20ac "
    if shape.name == "ClusterLifeCycleConfigFileName":
        return ""  # the pattern takes every character; only nothing at all breaks it
    return text * max(1, -(-shape.metadata.get("min", 1) // len(text)))


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_samples_are_valid(name: str) -> None:
    operation = MODEL.operations[name]
    for shape in (operation.input_shape, operation.output_shape):
        assert shape is None or violations(shape, sample(shape)) == []


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_constraint_of_each_member_is_enforced(name: str) -> None:
    shape = MODEL.operations[name].input_shape
    good = sample(shape)
    tried = 0
    for path, member in _places(shape, good):
        for words, value in _wrong(member):
            bad = _put(good, path, value)
            texts = [v.text for v in violations(shape, bad)]
            assert any(words in text for text in texts), (path, words, texts)
            with pytest.raises(ApiError) as caught:
                check_request(shape, bad)
            assert caught.value.code == "ValidationException"
            tried += 1
    assert tried > 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_required_member_and_each_type_is_enforced(name: str) -> None:
    shape = MODEL.operations[name].input_shape
    good = sample(shape)
    for path, member in _places(shape, good):
        for wrong in ({"a": 1}, [[]], "x", 7, 1.5, True):
            if _is_of_type(member, wrong):
                continue
            with pytest.raises(ApiError) as caught:
                check_request(shape, _put(good, path, wrong))
            assert caught.value.code == "SerializationException", (path, wrong)
        if member.type_name == "structure":
            for required in member.required_members:
                value = dict(sample(member))
                value.pop(required, None)
                texts = [v.text for v in violations(shape, _put(good, path, value))]
                assert any("must not be null" in text for text in texts), (path, required)
            extra = {**sample(member), "NoSuchMember": 1}
            texts = [v.text for v in violations(shape, _put(good, path, extra))]
            assert any("'NoSuchMember'" in text and "not known" in text for text in texts)


def _is_of_type(shape: Any, value: Any) -> bool:
    kinds: dict[str, Any] = {
        "structure": dict,
        "map": dict,
        "list": list,
        "string": str,
        "boolean": bool,
        "timestamp": (int, float),
    }
    kind = kinds.get(shape.type_name, int)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


CREATE = MODEL.operations["CreateCluster"].input_shape


def _texts(changes: dict[str, Any]) -> list[str]:
    return [v.text for v in violations(CREATE, {"ClusterName": "c", **changes})]


def _group(**changes: Any) -> dict[str, Any]:
    role = "arn:aws:iam::111122223333:role/r"
    return {"InstanceGroupName": "g", "InstanceCount": 1, "ExecutionRole": role, **changes}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"ClusterName": "-x"},
            "Value '-x' at 'clusterName' failed to satisfy constraint: Member must satisfy regular "
            "expression pattern: [a-zA-Z0-9](-*[a-zA-Z0-9])*",
        ),
        (
            {"InstanceGroups": [_group(), _group(InstanceCount=9999)]},
            "Value '9999' at 'instanceGroups.2.member.instanceCount' failed to satisfy constraint: "
            "Member must have value less than or equal to 6758",
        ),
        (
            {"InstanceGroups": [_group(SlurmConfig={"NodeType": "Worker"})]},
            "Value 'Worker' at 'instanceGroups.1.member.slurmConfig.nodeType' failed to satisfy "
            "constraint: Member must satisfy enum value set: [Controller, Login, Compute]",
        ),
        (
            {"InstanceGroups": [_group(ExecutionRole=None)]},
            "'instanceGroups.1.member.executionRole': null can not be converted to a String",
        ),
        (
            {"VpcConfig": {"SecurityGroupIds": ["a b"], "Subnets": ["s"]}},
            "Value '[a b]' at 'vpcConfig.securityGroupIds' failed to satisfy constraint: Member "
            "must satisfy constraint: [Member must have length less than or equal to 32, Member "
            "must have length greater than or equal to 0, Member must satisfy regular expression "
            "pattern: "
            "[-0-9a-zA-Z]+]",
        ),
        (
            {"InstanceGroups": [_group(InstanceStorageConfigs=[{}])]},
            "Value '{}' at 'instanceGroups.1.member.instanceStorageConfigs.1.member' failed to "
            "satisfy constraint: Member must have exactly one of: [EbsVolumeConfig, "
            "FsxLustreConfig, FsxOpenZfsConfig]",
        ),
        ({"ClusterName": 7}, "'clusterName': NUMBER_VALUE can not be converted to a String"),
        (
            {"InstanceGroups": [_group(InstanceCount=2**31)]},
            "'instanceGroups.1.member.instanceCount': the number is out of range",
        ),
        (
            {"Tags": [{"Key": "a", "Value": "x", "Colour": "y"}]},
            "Member 'Colour' at 'tags.1.member' is not known to this server's release of the API",
        ),
    ],
)
def test_the_texts_are_sagemakers(changes: dict[str, Any], text: str) -> None:
    assert _texts(changes) == [text]


def test_a_map_is_reported_once_for_its_keys_and_once_for_its_values() -> None:
    labels = {"KubernetesConfig": {"Labels": {"-": "-", "a": "b"}}}
    found = _texts({"InstanceGroups": [_group(**labels)]})
    assert [("Map keys must" in text, "Map value must" in text) for text in found] == [
        (True, False),
        (False, True),
    ]


def test_several_errors_are_told_at_once_and_a_flood_is_cut() -> None:
    with pytest.raises(ApiError, match="3 validation errors detected: ") as caught:
        check_request(CREATE, {"ClusterName": "-", "NodeRecovery": "x", "ClusterRole": "y" * 20})
    assert caught.value.message.count("; Value") == 2
    flood = {"ClusterName": "c", "InstanceGroups": [_group(InstanceCount=-1)] * 100}
    assert len(violations(CREATE, flood)) == MAX_VIOLATIONS
    assert len(_texts({"ClusterName": "\U0001f600" * 100_000})[0]) < 500


@pytest.mark.parametrize("value", [float("1e18"), -1e18, 253402300800])
def test_a_time_out_of_range_is_refused(value: float) -> None:
    shape = MODEL.operations["ListClusters"].input_shape
    found = violations(shape, {"CreationTimeAfter": value})
    assert [v.is_type for v in found] == [True]


def test_length_is_counted_in_code_points() -> None:
    shape = MODEL.operations["AddTags"].input_shape
    arn = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12"
    value = {"ResourceArn": arn, "Tags": [{"Key": "k", "Value": "\U00010330" * 256}]}
    assert violations(shape, value) == []


def test_all_served_operations_are_in_the_model() -> None:
    assert set(SERVED) == set(OPERATIONS)
    assert MODEL.missing == ()
