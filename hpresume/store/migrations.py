"""Steps from one layout of the database to the next."""

from __future__ import annotations

from sqlalchemy import Connection, inspect

#: Columns of the second layout by table, with what rows of the first have in them.
SECOND = {
    "provision_groups": (
        """software JSON NOT NULL DEFAULT '{"revision": 0, "image": ""}'""",
        "software_update JSON",
    ),
    "provision_nodes": (
        "image VARCHAR NOT NULL DEFAULT ''",
        "revision INTEGER NOT NULL DEFAULT 0",
        "updating BOOLEAN NOT NULL DEFAULT FALSE",
        "updated_at FLOAT NOT NULL DEFAULT 0",
        "checking VARCHAR NOT NULL DEFAULT ''",
    ),
    "provision_operations": ("kind VARCHAR NOT NULL DEFAULT 'Scaling'",),
}


def to_second(connection: Connection) -> None:
    """Machines know what they are made of, operations of what kind they are."""
    there = inspect(connection).get_table_names()
    for table, columns in SECOND.items():
        if table in there:
            for column in columns:
                connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column}")
