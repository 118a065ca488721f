"""Page tokens, page positions, access keys and private files."""

from __future__ import annotations

import base64
import configparser
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpresume.api.errors import ApiError
from hpresume.api.keys import load_keys, write_key
from hpresume.api.tokens import PageTokens, load_secret
from hpresume.errors import ConfigError
from hpresume.provision.page import page_of

TOKENS = PageTokens(b"s" * 32)
AT = (1700000000.25, "id-1")


def _sealed(**request: Any) -> str:
    return TOKENS.seal("ListClusterNodes", "arn", request, AT)


def _opened(
    token: str, *, operation: str = "ListClusterNodes", cluster: str = "arn", **request: Any
) -> Any:
    return TOKENS.open(operation, cluster, {**request, "NextToken": token})


def test_a_token_gives_its_position_back() -> None:
    token = _sealed(SortBy="NAME", ClusterName="by-name", MaxResults=5)
    assert _opened(token, SortBy="NAME", ClusterName="by-arn", MaxResults=7) == AT
    assert TOKENS.open("ListClusters", "", {}) is None
    assert TOKENS.open("ListClusters", "", {"NextToken": ""}) is None


@pytest.mark.parametrize(
    "other",
    [{"operation": "ListClusterEvents"}, {"cluster": "arn2"}, {"SortBy": "NAME"}],
    ids=str,
)
def test_a_token_is_for_one_list(other: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="another list") as caught:
        _opened(_sealed(), **other)
    assert caught.value.code == "ValidationException"


@given(st.data())
def test_an_altered_token_is_refused(data: st.DataObject) -> None:
    raw = bytearray(base64.urlsafe_b64decode(_sealed()))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ApiError, match="Invalid pagination token"):
        _opened(base64.urlsafe_b64encode(raw).decode())


@given(st.text(min_size=1, max_size=200))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="Invalid pagination token"):
        _opened(text)


def test_another_servers_token_is_refused() -> None:
    with pytest.raises(ApiError):
        PageTokens(b"t" * 32).open("ListClusterNodes", "arn", {"NextToken": _sealed()})


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret = load_secret(path)
    assert load_secret(path) == secret
    assert len(secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["secret"]
    path.write_text("not hexadecimal")
    with pytest.raises(ConfigError, match="not hexadecimal"):
        load_secret(path)
    with pytest.raises(ConfigError, match="cannot make"):
        load_secret(tmp_path / "missing" / "secret")
    with pytest.raises(ConfigError, match="32 bytes"):
        PageTokens(b"short")


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.uuids().map(str)), max_size=30, unique_by=lambda e: e[1]
    ),
    st.integers(1, 7),
    st.booleans(),
)
def test_pages_give_every_entry_once_in_order(
    items: list[tuple[int, str]], limit: int, descending: bool
) -> None:
    found: list[tuple[int, str]] = []
    after = None
    while True:
        page = page_of(items, lambda e: e, limit=limit, after=after, descending=descending)
        found += page.items
        assert len(page.items) <= limit
        if page.next is None:
            break
        after = page.next
    assert found == sorted(items, reverse=descending)


def test_entries_that_come_and_go_between_pages_disturb_no_others() -> None:
    first = page_of(range(10), lambda n: (n, str(n)), limit=4)
    assert first.next is not None
    rest = page_of((0, 2, 4, 5, 6, 7, 8, 9, 11), lambda n: (n, str(n)), limit=9, after=first.next)
    assert [*first.items, *rest.items] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11]


def test_a_key_is_written_in_the_form_of_awss_credentials(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first, second = write_key(path, "alice"), write_key(path, "bob")
    keys = load_keys(path)
    assert set(keys) == {first, second}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(path)
    assert parser["alice"]["aws_access_key_id"] == first
    with pytest.raises(ConfigError, match="alice already"):
        write_key(path, "alice")


GOOD = "[a]\naws_access_key_id = HPRK0123456789ABCDEF\naws_secret_access_key = " + "s" * 40 + "\n"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "no access key"),
        ("[a]\n", "needs aws_access_key_id"),
        (GOOD.replace("HPRK0123456789ABCDEF", "short"), "needs aws_access_key_id"),
        (GOOD.replace("s" * 40, "s" * 19), "at least 20 characters"),
        (GOOD + GOOD.replace("[a]", "[b]"), r"\[b\] repeats the access key id"),
        (GOOD + GOOD, "cannot be read as an INI file"),
        ("aws_secret_access_key = SECRET-TEXT", "cannot be read as an INI file"),
        ("\0" * 2_000_000, "larger than"),
    ],
)
def test_a_bad_key_file_is_refused(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text(content)
    with pytest.raises(ConfigError, match=text) as caught:
        load_keys(path)
    assert "SECRET-TEXT" not in str(caught.value)
    assert "s" * 19 not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_keys_that_others_can_read_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.write_text(GOOD)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 0600 {path}"):
        load_keys(path)


def test_a_missing_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file of access keys; hpresume api add-key"):
        load_keys(tmp_path / "keys")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="regular file"):
        load_keys(tmp_path / "pipe")
