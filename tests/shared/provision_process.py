"""A process that provisions until it is killed: a database and a provider that outlive it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from durable_provider import DurableProvider
from provision_service import PACE, QUICK, NoScripts

from hpresume.provision.book import Book
from hpresume.provision.clock import SteadyClock
from hpresume.provision.engine import Engine
from hpresume.store import open_store


def main(url: str, machines: str) -> None:
    book = Book(open_store(url))
    clock = SteadyClock(book.latest())
    provider = DurableProvider(Path(machines))
    engine = Engine(book, provider, clock, policy=QUICK, pace=PACE, scripts=NoScripts())
    engine.run(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
