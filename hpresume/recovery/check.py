"""The health check of a machine that is to go into service.

Through Slurm, as root: the node is reserved for root, given back to Slurm inside
that reservation, and the check runs on it as a job. So the whole way of a job is
tried as well, and no job of a user gets there first. Where a job that waits for
this node holds its resources, no other can run there; slurmd's registration with
all that slurm.conf promises is then the check.
Or with a program of the site, on the controller's host.
Exit codes are those of ``hpresume check``: 0 good, 1 a fault, anything else no verdict.
Python itself ends with 1 too where the program cannot run at all, which says nothing of the node.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from hpresume.errors import SlurmTransientError
from hpresume.providers import bounded
from hpresume.recovery import reasons
from hpresume.recovery.calls import Checks, Stands
from hpresume.recovery.model import Call, Outcome, Trouble
from hpresume.slurm.admin import AdminGateway

#: How the reservations are called; they end by themselves after these minutes.
RESERVATION = "hpresume-check-"
_RESERVED_MIN = 30


#: What Python prints, and then ends with 1, where a program of its breaks or is not installed.
_BROKEN = re.compile(r"^Traceback \(most recent call last\):|^\S+: No module named ", re.MULTILINE)


def no_check(node: str, jobs: tuple[int, ...], stands: Stands) -> Outcome:
    """For a site that wants none."""
    del node, jobs, stands
    return Outcome(Call.CHECK, words="not checked: the configuration says none")


def through_slurm(gateway: AdminGateway, command: Sequence[str], timeout_s: float) -> Checks:
    """A check that runs ``command`` on the node as a job of root's."""

    def check(node: str, jobs: tuple[int, ...], stands: Stands) -> Outcome:
        if jobs:
            return Outcome(Call.CHECK, words=f"not checked: job {jobs[0]} holds it and waits")
        name = RESERVATION + node
        outcome = Outcome(Call.CHECK, Trouble.TRANSIENT, "it did not come to an end")
        gateway.reserve(name, node, _RESERVED_MIN)
        try:
            gateway.update_node(node, State="RESUME")
            answer = gateway.run_on(node, name, command, timeout_s)
            outcome = verdict(answer.returncode, f"{answer.stdout}\n{answer.stderr}")
        except SlurmTransientError as error:
            outcome = Outcome(Call.CHECK, Trouble.TRANSIENT, str(error))
        finally:
            # A successor checks the node anew, under the same reservation.
            if stands():
                if outcome.trouble is not None:
                    # Before the reservation goes: no job may get there.
                    reason = reasons.hold(reasons.Kind.REPLACE, f"check: {outcome.words}")
                    gateway.update_node(node, State="FAIL", Reason=reason)
                gateway.unreserve(name)
        return outcome

    return check


def by_program(command: Sequence[str], timeout_s: float) -> Checks:
    """A check by a program of the site; ``{node}`` in ``command`` is the node's name."""

    def check(node: str, jobs: tuple[int, ...], stands: Stands) -> Outcome:
        del jobs, stands
        argv = [word.replace("{node}", node) for word in command]
        try:
            ended = bounded.run(argv, timeout_s)
        except subprocess.TimeoutExpired:
            words = f"{argv[0]}: no end within {timeout_s:.0f} s"
            return Outcome(Call.CHECK, Trouble.TRANSIENT, words)
        except bounded.TooMuchError:
            return Outcome(Call.CHECK, Trouble.TRANSIENT, f"{argv[0]}: it said far too much")
        except OSError as error:
            return Outcome(Call.CHECK, Trouble.TRANSIENT, f"{argv[0]}: {error.strerror}")
        said = (ended.stdout + b"\n" + ended.stderr).decode(errors="replace")
        return verdict(ended.code, said)

    return check


def verdict(code: int, said: str) -> Outcome:
    """What an exit code and the words with it mean."""
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    faults = [line for line in lines if re.match(r"fail\b", line, re.IGNORECASE)] or lines[-1:]
    words = ("; ".join(faults) or f"exit code {code}")[:200]
    if code == 0:
        return Outcome(Call.CHECK, words=lines[-1][:200] if lines else "good")
    if code == 1 and not _BROKEN.search(said):
        return Outcome(Call.CHECK, Trouble.FAULT, words)
    return Outcome(Call.CHECK, Trouble.TRANSIENT, f"exit code {code}: {words}")
