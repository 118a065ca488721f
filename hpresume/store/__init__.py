"""What the controller remembers, in SQLAlchemy: SQLite by default, PostgreSQL for a fleet.

Tables of other packages stand on ``Base``; import their modules before the store
is opened. Every write of an instance that leads carries its ``Fence``.
"""

from hpresume.store.base import Base
from hpresume.store.database import DEFAULT_URL, Store, open_store
from hpresume.store.events import Event, Level
from hpresume.store.lease import Fence, Lease

__all__ = ["DEFAULT_URL", "Base", "Event", "Fence", "Lease", "Level", "Store", "open_store"]
