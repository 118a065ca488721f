"""The controller's database: opening, layout, events."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import TimeoutError

from hpresume.errors import ConfigError, StoreError
from hpresume.store import Event, Level, open_store
from hpresume.store.base import SCHEMA_VERSION, SchemaRow
from hpresume.store.events import add, forget, last_id, since


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/state/controller.db"


def test_a_new_database_is_its_owners_alone_and_survives_a_loss_of_power(tmp_path):
    store = open_store(url(tmp_path))
    with store.write() as session:
        add(session, Event(1.0, "a", "first"))
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA synchronous")) == 2  # FULL
        for path in (tmp_path / "state").iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(os.stat(tmp_path / "state").st_mode) == 0o700
    store.close()


def test_what_was_written_is_there_after_it_is_opened_again(tmp_path):
    store = open_store(url(tmp_path))
    event = Event(
        2.5, "node-replaced", "n1 is back", Level.WARNING, "n1", "c", "g", {"took_s": 3.5, "a": [1]}
    )
    with store.write() as session:
        add(session, event)
    store.close()
    with open_store(url(tmp_path)).read() as session:
        (found,) = since(session)
    assert found == Event(**{**event.__dict__, "id": 1})


def test_a_block_that_fails_writes_nothing(tmp_path):
    store = open_store(url(tmp_path))

    def fail_half_way() -> None:
        with store.write() as session:
            add(session, Event(1.0, "a", "x"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    with store.read() as session:
        assert since(session) == ()
        assert last_id(session) == 0


def test_events_are_chosen_by_node_kind_and_place(tmp_path):
    store = open_store(url(tmp_path))
    with store.write() as session:
        for number in range(6):
            add(session, Event(float(number), f"k{number % 2}", "m", node=f"n{number % 3}"))
    with store.read() as session:
        assert [e.id for e in since(session, 4)] == [5, 6]
        assert [e.time for e in since(session, node="n1")] == [1.0, 4.0]
        assert [e.time for e in since(session, kind="k1", limit=2)] == [1.0, 3.0]
        assert last_id(session) == 6
    with store.write() as session:
        forget(session, 3.0)
    with store.read() as session:
        assert [e.time for e in since(session)] == [3.0, 4.0, 5.0]


def test_a_database_of_a_newer_release_is_left_alone(tmp_path):
    store = open_store(url(tmp_path))
    with store.write() as session:
        session.execute(update(SchemaRow).values(version=SCHEMA_VERSION + 1))
    store.close()
    with pytest.raises(StoreError, match="newer hpresume"):
        open_store(url(tmp_path))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("nonsense", "cannot be read"),
        ("oracle7://x:secret@y/z", "cannot be read"),
        ("sqlite://", "name a file"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite:///c.db", "absolute path"),
        ("sqlite:////tmp/c.db?mode=ro", "absolute path"),
    ],
)
def test_a_bad_url_is_one_clear_line_without_its_password(bad, words):
    with pytest.raises(ConfigError, match=words) as caught:
        open_store(bad)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/controller.db").write_text("this is not a database, whatever its name" * 50)
    with pytest.raises(StoreError, match="not a database"):
        open_store(url(tmp_path))


def test_a_layout_that_never_was(tmp_path):
    store = open_store(url(tmp_path))
    with store.write() as session:
        session.execute(update(SchemaRow).values(version=0))
    store.close()
    with pytest.raises(StoreError, match="layout 0 is none"):
        open_store(url(tmp_path))


def test_a_pool_without_a_free_connection_is_the_databases_trouble(tmp_path):
    store = open_store(url(tmp_path))
    with pytest.raises(StoreError, match="the database: QueuePool"), store.read():
        raise TimeoutError("QueuePool limit of size 5 reached")
    store.close()
