"""The quick checks of this node after a step on it failed; printed for its supervisor.

Run as a file by ``python -I -S`` through ``srun --overlap``, as the user of the
step: what needs root is left out. Nothing third-party is loaded, and nothing of
hpresume before it runs, so that its constants cost next to nothing elsewhere.

    hpresume-health NODE RESULT CHECK ACTION AGE EVIDENCE
    hpresume-health NODE done COUNT

RESULT is ``fail`` (with an action) or ``unknown``; AGE is how long ago the fault
came (s), so that clocks need not agree; COUNT is the number of checks.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpresume.health.model import AnyCheck, Result
    from hpresume.health.policy import Policy

PREFIX = "hpresume-health"

#: How much older than the attempt evidence may look (s): times in the kernel's log
#: come from a clock that nobody sets, and run away by seconds a week.
CLOCK_SLACK_S = 60.0

#: srun passes lines of up to 1 KiB on as they are.
_MOST_EVIDENCE = 200


def adapted(policy: Policy, age_s: float, limit_s: float) -> Policy:
    """The policy for a node on which a step has just failed. Pure.

    Nothing in the kernel's log older than ``age_s`` counts, no check takes longer
    than ``limit_s`` or asks slurmctld how many GPUs there are, and the failure itself
    is one of the strikes that a fault needs.
    """
    from dataclasses import replace

    checks = {}
    for name, check in policy.checks.items():
        limits = dict(check.limits)
        if "max_age_s" in limits:
            oldest = limits["max_age_s"].value or age_s
            limits["max_age_s"] = replace(limits["max_age_s"], value=min(oldest, age_s))
        if "by_slurm" in limits:  # all nodes of a large step would ask at once
            limits["by_slurm"] = replace(limits["by_slurm"], value=False)
        checks[name] = replace(
            check,
            limits=limits,
            timeout_s=min(check.timeout_s, limit_s),
            strikes=max(1, check.strikes - 1),
        )
    return replace(policy, checks=checks)


def chosen(policy: Policy) -> tuple[AnyCheck, ...]:
    """The quick checks, without those that could only warn. Pure.

    Some of these ask slurmctld, and all nodes of a large step would do so at once.
    """
    from hpresume.health.model import Action
    from hpresume.health.registry import choose

    return tuple(
        check
        for check in choose(policy, "quick")
        if check.own_action or policy.check(check.name).action is not Action.NONE
    )


def lines(node: str, results: Iterable[Result], now: float) -> list[str]:
    """What the supervisor wants to know of the results. Pure."""
    from hpresume.health.model import Action, Status, one_line

    said, count = [], 0
    for result in results:
        count += 1
        serious = result.status is Status.FAIL and result.action is not Action.NONE
        if serious or result.status is Status.UNKNOWN:
            age = max(0.0, now - (now if result.since is None else result.since))
            evidence = one_line(result.evidence, _MOST_EVIDENCE) or "-"
            said.append(
                f"{PREFIX} {node} {result.status} {result.check} {result.action}"
                f" {age:.1f} {evidence}"
            )
    return [*said, f"{PREFIX} {node} done {count}"]


def main(age_s: float, limit_s: float) -> int:
    """Run the checks and print what they found."""
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    from hpresume.errors import HpresumeError
    from hpresume.health import runner, strikes
    from hpresume.health.env import DEFAULT_PATH
    from hpresume.health.policy import load_policy

    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    now = time.time()
    try:
        policy = adapted(load_policy(), age_s, limit_s)
    except HpresumeError as error:
        said = [f"{PREFIX} {node} unknown policy none 0 {error}", f"{PREFIX} {node} done 0"]
    else:
        environ = {"PATH": DEFAULT_PATH, **os.environ}
        me = runner.Node(environ=environ, is_root=os.geteuid() == 0)
        results = runner.run(chosen(policy), policy, me, now)
        known = strikes.read(strikes.STATE_FILE)
        results, _ = strikes.counted(results, known, policy, now)
        said = lines(node, results, time.time())
    try:
        os.write(1, ("\n".join(said) + "\n").encode(errors="replace"))
    except OSError:
        return 1
    return 0


if __name__ == "__main__":
    # Threads of checks that hang in the kernel must not hold up the end.
    os._exit(main(float(sys.argv[1]), float(sys.argv[2])))
