"""The supervisor's line to the controller, where there is one.

Everything here is best effort: without a controller a step is protected as it
always was. Messages that nobody waits for go out in a thread; the others are bounded
in time. Loaded after the step has begun to be watched, and only where the setting
``controller`` names one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from hpresume.errors import CredentialError
from hpresume.resume.message import PATH, Blames, Message, Protects, Requeues, encode
from hpresume.resume.model import NodeFault, Sign
from hpresume.resume.report import say

#: Longest wait for one answer (s). The controller asks slurmctld, and for a requeue it
#: makes a reservation, before it answers.
_ANSWER_S = 5.0

#: Pauses before a registration is tried again (s): a controller may be taking over.
_AGAIN_S = (5.0, 20.0, 60.0)

#: How long an end waits for what is still to be sent (s).
_FLUSH_S = 1.0

#: Nodes with these signs are told of: their machines are to blame.
_TOLD = (Sign.LOST, Sign.FROZEN, Sign.UNHEALTHY)

#: Answers with which another try may have another end.
_BUSY = (429, 500, 502, 503, 504)


class Controller:
    """``urls`` as the setting has them: one, or several separated by commas."""

    def __init__(self, urls: str) -> None:
        self._urls = [url.strip() for url in urls.split(",") if url.strip()]
        self._warned = False
        self._told: set[str] = set()
        self._sending: list[threading.Thread] = []
        #: Whether it has taken this job under its watch.
        self.watches = False

    def protect(self, job_id: int, batch_host: str, within_s: float) -> None:
        """Have the host of the job's batch script watched; in the background.

        ``within_s``: after its loss the job should run again in so many seconds.
        """
        if self._urls:
            self._background(lambda: self._register(job_id, batch_host, within_s))

    def blame(self, job_id: int | None, faults: Iterable[NodeFault]) -> None:
        """Tell of nodes that the step leaves, once of each; in the background."""
        new = [f for f in faults if f.sign in _TOLD and f.node not in self._told]
        if not self._urls or job_id is None or not new:
            return
        self._told.update(f.node for f in new)
        messages = [Blames(job_id, f.node, f.sign.value, f.evidence) for f in new]

        def send() -> None:
            for message in messages:
                self._post(message)

        self._background(send)

    def requeue(self, request: Requeues) -> bool:
        """Have the places of a job kept that is to be requeued, and the job brought back.

        Whether the controller will; takes up to some seconds.
        """
        return bool(self._urls) and self._post(request) == ""

    def flush(self) -> None:
        """Give what is being sent a moment; the process is about to end."""
        deadline = time.monotonic() + _FLUSH_S
        for thread in self._sending:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- inner ---------------------------------------------------------------------

    def _background(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="controller", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the user's limit of processes counts threads
            return
        self._sending = [t for t in self._sending if t.is_alive()] + [thread]

    def _register(self, job_id: int, batch_host: str, within_s: float) -> None:
        for pause in (*_AGAIN_S, None):
            trouble = self._post(Protects(job_id))
            if not trouble:
                if not self.watches:
                    say(
                        f"the controller watches {batch_host}, which runs the batch script: after"
                        f" its loss the job runs again in about {within_s:.0f} s"
                    )
                self.watches = True
                return
            if pause is None or not trouble.startswith("?"):
                break
            time.sleep(pause)
        if not self._warned:
            self._warned = True
            say(f"warning: no controller watches over this job: {trouble.removeprefix('?')}")

    def _post(self, message: Message) -> str:
        """Send to the first that takes it: empty, or why none does ("?…": it may later)."""
        from http.client import HTTPConnection, HTTPException
        from urllib.parse import urlsplit

        from hpresume.slurm.credential import sign

        body = encode(message)
        trouble = ""
        for url in self._urls:
            parts = urlsplit(url)
            connection = HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
            try:
                # One for each: munged takes a credential once.
                headers = {"Authorization": f"MUNGE {sign(body)}"}
                headers["Content-Type"] = "application/json"
                connection.request("POST", PATH, body, headers)
                answer = connection.getresponse()
                said = answer.read(1000).decode(errors="replace").strip()
            except (OSError, HTTPException) as error:
                trouble = f"?{url}: {error}"
                continue
            except CredentialError as error:
                return str(error)
            finally:
                connection.close()
            if answer.status < 300:
                return ""
            mark = "?" if answer.status in _BUSY else ""
            trouble = f"{mark}{url}: {said or answer.reason}"
            if not mark:
                return trouble
        return trouble
