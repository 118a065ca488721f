"""Java's patterns in Python: what is translated, and that all of the served operations are."""

from __future__ import annotations

import pytest
from botocore.loaders import Loader

from hpresume.api.patterns import PatternError, compiled


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        (r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", ["a", "a-b", "a--1"], ["", "-a", "a-", "a b", "a\n"]),
        (r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)", ["", "äß 日本", "a_b:c/1=+-@"], ["#", "a\tb", "€"]),
        (r"[\x21-\x7E]+", ["abc~!"], ["", "a b", "é"]),
        (r"[\S\s]+", ["\n", "on_create.sh"], [""]),
        (r"(?!\s*$).+", ["a", " a"], ["", "  ", "a\nb"]),
        (r".+", ["a", "ä"], ["", "a\nb", "a\r", "a\u2028", "a\u0085b"]),
        (r"\d+", ["19"], ["٣", ""]),
        (r"\w+", ["a_1"], ["ä"]),
        (r"[\p{Lu}]", ["A", "Ä"], ["a"]),
        (r"\P{L}", ["1", "-"], ["x"]),
        (r"[\p{Alnum}-]+", ["a-Z9"], ["ä"]),
        (r"a[.]b", ["a.b"], ["axb"]),
        (r"[^/]+", ["ab"], ["a/b"]),
    ],
)
def test_a_pattern_means_what_it_means_in_java(
    pattern: str, matches: list[str], others: list[str]
) -> None:
    expression = compiled(pattern)
    assert [text for text in matches if not expression.fullmatch(text)] == []
    assert [text for text in others if expression.fullmatch(text)] == []


@pytest.mark.parametrize(
    "pattern", [r"[a[b]]", r"[a&&b]", r"\Qa\E", r"\p{Nonsense}", r"\p", "(", "a**"]
)
def test_what_cannot_be_translated_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compiled(pattern)


def test_nearly_the_whole_model_can_be_translated() -> None:
    shapes = Loader().load_service_model("sagemaker", "service-2")["shapes"].values()
    refused = set()
    for pattern in {shape["pattern"] for shape in shapes if "pattern" in shape}:
        try:
            compiled(pattern)
        except PatternError:
            refused.add(pattern)
    # A count of "$", and surrogate pairs as a range; no served operation has them.
    assert all(")${1," in p or "\\uD800\\uDC00-" in p for p in refused), refused
