#!/usr/bin/env python3
"""Machines from a rack of spares, for hpresume's provider of type "command".

Usage: spare_pool.py POOL launch|terminate|reboot|describe|list

POOL is a directory that both slurmctld hosts see. In it, pool.json lists the site's
machines, [{"id": "chassis-17", "address": "10.0.0.17", "bmc": "10.1.0.17"}, ...], and
leases.json is kept by this program: which node a machine stands for, by which token. A
machine that was given up is broken: it comes back into the pool when somebody has repaired it
and removed its lease. ipmitool switches the power.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

NO_CAPACITY, TRY_AGAIN, REFUSED = 69, 75, 1
POWER_TIMEOUT = 20


def main(pool: Path, action: str) -> None:
    """One call: read, change, write down, switch the power, answer."""
    if action in ("launch", "terminate", "reboot") and not shutil.which("ipmitool"):
        fail(REFUSED, "ipmitool is not installed")  # said before a spare is taken
    machines = {machine["id"]: machine for machine in json.loads((pool / "pool.json").read_text())}
    with (pool / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two calls at once must not take the same spare
        path = pool / "leases.json"
        leases = json.loads(path.read_text()) if path.exists() else {}
        machine_id = os.environ.get("HPRESUME_MACHINE_ID", "")
        if action == "launch":
            answer = launch(machines, leases, path)
        elif action == "list":
            answer = [shown(machines, leases, held) for held in leases]
        elif action == "describe":
            answer = shown(machines, leases, machine_id) if machine_id in leases else None
        elif action == "terminate":
            answer = None
            if machine_id in leases:
                power(machines[chassis(machine_id)], "off")
                leases[machine_id]["state"] = "terminated"
                save(path, leases)
        elif action == "reboot":
            answer = None
            if leases.get(machine_id, {}).get("state") != "running":
                fail(REFUSED, f"no machine {machine_id} is in use")
            power(machines[chassis(machine_id)], "cycle")
        else:
            fail(REFUSED, f"unknown action {action}")
    print(json.dumps(answer))


def launch(machines, leases, path):
    """Take a spare. The lease is written before the power is switched: a call that is killed in
    between is repeated with the same token, and switches it again."""
    token, node = os.environ["HPRESUME_TOKEN"], os.environ["HPRESUME_NODE"]
    held = next((each for each, lease in leases.items() if lease["token"] == token), None)
    if held is None:
        used = {chassis(each) for each in leases}
        free = [machine for name, machine in machines.items() if name not in used]
        if not free:
            fail(NO_CAPACITY, f"all {len(machines)} machines are in use or broken")
        wanted = os.environ["HPRESUME_ADDRESS"]
        free.sort(key=lambda machine: machine["address"] != wanted)
        # a machine that comes back from repair is another one, as its old token is used up
        held = f"{free[0]['id']}.{time.time_ns()}"
        leases[held] = {"node": node, "token": token, "since": time.time(), "state": "pending"}
        save(path, leases)
    if leases[held]["state"] == "pending":
        power(machines[chassis(held)], "cycle")  # it boots from the network, as its new node
        leases[held]["state"] = "running"
        save(path, leases)
    return shown(machines, leases, held)


def shown(machines, leases, machine_id):
    """A machine as hpresume wants it described."""
    lease = leases[machine_id]
    return {
        "machine_id": machine_id,
        "node": lease["node"],
        "token": lease["token"],
        "state": lease["state"],
        "address": machines[chassis(machine_id)]["address"],
        "launched_at": lease["since"],
    }


def chassis(machine_id):
    """The machine's place in the rack."""
    return machine_id.rpartition(".")[0]


def power(machine, what):
    """Switch a machine's power through its management controller."""
    user = ["-U", "hpresume", "-f", "/etc/hpresume/bmc-password"]
    command = ["ipmitool", "-I", "lanplus", "-H", machine["bmc"], *user, "chassis", "power", what]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=POWER_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        fail(TRY_AGAIN, f"{machine['id']}: its management controller does not answer")
    if result.returncode != 0:
        fail(TRY_AGAIN, f"{machine['id']}: {result.stderr.strip()}")


def save(path, leases):
    """Write the leases so that a reader sees the old or the new ones, never a part."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(leases, indent=1))
    draft.replace(path)


def fail(code, message):
    """End with what hpresume tells the administrator."""
    print(message, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
