"""Opening the controller's database, and its transactions.

SQLite: write-ahead log with full synchronisation (a step that was written down
before the provider was asked must survive a loss of power), a busy timeout,
the file readable by its owner only. Anything else that SQLAlchemy knows, by URL;
tested with PostgreSQL.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.orm import Session, sessionmaker

from hpresume.errors import ConfigError, MissingDependencyError, StoreError
from hpresume.store import migrations
from hpresume.store.base import SCHEMA_VERSION, Base, SchemaRow
from hpresume.store.lease import Fence, hold

DEFAULT_URL = "sqlite:////var/lib/hpresume/controller.db"

#: How long a transaction waits for another one (s).
BUSY_TIMEOUT_S = 10.0

#: How long PostgreSQL waits for the next statement of a transaction before it ends it (s).
IDLE_TIMEOUT_S = 5.0

#: Steps from one version of the layout to the next: ``MIGRATIONS[1]`` makes 2 of 1.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {1: migrations.to_second}


class Store:
    """A database that is open, with all tables in the layout of this release."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._write = sessionmaker(engine, expire_on_commit=False)
        self._read = sessionmaker(
            engine.execution_options(hpresume_reads=True), expire_on_commit=False
        )

    @contextlib.contextmanager
    def write(self, fence: Fence | None = None) -> Iterator[Session]:
        """A transaction that is committed at the end of the block, or rolled back.

        With ``fence``, only while its holder leads: LeadershipLostError otherwise,
        and a successor has to wait for the end of the transaction. StoreError for
        what the database itself refuses.
        """
        with _told(), self._write() as session, session.begin():
            if fence is not None:
                hold(session, fence)
            yield session

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads; what was read stays usable after the block."""
        with _told(), self._read() as session:
            yield session

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def open_store(url: str = DEFAULT_URL, *, make: bool = True) -> Store:
    """Open the database of ``url``; make its file and its tables where there are none.

    Raises ConfigError for a URL that names no database, MissingDependencyError
    where its driver is not installed, and StoreError where the database cannot be
    opened or was made by a newer hpresume, or, without ``make``, its file is not there.
    """
    parsed = _parsed(url)
    shown = parsed.render_as_string(hide_password=True)
    try:
        if parsed.get_backend_name() == "sqlite":
            engine = _sqlite(parsed, make=make)
        else:
            engine = create_engine(parsed, pool_pre_ping=True, pool_timeout=BUSY_TIMEOUT_S)
            if parsed.get_backend_name() == "postgresql":
                event.listen(engine, "connect", _bound)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{shown}: the driver {error.name} is not installed: in hpresume's checkout, "
            "pip install '.[postgresql]'"
        ) from None
    except OSError as error:
        raise StoreError(f"{error.filename}: cannot be opened or made: {error.strerror}") from None
    store = Store(engine)
    try:
        with engine.begin() as connection:
            _lay_out(connection, shown)
    except BaseException as error:
        engine.dispose()
        if isinstance(error, DBAPIError):
            raise StoreError(f"{shown}: {_words(error)}") from error
        raise
    return store


def _bound(connection: Any, _record: object) -> None:
    """Limits of a session of PostgreSQL: a leader that is frozen inside a transaction must not
    keep the lease, whose row it has locked, from everybody else."""
    with connection.cursor() as cursor:
        for name, seconds in (
            ("lock_timeout", BUSY_TIMEOUT_S),
            ("idle_in_transaction_session_timeout", IDLE_TIMEOUT_S),
        ):
            cursor.execute(f"SET {name} = {seconds * 1000:.0f}")
    connection.commit()


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError):
        # Not the URL itself: there may be a password in it.
        raise ConfigError(
            "the database's URL cannot be read; allowed are sqlite:////absolute/path.db "
            "and postgresql+psycopg://user@host/database"
        ) from None
    return parsed


def _sqlite(url: URL, *, make: bool) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ConfigError("sqlite: name a file, as in sqlite:////var/lib/hpresume/controller.db")
    path = Path(url.database)
    if not path.is_absolute() or url.query:
        # The controller and its commands are started in different folders.
        raise ConfigError(
            f"{url.render_as_string()}: write an absolute path and nothing behind it, "
            "as in sqlite:////var/lib/hpresume/controller.db"
        )
    if not make and not path.exists():
        raise StoreError(
            f"{path}: there is no such database: a controller makes it when it first runs"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The log files beside it get the same mode from SQLite.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        # The driver's own way of beginning transactions breaks their isolation.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # A writer takes the lock at once: none has to be tried again half-way.
        reads = connection.get_execution_options().get("hpresume_reads")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _lay_out(connection: Connection, shown: str) -> None:
    if connection.dialect.name == "postgresql":
        # Two instances that start together would both make the tables.
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(4872001)")
    Base.metadata.tables[SchemaRow.__tablename__].create(connection, checkfirst=True)
    with Session(connection, expire_on_commit=False) as session:
        row = session.scalar(select(SchemaRow))
        version = row.version if row else SCHEMA_VERSION
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{shown}: made by a newer hpresume (layout {version}, this one knows up to "
                f"{SCHEMA_VERSION}): update hpresume on this host"
            )
        for step in range(version, SCHEMA_VERSION):
            if step not in MIGRATIONS:
                raise StoreError(f"{shown}: layout {version} is none that hpresume has ever made")
            MIGRATIONS[step](connection)
        if row is None:
            session.add(SchemaRow(id=1, version=SCHEMA_VERSION))
        else:
            row.version = SCHEMA_VERSION
        Base.metadata.create_all(connection)
        session.flush()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Errors of the database as one line."""
    try:
        yield
    except IntegrityError:  # the caller's business
        raise
    except DBAPIError as error:
        raise StoreError(f"the database: {_words(error)}") from error
    except SQLAlchemyError as error:  # no connection is free in time, say
        raise StoreError(f"the database: {' '.join(str(error).split())[:300]}") from error


def _words(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())[:300]
