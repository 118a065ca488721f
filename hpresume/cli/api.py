"""``hpresume api``: access keys for the cluster API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: Where the controller looks for access keys.
KEYS_FILE = Path("/etc/hpresume/api-keys")

app = typer.Typer(help="Access keys of the HyperPod cluster API.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep ``add-key`` a sub-command while it is the only one."""


@app.command()
def add_key(
    name: Annotated[str, typer.Argument(help="Name of the key; clients give it as the profile.")],
    file: Annotated[Path, typer.Option(help="The file of keys.")] = KEYS_FILE,
) -> None:
    """Make an access key. The secret is in the file only, which clients can use as it is."""
    from hpresume.api.keys import write_key

    key_id = write_key(file, name)
    typer.echo(f"{key_id} is in {file}. On this machine: ", nl=False)
    typer.echo(f"AWS_SHARED_CREDENTIALS_FILE={file} aws --profile {name} sagemaker list-clusters …")
    typer.echo("A controller that runs already knows the key when it is started anew.")
