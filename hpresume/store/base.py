"""The declarative base of all tables, and the version of their layout."""

from __future__ import annotations

from sqlalchemy import JSON, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

#: Raised by one with every change of a table; ``database.MIGRATIONS`` has the steps.
SCHEMA_VERSION = 2

#: Constraints with names of their own can be changed by a later migration.
_NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of every table. Times are Unix seconds, as floats."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {dict[str, object]: JSON}  # noqa: RUF012 (SQLAlchemy's own form)


class SchemaRow(Base):
    """The one row that says which layout the database has."""

    __tablename__ = "schema_version"

    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int]
