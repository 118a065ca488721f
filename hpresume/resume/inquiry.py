"""Asking the nodes of a step that failed for their health.

In a step of its own beside whatever still runs there: unlike the watch step it may
have to share the job's GPUs, and it leaves nothing behind on the nodes.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpresume.health import after_failure
from hpresume.resume.command import neutral_environment, watch_command
from hpresume.resume.node_health import HealthReport, parse_report
from hpresume.resume.process import Child, spawn
from hpresume.resume.signals import ENDING, SignalPipe

#: From the end of the tools' time to that of srun: the checks' own slack, their start
#: and their end, on a busy node (s).
_MARGIN_S = 2.5

_LEAST_TOOL_TIME_S = 0.5
_MOST_OUTPUT = 4 << 20


def examine(
    srun: str,
    job_id: int,
    nodes: Sequence[str],
    environ: Mapping[str, str],
    signals: SignalPipe,
    *,
    age_s: float,
    limit_s: float,
    devices: bool,
) -> HealthReport:
    """Run the quick health checks on ``nodes``, side by side, within ``limit_s``.

    ``age_s``: how long ago the attempt began; older faults in the kernel's log do not
    count. ``devices``: the checks see the job's GPUs only if they share them. A signal
    that asks to end ends this at once.
    """
    deadline = time.monotonic() + limit_s
    report = HealthReport((), tuple(nodes))
    for shared in (True, False) if devices else (False,):
        left = deadline - time.monotonic()
        tools = max(_LEAST_TOOL_TIME_S, left - _MARGIN_S)
        program = [sys.executable, "-I", "-S", after_failure.__file__]
        program += [f"{age_s + after_failure.CLOCK_SLACK_S:.1f}", f"{tools:.1f}"]
        command = watch_command(srun, job_id, nodes, program, devices=shared)
        output, signum = _run(command, neutral_environment(environ), deadline, signals)
        report = parse_report(output, nodes, time.time())
        if signum:
            return replace(report, interrupted=signal.Signals(signum).name)
        if len(report.silent) < len(nodes):
            break
    return report


def _run(
    command: list[str], environ: dict[str, str], deadline: float, signals: SignalPipe
) -> tuple[str, int]:
    """Standard output of ``command``, dead by ``deadline``; the signal that came (0: none)."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        child = spawn(
            command, environ, stdin=nothing, stdout=writer, stderr=nothing, own_group=True
        )
    except OSError:
        return "", 0  # srun itself is gone: nothing is known
    else:
        os.close(writer)
        writer = -1
        output, signum = _collect(child, reader, deadline, signals)
        return output.decode(errors="replace"), signum
    finally:
        for fd in (nothing, reader, writer):
            if fd >= 0:
                os.close(fd)


def _collect(child: Child, reader: int, deadline: float, signals: SignalPipe) -> tuple[bytes, int]:
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    poller.register(signals.fd, select.POLLIN)
    output = b""
    try:
        while (left := deadline - time.monotonic()) > 0 and len(output) < _MOST_OUTPUT:
            ready = {fd for fd, _ in poller.poll(left * 1000)}
            for received in signals.read() if signals.fd in ready else ():
                if received.signum in ENDING or received.signum == signal.SIGINT:
                    return output, received.signum
            if reader in ready:
                part = os.read(reader, 65536)
                if not part:
                    break
                output += part
    finally:
        child.send(signal.SIGKILL)
        child.wait()
    return output, 0
