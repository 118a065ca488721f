"""No signature changes something twice.

Real clients sign every retry afresh (botocore does, with a date of whole seconds), so a signature
comes again in three cases, told apart here:

- A retry within the second: the same ``amz-sdk-invocation-id``. It gets the first one's answer.
- Another call with the same content within the second. It is told to come again
  (ThrottlingException), once the second is over; SDKs then sign with another date.
- Somebody replays what was recorded. The signature covers no invocation id, so this is one
  of the two above: an answer that was given already, or a refusal. Nothing is done.

Signatures are remembered until the clock check would refuse them. The table is
bounded; when it is full, changes are throttled rather than a signature forgotten.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from hpresume.api.errors import ApiError

#: A different call with the same signature is answered after this long (s): the date of a
#: signature has whole seconds.
SECOND = 1.0


@dataclass(frozen=True)
class Answer:
    """An answer as it was given."""

    status: int
    body: bytes


@dataclass
class Entry:
    """One signature: ``done`` is set when its answer is there, or there will be none."""

    signature: str
    invocation: str
    expires_at: float
    answer: Answer | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ReplayTable:
    """Signatures of changes and their answers; used from one event loop only."""

    def __init__(self, max_entries: int = 20_000, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, signature: str, invocation: str, expires_at: float, now: float) -> Entry | None:
        """None for a signature that is new, and is ours from now on; else its entry.

        Times are Unix times (s). Raises ThrottlingException when the table is full.
        """
        entry = self._entries.get(signature)
        if entry is not None:
            return entry
        if len(self._entries) >= self._max_entries or self._bytes >= self._max_bytes:
            self._forget(now)
        if len(self._entries) >= self._max_entries or self._bytes >= self._max_bytes:
            raise ApiError("ThrottlingException", "Rate exceeded: too many changes in 15 minutes")
        self._entries[signature] = Entry(signature, invocation, expires_at)
        return None

    def finish(self, signature: str, answer: Answer | None) -> None:
        """Keep the answer; None lets the same signature be tried again."""
        entry = self._entries[signature]
        entry.answer = answer
        if answer is None:
            del self._entries[signature]
        else:
            self._bytes += len(answer.body)
        entry.done.set()

    def _forget(self, now: float) -> None:
        for signature in [s for s, e in self._entries.items() if e.expires_at <= now]:
            entry = self._entries.pop(signature)
            self._bytes -= len(entry.answer.body) if entry.answer else 0


async def repeat(entry: Entry, invocation: str) -> Answer | None:
    """Answer to a signature that came again; None where the first attempt came to nothing.

    Raises ThrottlingException for another call, when its second is over.
    """
    if not invocation or invocation != entry.invocation:
        await asyncio.sleep(SECOND)
        raise ApiError(
            "ThrottlingException",
            "Rate exceeded: the same change was asked for in this second; sign it again",
        )
    await entry.done.wait()
    return entry.answer
