"""What comes of a report about a node. Pure.

A report is a reason to look, and no more: what is done rests on what this
controller has seen itself. Taking the node out of service, with a reason that node
recovery reads as it reads any other, is all that is ever done here.
"""

from __future__ import annotations

from hpresume.jobs.model import Action, Check, Close, Policy, Report, SetNode, Snapshot
from hpresume.recovery.model import Trouble, lately
from hpresume.recovery.wanted import is_allowed_by
from hpresume.resume.model import Sign

Actions = tuple[Action, ...]


def judge(
    report: Report,
    snapshot: Snapshot,
    lost: frozenset[str],
    policy: Policy,
    now: float,
    taken: set[str],
) -> Actions:
    """The next step for a report; ``taken`` are nodes that a report of this pass is about."""
    name = report.node
    if name in taken:
        return (Close(report, "another report is about the same node"),)
    taken.add(name)
    node = snapshot.nodes.get(name)
    if not is_allowed_by(name, policy.allowed, policy.denied):
        return (Close(report, "the configuration forbids it"),)
    if node is None or not node.is_usable:
        return (Close(report, "the node is out of service already"),)
    if name in lost:
        return _dead(report, snapshot, policy, now)
    if name in snapshot.silent or name not in snapshot.asked:
        return _expired(report, policy, now, "whether the node is lost did not become clear")
    if report.sign != Sign.UNHEALTHY.value:
        return (Close(report, "the node answers: nothing is done"),)
    return _unhealthy(report, snapshot, policy, now)


def _dead(report: Report, snapshot: Snapshot, policy: Policy, now: float) -> Actions:
    jobs = snapshot.holders.get(report.node, ())
    if any(job.waits for job in jobs):
        return (Close(report, "a job waits for the node: its recovery sees to it"),)
    others = [job.job_id for job in jobs if not job.completing]
    if others:
        # slurmctld declares it DOWN in its own time.
        return _expired(report, policy, now, f"job {others[0]} holds the node")
    reason = f"Not responding: hpresume: silent, left by job {report.job_id}"
    down = SetNode(report.node, "DOWN", reason)
    return (down, Close(report, "the node is dead: set DOWN", acted=True))


def _unhealthy(report: Report, snapshot: Snapshot, policy: Policy, now: float) -> Actions:
    name = report.node
    outcome = snapshot.outcomes.get(name)
    if outcome is not None:
        if outcome.trouble is Trouble.FAULT:
            mark = SetNode(name, "FAIL", f"Action:Replace [hpresume report] {outcome.words}")
            return (mark, Close(report, f"it is unhealthy: {outcome.words}", acted=True))
        verdict = "no verdict" if outcome.trouble else "it is healthy"
        return (Close(report, f"{verdict}: {outcome.words}"),)
    if name in snapshot.checking:
        return ()
    if lately(snapshot.checked.get(name, float("-inf")), policy.check_again_s, now):
        return (Close(report, "the node was checked a moment ago"),)
    holders = snapshot.holders.get(name, ())
    if holders:
        why = f"the node was not free of jobs ({holders[0].job_id}), so it was not checked"
        return _expired(report, policy, now, why)
    if len(snapshot.checking) >= policy.max_checks:
        return ()
    return (Check(report),)


def _expired(report: Report, policy: Policy, now: float, why: str) -> Actions:
    return (Close(report, why),) if now - report.at > policy.report_s else ()
