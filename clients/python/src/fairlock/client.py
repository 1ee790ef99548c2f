"""A client: two connections to a server, for all locks of a process."""

from __future__ import annotations

import ssl
from types import TracebackType

from ._connection import Address
from ._engine import Engine, Settings
from ._names import checked_label, checked_prefix, checked_seconds, keys
from .errors import ClosedError, InvalidInputError
from .locks import Policy, RwLock, Semaphore, checked_limit

DEFAULT_LEASE = 10.0


class Client:
    """A connected client. One per process and event loop is enough, whatever the number of locks.

    It belongs to the event loop in which it was connected, and is not for other threads. In a child of os.fork() it
    sends nothing: connect another one there.

    `url`: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, `rediss://` for TLS, or `unix:///PATH`.
    `lease`: seconds, 0.1 to a year. A crash costs the others at most one lease. The client renews every third of it.
    `prefix`: of all keys and channels. All users of a lock name the same.
    `label`: what status shows beside host and process number; up to 128 printable ASCII characters without spaces.
    `quarantine`: seconds; 0 is none. A server that has restarted may have forgotten holds. For so long after it was
    first seen it grants no lock that looks free. Use the longest lease of all clients.
    `tls`: a context of your own for `rediss://`.

    Raises InvalidInputError for an argument that is refused.
    """

    def __init__(
        self,
        url: str,
        *,
        lease: float = DEFAULT_LEASE,
        prefix: str = "fairlock",
        label: str = "",
        quarantine: float = 0.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not 0 <= quarantine <= 365 * 24 * 3600.0:
            raise InvalidInputError(f"quarantine of {quarantine!r} s is refused: it must be 0 s to a year")
        self._settings = Settings(
            address=Address.of_url(url, tls, checked_label(label)),
            prefix=checked_prefix(prefix),
            lease=checked_seconds("lease", lease),
            label=label,
            quarantine=float(quarantine),
        )
        self._engine: Engine | None = None
        # While it connects.
        self._starting: Engine | None = None

    async def connect(self) -> Client:
        """Connects, and returns the client. `async with` does it too.

        Raises UnavailableError if the server is not there, ServerError if it refuses. Cancellation: nothing is left.
        """
        if self._engine is not None or self._starting is not None:
            raise ClosedError("the client was connected before")
        engine = self._starting = Engine(self._settings)
        try:
            await engine.start()
        finally:
            self._starting = None
        self._engine = engine
        return self

    async def close(self) -> None:
        """Leaves every queue, releases every hold, closes the connections. It waits for the server for 2 s at most.

        Acquisitions that wait raise ClosedError, and so does a `connect` that is under way. Cancellation: the connections
        are closed, and leases expire.
        """
        engine = self._engine or self._starting
        if engine is not None:
            await engine.close()

    def rw_lock(self, name: str, *, policy: Policy = Policy.FIFO) -> RwLock:
        """The lock with this name, of 1 to 1024 bytes of UTF-8."""
        return RwLock(name, self._connected(), keys(self._settings.prefix, name), policy)

    def semaphore(self, name: str, limit: int) -> Semaphore:
        """The semaphore with this name, of `limit` permits, 1 to 10^9."""
        checked_limit(name, limit)
        return Semaphore(name, limit, self._connected(), keys(self._settings.prefix, name))

    def _connected(self) -> Engine:
        if self._engine is None:
            raise ClosedError("the client is not connected")
        return self._engine

    async def __aenter__(self) -> Client:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
