"""Locks and semaphores by name, and one acquisition."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import Any

from ._engine import Engine, Wish
from ._names import MOST_PERMITS, LockKeys
from .errors import InvalidInputError
from .guard import Guard


class Policy(Enum):
    """Who enters first. All users of a lock name the same policy."""

    FIFO = ""
    WRITERS_FIRST = "w"
    READERS_FIRST = "r"


class Acquire:
    """One acquisition, which has not begun. It begins when it is awaited, and each await is a request of its own.

    `guard = await lock.write()` waits for its turn. `async with lock.write() as guard:` does so too and releases at
    the end of the block. `guard = await lock.write().try_acquire()` does not wait.

    It is no coroutine: `asyncio.ensure_future(lock.write())` makes a task of it, and `asyncio.create_task` refuses it.

    A time limit is asyncio's: `async with asyncio.timeout(5): guard = await lock.write()`.

    Cancellation, at any await: the request leaves the queue, and if it was granted meanwhile, the lock is released in
    the background. The place in the queue is lost.

    Errors: LostError if an operator evicted the owner. PolicyMismatchError, QueueFullError, OwnerWaitingError,
    OwnerReadsError if the server refuses. UnavailableError if the server did not reply to the request for a lease's
    time. While a request waits in the queue, an outage does not end it. ServerError for errors that do not end by
    themselves.
    """

    def __init__(self, engine: Engine, wish: Wish) -> None:
        self._engine = engine
        self._wish = wish
        self._guard: Guard | None = None
        # A block has begun to acquire, and has not ended.
        self._in_use = False

    def __await__(self) -> Generator[Any, Any, Guard]:
        return self._acquire().__await__()

    async def _acquire(self) -> Guard:
        request = await self._engine.acquire(self._wish)
        assert request is not None  # only a try may find the lock busy
        return Guard(self._engine, request, self._wish.name)

    async def try_acquire(self) -> Guard | None:
        """Enters at once or not at all. None: the lock is busy, or others wait. The request does not queue.

        Cancellation and errors are as for the acquisition.
        """
        request = await self._engine.acquire(self._wish, only_now=True)
        return None if request is None else Guard(self._engine, request, self._wish.name)

    async def __aenter__(self) -> Guard:
        if self._in_use:
            raise RuntimeError("this acquisition is in use; call write(), read() or permits() once for each block")
        self._in_use = True
        try:
            self._guard = await self._acquire()
        except BaseException:
            self._in_use = False
            raise
        return self._guard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        guard, self._guard, self._in_use = self._guard, None, False
        if guard is not None:
            await guard.__aexit__(kind, error, trace)


@dataclass(frozen=True)
class RwLock:
    """A read/write lock by its name: `Client.rw_lock` makes it. It is cheap, and has no state of its own."""

    name: str
    _engine: Engine
    _keys: LockKeys
    _policy: Policy = Policy.FIFO
    _owner: uuid.UUID | None = None

    def with_owner(self, owner: uuid.UUID) -> RwLock:
        """The same lock for a named owner, whose requests reenter what the owner holds, also in other processes.

        An owner that writes may read and write again. An owner that only reads may read again. To write, it releases
        its read holds first. Tasks that wait side by side need an owner each. `uuid.uuid4()` makes one.
        """
        if not isinstance(owner, uuid.UUID):
            raise InvalidInputError(f"owner {owner!r} is refused: it must be a uuid.UUID, such as uuid.uuid4()")
        lock = replace(self, _owner=owner)
        lock._wish(True, None).owner_suffix()
        return lock

    def write(self, *, max_queue: int | None = None) -> Acquire:
        """Acquires to write: nobody else is inside. With `max_queue` it does not queue behind so many waiters."""
        return Acquire(self._engine, self._wish(True, max_queue))

    def read(self, *, max_queue: int | None = None) -> Acquire:
        """Acquires to read, beside other readers. With `max_queue` it does not queue behind so many waiters."""
        return Acquire(self._engine, self._wish(False, max_queue))

    def _wish(self, writes: bool, max_queue: int | None) -> Wish:
        return Wish(
            self.name, self._keys, writes, self._owner, self._policy.value, 1, _checked_queue(self.name, max_queue)
        )


@dataclass(frozen=True)
class Semaphore:
    """So many permits at a time, strictly in order: `Client.semaphore` makes it. All users name the same limit."""

    name: str
    limit: int
    _engine: Engine
    _keys: LockKeys

    def permits(self, permits: int = 1, *, max_queue: int | None = None) -> Acquire:
        """Acquires so many permits. With `max_queue` it does not queue behind so many waiters."""
        if not 1 <= permits <= self.limit:
            raise InvalidInputError(f"{permits} permits of {self.name!r} are refused: it has 1 to {self.limit}")
        queue = _checked_queue(self.name, max_queue)
        return Acquire(self._engine, Wish(self.name, self._keys, False, None, f"n{self.limit}", permits, queue))


def checked_limit(name: str, limit: int) -> int:
    if not 1 <= limit <= MOST_PERMITS:
        raise InvalidInputError(f"limit {limit} of semaphore {name!r} is refused: it must be 1 to {MOST_PERMITS}")
    return limit


def _checked_queue(name: str, max_queue: int | None) -> int | None:
    if max_queue is not None and not 0 <= max_queue < 2**53:
        raise InvalidInputError(f"max_queue {max_queue} of lock {name!r} is refused: it must be 0 or greater")
    return max_queue
