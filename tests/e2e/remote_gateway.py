"""A gateway that answers from inside a development cluster.

``RemoteGateway(cluster, backend, user)`` has the methods of ``SlurmGateway``;
each call runs in one process on a host of the cluster, as an ordinary user, in
a working directory of that user, and its result or its exception comes back.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster import E2eCluster


class RemoteGateway:
    """Calls over the pipes of a process inside the cluster."""

    def __init__(
        self,
        cluster: E2eCluster,
        backend: str = "cli",
        user: str = "trainer",
        node: str | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.interpreter = sys.executable
        self.environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(env or {})}
        self.process = cluster.popen(
            [self.interpreter, __file__, backend],
            node,
            user,
            env=self.environment,
            stdin=subprocess.PIPE,
            text=False,
        )
        self.ready = self._read()
        self.call_s = 0.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.start(name, *args, **kwargs)
            return self.result()

        return call

    def start(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Begin a call; ``result`` waits for its end."""
        assert self.process.stdin is not None
        pickle.dump((name, args, kwargs), self.process.stdin)
        self.process.stdin.flush()

    def result(self) -> Any:
        """What the call gave; raises what it raised."""
        kind, value, self.call_s = self._read()
        if kind == "raised":
            raise value
        return value

    def close(self) -> None:
        """End the process inside the cluster."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=10)

    def _read(self) -> Any:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        try:
            return pickle.load(self.process.stdout)
        except EOFError:
            said = self.process.stderr.read()
            raise AssertionError(f"the process in the cluster died: {said!r}") from None


def serve(backend: str) -> None:
    """Answer calls from standard input until it ends."""
    from hpresume.slurm.select import open_gateway

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    gateway = open_gateway(backend)
    pickle.dump(type(gateway).__name__, answers)
    answers.flush()
    while True:
        try:
            name, args, kwargs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        started = time.perf_counter()
        try:
            answer = ("returned", getattr(gateway, name)(*args, **kwargs))
        except BaseException as error:
            answer = ("raised", error)
        pickle.dump((*answer, time.perf_counter() - started), answers)
        answers.flush()


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    serve(sys.argv[1])
