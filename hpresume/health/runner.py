"""Runs checks: each within its time limit, side by side where they do not disturb each other.

A check runs in a thread that is given up when its time is over: even a read
from a file system that hangs cannot hold up the others. Checks that put the
node under load run afterwards, one at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hpresume.health.env import Cache, Env
from hpresume.health.model import Absent, AnyCheck, Broken, Result, skipped, unknown
from hpresume.health.policy import Policy

#: More than the time limit of a check: what a tool that was killed may take to die.
_SLACK_S = 1.5

#: How long a signal may be overlooked that arrives just before a wait begins.
_WAKE_S = 0.5


@dataclass(frozen=True)
class Node:
    """The node that the checks look at."""

    root: str = "/"
    environ: Mapping[str, str] = field(default_factory=dict)
    is_root: bool = False


@dataclass
class _Started:
    check: AnyCheck
    thread: threading.Thread
    until: float
    results: list[Result]


def run(
    checks: Iterable[AnyCheck],
    policy: Policy,
    node: Node,
    now: float,
    progress: Callable[[AnyCheck], None] = lambda _check: None,
) -> tuple[Result, ...]:
    """The results, in the order of the checks; never raises for what a check does.

    Where it is interrupted, the tools that it started are ended.
    """
    cache = Cache()
    try:
        return _run(tuple(checks), policy, node, now, progress, cache)
    except BaseException:  # Ctrl-C, or the signal of who started this
        cache.stop()
        raise


def _run(
    chosen: tuple[AnyCheck, ...],
    policy: Policy,
    node: Node,
    now: float,
    progress: Callable[[AnyCheck], None],
    cache: Cache,
) -> tuple[Result, ...]:
    results: dict[str, Result] = {}
    started = []
    for check in chosen:
        if not policy.check(check.name).enabled:
            reason = "switched off by the policy"
            results[check.name] = skipped(policy.check(check.name), reason)
        elif not check.load:
            started.append(_start(check, policy, node, cache, now))
    results |= {each.check.name: _result(each, policy) for each in started}
    for check in chosen:
        if check.load and check.name not in results:
            progress(check)
            results[check.name] = _result(_start(check, policy, node, cache, now), policy)
    return tuple(results[check.name] for check in chosen)


def examine(check: AnyCheck, env: Env, now: float) -> Result:
    """Gather and judge, in this thread; whatever goes wrong is Unknown."""
    try:
        raw = check.gather(env)
        if isinstance(raw, Absent):
            return skipped(env.policy, raw.reason, needs_root=raw.needs_root)
        if isinstance(raw, Broken):
            return unknown(env.policy, raw.reason)
        return check.judge(raw, env.policy, now)
    except Exception as error:
        # A check that breaks must not take the others with it, nor look like a Pass.
        return unknown(env.policy, f"the check itself failed: {type(error).__name__}: {error}")


def _start(check: AnyCheck, policy: Policy, node: Node, cache: Cache, now: float) -> _Started:
    limits = policy.check(check.name)
    until = time.monotonic() + limits.timeout_s
    env = Env(limits, until, node.root, node.environ, node.is_root, cache, now)
    results: list[Result] = []
    thread = threading.Thread(
        target=lambda: results.append(examine(check, env, now)), name=check.name, daemon=True
    )
    thread.start()
    return _Started(check, thread, until, results)


def _result(started: _Started, policy: Policy) -> Result:
    until = started.until + _SLACK_S
    while started.thread.is_alive() and (left := until - time.monotonic()) > 0:
        started.thread.join(min(left, _WAKE_S))
    limits = policy.check(started.check.name)
    if started.results:
        return started.results[0]
    return unknown(limits, f"no result within its time limit of {limits.timeout_s:g} s")
