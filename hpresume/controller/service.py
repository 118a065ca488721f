"""The controller's loop: lead or wait, pass after pass, until it is told to stop."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from hpresume.errors import HpresumeError, LeadershipLostError, StoreError
from hpresume.recovery.recoverer import Passed
from hpresume.store import Fence, Lease, Store, events

log = logging.getLogger(__name__)

#: Renewals in the time of one lease.
_RENEWALS = 4.0

#: Least pause between two passes, and the longest while something is under way (s).
_SHORTEST_S = 0.05
_BUSY_S = 0.5

_FORGET_EVERY_S = 3600.0

#: Longest wait for a renewal under way when the service ends (s).
_RELEASE_S = 5.0


class Pass(Protocol):
    """Something that is done pass by pass while this instance leads."""

    def once(self) -> Passed:
        """One pass."""
        ...

    def close(self) -> None:
        """Begin nothing more."""
        ...


class Wake(Protocol):
    """Ends the pause of one pass, or of all."""

    def __call__(self, only: Pass | None = None) -> None:
        """Something has happened."""
        ...


class Service:
    """Holds the lease and runs the passes, each when it is due.

    ``passes`` makes them from this instance's fence and a function that ends the
    pause before the next pass. Each has a pause of its own: provisioning thousands of nodes must
    not make recovery ask Slurm many times a second.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        passes: Callable[[Callable[[], Fence | None], Wake], list[Pass]],
        *,
        interval_s: float,
        lease_s: float,
        keep_events_s: float,
        leads: bool = True,
    ) -> None:
        self._store = store
        self._lease = lease
        self._interval_s = interval_s
        self._lease_s = lease_s
        self._keep_events_s = keep_events_s
        self._leads = leads
        self._stopping = threading.Event()
        self._wake = threading.Event()
        #: Whether this instance led when that was told last; None before the first time.
        self._led: bool | None = None
        self._forgot_at = 0.0
        self._lock = threading.Lock()
        #: When each pass (by its id) was begun last, and when it is due (monotonic s).
        self._began: dict[int, float] = {}
        self._due: dict[int, float] = {}
        self._went_well = True
        self._passes = passes(lambda: self._lease.fence, self.wake)

    def run(self, *, once: bool = False) -> bool:
        """Run until SIGTERM or SIGINT, or for one pass; whether all went well in that."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        if self._leads:
            self._hold()
            renewing.start()
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                pause_s = self._pass()
                if once:
                    break
                self._wake.wait(pause_s)
        finally:
            for each in self._passes:
                each.close()
            self._stopping.set()
            if renewing.is_alive():
                # Else its last renewal could come behind the release.
                renewing.join(_RELEASE_S)
            if renewing.is_alive():
                log.warning("the lease is not given back: the database does not answer")
            else:
                self._release()
        return self._went_well

    def wake(self, only: Pass | None = None) -> None:
        """End the pause of one pass, or of all."""
        with self._lock:
            if only is None:
                self._due.clear()
            else:
                began = self._began.get(id(only), 0.0)
                self._due[id(only)] = min(self._due_at(only), began + _SHORTEST_S)
        self._wake.set()

    def _due_at(self, each: Pass) -> float:
        return self._due.get(id(each), 0.0)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        self._stopping.set()
        self._wake.set()

    def _pass(self) -> float:
        """All passes that are due; the pause after them (s)."""
        if self._leads and self._lease.fence is None:
            if self._led:
                self._led = False
                log.warning("this instance does not lead any more: its lease was not renewed")
            self._went_well = False
            with self._lock:
                self._due.clear()
            return min(self._interval_s, self._lease_s / _RENEWALS)
        for each in self._passes:
            with self._lock:
                now = time.monotonic()
                if self._due_at(each) > now:
                    continue
                self._began[id(each)], self._due[id(each)] = now, math.inf
            pause_s = self._one(each)
            with self._lock:
                # What woke it meanwhile has made it due.
                self._due[id(each)] = min(self._due_at(each), time.monotonic() + pause_s)
        self._forget()
        with self._lock:
            return max(0.0, min(map(self._due_at, self._passes)) - time.monotonic())

    def _one(self, each: Pass) -> float:
        """One pass; the pause before its next (s)."""
        well, self._went_well = self._went_well, False
        try:
            passed = each.once()
        except LeadershipLostError as error:
            log.warning("%s", error)
        except HpresumeError as error:
            log.warning("this pass is given up: %s", error)
        except Exception:
            log.exception("this pass is given up")
        else:
            self._went_well = well
            if passed.acted:
                return _SHORTEST_S
            if passed.busy:
                return min(self._interval_s, _BUSY_S)
        return self._interval_s

    # -- the lease -------------------------------------------------------------------

    def _renew(self) -> None:
        while not self._stopping.wait(self._lease_s / _RENEWALS):
            try:
                self._hold()
            except Exception:
                # Without this thread nobody would ever lead here again.
                log.exception("the lease cannot be renewed")

    def _hold(self) -> None:
        try:
            leads = self._lease.try_hold() is not None
        except StoreError as error:
            log.warning("the lease cannot be renewed: %s", error)
            return
        if leads != self._led:
            self._led = leads
            log.info(
                "this instance leads" if leads else "another instance leads, this one stands by"
            )
            self.wake()

    def _release(self) -> None:
        try:
            self._lease.release()
        except StoreError as error:
            log.warning("the lease is not given back: %s", error)

    def _forget(self) -> None:
        fence, now = self._lease.fence, time.time()
        if fence is None or now - self._forgot_at < _FORGET_EVERY_S:
            return
        self._forgot_at = now
        try:
            with self._store.write(fence) as session:
                events.forget(session, now - self._keep_events_s)
        except StoreError as error:
            log.warning("old events are kept: %s", error)
