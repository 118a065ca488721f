"""A site's program for machines: those of a dev cluster, with faults on demand.

Usage: site_machines.py BASE-DIRECTORY CLUSTER FAULTS-DIRECTORY ACTION. A file ACTION in the
faults directory has a word a line, used up one a call: ``fail``, ``hang`` (for ever),
``half`` (does it, then says that it failed), ``capacity``, ``refuse``; ``ok`` does nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def take(path: Path) -> str:
    """The next fault, which is used up."""
    if not path.exists():
        return "ok"
    words = path.read_text().split()
    path.write_text("\n".join(words[1:]))
    return words[0] if words else "ok"


def main() -> int:
    base, name, faults, action = sys.argv[1:]
    os.environ["HPRESUME_DEVCLUSTER_DIR"] = base
    fault = take(Path(faults) / action)
    with open(Path(faults) / "calls", "a") as log:
        log.write(f"{action} {fault} {os.environ.get('HPRESUME_TOKEN', '')}\n")
    if fault == "hang":
        time.sleep(3600)
    if fault in ("fail", "capacity", "refuse"):
        print(f"told to {fault}", file=sys.stderr)
        return {"fail": 75, "capacity": 69, "refuse": 1}[fault]
    from hpresume.errors import ProviderRefusedError, ProviderTransientError
    from hpresume.providers.config import open_provider
    from hpresume.providers.model import LaunchRequest

    provider: Any = open_provider(
        "dev", {"type": "devcluster", "cluster": name, "address": os.environ.get("ADDRESS", "same"),
                "report_boot": "REPORT_BOOT" in os.environ},
    )  # fmt: skip
    of = os.environ.get
    try:
        if action == "launch":
            answer = provider.launch(
                LaunchRequest(of("HPRESUME_TOKEN", ""), of("HPRESUME_NODE", ""))
            )
        elif action == "list":
            answer = provider.list()
        else:
            answer = getattr(provider, action)(of("HPRESUME_MACHINE_ID", ""))
    except (ProviderRefusedError, ProviderTransientError) as error:
        print(error, file=sys.stderr)
        return 75 if isinstance(error, ProviderTransientError) else 1
    if fault == "half":
        print("the answer is lost", file=sys.stderr)
        return 75
    print(json.dumps(answer, default=lambda machine: vars(machine)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
