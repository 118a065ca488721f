"""Entry point of the ``hpresume`` command.

The subcommands that run at every srun (``supervise``) or on every node
(``env``) are dispatched before anything heavy is imported.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the subcommand named in ``sys.argv`` and return its exit code."""
    args = sys.argv[1:]
    if args[:1] == ["supervise"]:
        from hpresume.resume.main import main as supervise

        # To take the interpreter apart costs 2 ms at every srun, and nothing is left to tidy up.
        os._exit(supervise(args[1:]))
    if args[:1] == ["env"]:
        from hpresume.entrypoint.main import main as env

        return env(args[1:])
    try:
        from hpresume.cli.app import main as cli

        return cli(args)
    except KeyboardInterrupt:  # also while modules are still being loaded
        return 130


if __name__ == "__main__":
    sys.exit(main())
