"""Options that several sub-commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Only = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only these checks; may be repeated.")
]
Skip = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Not these checks; may be repeated.")
]
