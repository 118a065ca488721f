"""Passes of node recovery in a process of its own, as the controller makes them.

Usage: recovery_passes.py CLUSTER DATABASE COUNT. Prints JSON: seconds of every pass, and
the most memory that the process ever had (MB).
"""

from __future__ import annotations

import json
import resource
import sys
import time

from hpresume.controller.config import parse
from hpresume.controller.main import reach
from hpresume.providers.config import open_provider
from hpresume.recovery.check import no_check
from hpresume.recovery.recoverer import Recoverer
from hpresume.store import Lease, open_store
from hpresume.store.lease import own_identity


def main() -> None:
    name, database, count = sys.argv[1:]
    table = {"type": "devcluster", "cluster": name}
    config = parse({"controller": {"devcluster": name}, "provider": table})
    gateway, look, _ = reach(config)
    store = open_store(f"sqlite:///{database}")
    lease = Lease(store, own_identity(), 3600.0, time.monotonic, time.time)
    lease.try_hold()
    recoverer = Recoverer(
        gateway, store, open_provider("dev", table), no_check, config.policy,
        lambda: lease.fence, look=look,
    )  # fmt: skip
    # What is to be said is said, and what waits is written down.
    while recoverer.once().acted:
        pass
    seconds = []
    for _ in range(int(count)):
        began = time.monotonic()
        recoverer.once()
        seconds.append(time.monotonic() - began)
    recoverer.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


main()
