"""Guards: holds on a lock, which the client renews and which may be lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from types import TracebackType

from . import _clock
from ._engine import Engine, reason
from ._request import Phase, Request
from .errors import LostError, LostReason, ServerError, UnavailableError

log = logging.getLogger("fairlock")


class Guard:
    """A hold on a lock. The client renews it in the background until you release it or until it is lost.

    Use it by `async with`, or call `release`. The error of a block wins over what becomes of its release. The block then
    waits for the reply to one call at most, and a cancelled one waits for none. The client releases in the background.
    After a block without an error a release that is not confirmed is no error either: what the block did was done under
    the lock. LostError then says that the lock had been lost before.

    A guard can be lost: when the client could not renew it within its lease, because the process was frozen or cut off
    from the server. It says so by `is_held`, `lost` and `while_held`, before the server gives the lock to anybody else.
    Between such a check and your next action the process may freeze again. Only the resource can refuse a late action, by
    the `fencing_token`.

    A guard that is garbage-collected without a release is released in the background, with a ResourceWarning.
    """

    def __init__(self, engine: Engine, request: Request, name: str) -> None:
        self._engine = engine
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._left = False
        self._is_over = False
        self._name = name
        self._token = request.token

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._name

    @property
    def fencing_token(self) -> int:
        """The number to send to the resource with every write, below 2^53.

        The resource must refuse a write whose token is smaller than the greatest one that it has seen.
        """
        return self._token

    def is_held(self) -> bool:
        """Whether the lock is certainly still held, without I/O. Once False, the answer stays False.

        "Certainly" means by this process' monotonic clock. The client sent the last confirmed renewal less than a lease
        ago, minus a fiftieth for clocks that run at different rates. On Linux the time for which the machine was suspended
        counts too. Any thread may ask.
        """
        # It changes nothing that the event loop needs, so any thread may ask. The loop may read its clock before this thread
        # does and renew the proof after it, so a False is kept.
        self._is_over |= not (self._request.phase is Phase.HELD and _clock.now() < self._request.proven)
        return not self._is_over

    async def lost(self) -> LostReason:
        """Returns when the hold is lost, and why. It never returns while the lock is held, or after its release.

        Cancellation: nothing happens. Call it again at any time.
        """
        while True:
            now = _clock.now()
            self._request.expire(now)
            if isinstance(self._request.why, LostReason):
                return self._request.why
            held = self._request.phase is Phase.HELD
            await self._request.changed.wait(self._request.proven - now if held else None)

    def while_held(self) -> WhileHeld:
        """A block that is cancelled when the lock is lost: `async with guard.while_held(): ...`.

        The block then raises LostError. It must await now and then, because only an await can be cancelled. After a
        release the block raises RuntimeError at its beginning.
        """
        return WhileHeld(self)

    async def release(self) -> None:
        """Releases the lock and waits for the server's confirmation. By then the next waiter holds it.

        Cancellation: the lock is released all the same, in the background. A task that is cancelled before its first
        step has not begun to release: use the guard as a block.

        Raises LostError if the lock had been lost before: others may have been inside at the same time.
        UnavailableError or ServerError if the server did not confirm: then the client repeats the release in the
        background until the lease must have ended.

        A second release does nothing, also if the first one was cancelled or has not been confirmed yet.
        """
        self._left = True
        await self._engine.release(self._request, self._name)

    async def __aenter__(self) -> Guard:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The hold of a copy is the parent's.
        if self._left or self._engine.is_copy():
            return
        if error is None:
            try:
                await self.release()
            except (UnavailableError, ServerError) as unconfirmed:
                # The block was done under the lock. Whoever takes an error for its failure does it twice.
                log.warning("the release of lock %r goes on in the background: %s", self._name, unconfirmed)
            return
        # The block's own error says more than what becomes of the release. A cancellation must not wait for a reply.
        self._left = True
        if isinstance(error, Exception):
            with contextlib.suppress(LostError, UnavailableError, ServerError):
                await self._engine.release(self._request, self._name, once=True)
        else:
            self._engine.leave(self._request, now=True)

    def __del__(self) -> None:
        if self._left or self._request.phase is Phase.OVER or self._engine.is_copy():
            return
        try:
            # The garbage collector may run in any thread.
            self._loop.call_soon_threadsafe(self._engine.leave, self._request)
        except RuntimeError:
            # The loop is closed, so nobody renews the hold and its lease ends.
            pass
        # At the end, because a filter may make an error of it.
        warnings.warn(f"a guard of lock {self._name!r} was dropped without release()", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        state = "held" if self.is_held() else "not held"
        return f"<fairlock.Guard of {self._name!r}: {state}, fencing token {self._token}>"


class WhileHeld:
    """See `Guard.while_held`."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._watch: asyncio.Task[None] | None = None
        self._why: LostReason | None = None
        self._cancelling = 0

    async def __aenter__(self) -> Guard:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("while_held() needs a task")
        if self._guard._left:
            raise RuntimeError(f"the guard of lock {self._guard.name!r} was released")
        if not self._guard.is_held():
            raise LostError(self._guard.name, reason(self._guard._request))
        self._cancelling = task.cancelling()
        self._watch = asyncio.create_task(self._cancel_when_lost(task))
        return self._guard

    async def _cancel_when_lost(self, task: asyncio.Task[object]) -> None:
        self._why = await self._guard.lost()
        task.cancel(f"lock {self._guard.name!r} was lost")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        if self._watch is None or task is None:
            return
        self._watch.cancel()
        if self._why is not None:
            if error is None:
                # The block ended before the cancellation reached it. It comes at the next await, which is here.
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError as cancelled:
                    error = cancelled
            ours = task.uncancel() <= self._cancelling
            if ours and (error is None or isinstance(error, asyncio.CancelledError)):
                raise LostError(self._guard.name, self._why) from error
            if error is not None and kind is None:
                raise error
        elif kind is None and not self._guard._left and not self._guard.is_held():
            raise LostError(self._guard.name, reason(self._guard._request))
