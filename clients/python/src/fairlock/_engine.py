"""The engine of a client: it asks for locks, renews, releases, and looks after what scripts left to do.

Every request stands in a table from before its acquire is sent until its release was answered. One task, the watchdog,
renews whatever waits or holds, and releases whatever nobody wants any more. So a task that is cancelled leaves its
request to the watchdog and needs no further await.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from . import _clock
from ._connection import Address, Disconnected, NotSentError
from ._names import LockKeys, is_state, owner_name, read_message, read_request
from ._request import DISPLACED, RELEASED, Phase, Refused, Request, Signal
from ._resp import MalformedError, ReplyError, Word, integers
from ._session import MOST_PAUSE, Answer, Session, is_transient
from ._subscription import Subscription
from .errors import (
    ClosedError,
    LostError,
    LostReason,
    OwnerReadsError,
    OwnerWaitingError,
    PolicyMismatchError,
    QueueFullError,
    ServerError,
    UnavailableError,
)

log = logging.getLogger("fairlock")

# Requests in one call, and calls that the watchdog has under way at a time.
CHUNK = 500
CALLS = 64
RETRY_SECONDS = 0.05
# A grant that nobody heard has no longer lease.
GRACE_MS = 1000
# So long the client looks after such leases.
FOLLOWED_SECONDS = 60.0
INTRODUCED_EVERY = 30.0
LONGEST_SLEEP = 1.0

POLICIES = {
    0: "first come, first served",
    ord("w"): "with writers first",
    ord("r"): "with readers first",
    ord("n"): "as a semaphore, or with max_readers",
}


@dataclass(frozen=True)
class Settings:
    """What a user chooses for a client. Times are in seconds."""

    address: Address
    prefix: str
    lease: float
    label: str
    quarantine: float

    @property
    def patience(self) -> float:
        """After so long a silence a connection counts as dead."""
        return min(max(self.lease / 3, 0.1), 2.0)


@dataclass(frozen=True)
class Wish:
    """What one acquire asks for."""

    # As its user named it.
    name: str
    lock: LockKeys
    writes: bool
    owner: uuid.UUID | None
    # The letters of the policy, with the limit of a bounded lock.
    policy: str
    weight: int
    max_queue: int | None

    def owner_suffix(self) -> str:
        """What follows the number in the request's name."""
        if self.owner is not None:
            return f":{owner_name(self.owner)}"
        return f":*{self.weight}" if self.weight > 1 else ""


# Why a call failed, other than by a bug.
FAILURES = (Disconnected, ReplyError, MalformedError)


class Engine:
    """One connected client."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.id = f"{secrets.randbits(60):015x}"
        self._number = 0
        # By number: requests that are not over, or not yet released.
        self._requests: dict[int, Request] = {}
        # By number: what to release in the background, each with the end of its lease, the next attempt, and the pauses
        # between attempts.
        self._left: dict[int, tuple[Request, float, float, Iterator[float]]] = {}
        # Locks with a waiter here: when a lease of somebody else ends.
        self._looks: dict[LockKeys, float] = {}
        # Locks with or without a waiter here: when a cut lease ends, and until when such looks may follow each other.
        self._follow_ups: dict[LockKeys, tuple[float, float]] = {}
        self._forgotten = Signal()
        self._kick = Signal()
        self._wakes_at = 0.0
        self._introduced = 0.0
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        address, patience, prefix = settings.address, settings.patience, settings.prefix
        self._session = Session(address, prefix, patience, settings.quarantine)
        self._subscription = Subscription(
            address, patience, f"{prefix}:c:{self.id}", f"{prefix}:listen", self._heard, self._subscribed
        )
        self._session.on_left = self._subscription.close

    def is_copy(self) -> bool:
        """Whether this is the copy in a child of fork(). The requests are the parent's, and so are the sockets."""
        return self._session.is_copy()

    # ---- begin and end

    async def start(self) -> None:
        """Connects and subscribes, because a subscription must exist before the first acquire."""
        try:
            await self._session.link()
            await self._subscription.subscribe(self._session)
            if self._closed:
                raise Disconnected("the client is closed")
        except BaseException as error:
            self._session.close()
            self._subscription.close()
            if isinstance(error, FAILURES) and self._closed:
                raise ClosedError("the client was closed while it connected") from error
            if isinstance(error, FAILURES) and _passes(error):
                raise UnavailableError("cannot connect", error) from error
            if isinstance(error, (ReplyError, MalformedError)):
                raise ServerError("cannot connect", str(error)) from error
            raise
        for task in (self._keep(), self._subscription.run(self._session)):
            self._spawn(task)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        task.add_done_callback(_report)
        self._tasks.append(task)

    async def close(self) -> None:
        """Leaves every queue and releases every hold. What the server does not confirm in time expires with its lease.
        """
        if self._closed or self.is_copy():
            return
        self._closed = True
        requests = [request for request in self._requests.values() if request.sent]
        for task in self._tasks:
            task.cancel()
        for request in list(self._requests.values()):
            request.end(LostReason.CLOSED)
        calls = [self._release_all(lock, chunk) for lock, chunk in _chunks(requests)]
        if self._tasks:  # otherwise it has not connected yet
            calls.append(self._end_introduction())
        try:
            async with asyncio.timeout(max(2.0, self.settings.patience)):
                # One failure keeps no other call from the server.
                results = await asyncio.gather(*calls, return_exceptions=True)
            errors = [error for error in results if isinstance(error, BaseException)]
            if errors:
                raise next((error for error in errors if not isinstance(error, FAILURES)), errors[0])
        except (*FAILURES, TimeoutError) as error:
            log.warning("closed without the server's confirmation, so leases have to expire: %s", error)
        finally:
            self._session.close()
            self._subscription.close()
            self._forgotten.notify()

    async def _end_introduction(self) -> None:
        await self._session.command("DEL", f"{self.settings.prefix}:client:{self.id}")

    async def _release_all(self, lock: LockKeys, requests: list[Request]) -> None:
        answer = await self._script("release", lock, "", *(request.name for request in requests))
        next_ms = _released(answer, len(requests))[1]
        while next_ms == 0:
            next_ms = integers((await self._script("renew", lock, "")).reply)[0]

    # ---- calls

    async def _script(
        self, name: str, lock: LockKeys, options: str, *args: Word, about: Request | None = None
    ) -> Answer:
        if self._subscription.listens(lock.state):
            options += "e"
        return await self._session.script(name, lock, options, *args, about=about)

    # ---- acquire

    async def acquire(self, wish: Wish, *, only_now: bool = False) -> Request | None:
        """Returns a request that holds. None: a try found the lock busy.

        If the task is cancelled at any await, the request is left to the watchdog, which releases it.
        """
        ticket = 0
        self._refuse_copy()
        while True:
            if self._closed:
                raise ClosedError("the client is closed")
            await self._until_owner_is_free(wish)
            request = self._register(wish)
            try:
                if not await self._ask(request, wish, ticket, only_now):
                    return None
                if await self._until_held(request, wish.name):
                    return request
            except BaseException:
                self.leave(request)
                raise
            # The server does not know it any more. It asks again, with its ticket.
            self._forget(request)
            ticket = ticket or request.ticket or request.token

    async def _until_owner_is_free(self, wish: Wish) -> None:
        """At most one request of a named owner may wait, so a cancelled one has to be released before."""
        suffix = wish.owner_suffix()
        while wish.owner is not None:
            same = [
                request
                for request in self._requests.values()
                if request.lock == wish.lock and request.name.endswith(suffix)
            ]
            # Then the owner reenters, whatever it reads.
            writes = any(not request.reads and request.phase is Phase.HELD for request in same)
            for request in same:
                if request.phase is Phase.WAITING:
                    raise OwnerWaitingError(wish.name)
                if wish.writes and not writes and request.reads and request.phase is not Phase.OVER:
                    raise OwnerReadsError(wish.name)
            if not any(request.phase is Phase.OVER for request in same):
                return
            await self._forgotten.wait()
            if self._closed:
                raise ClosedError("the client is closed")

    def _refuse_copy(self) -> None:
        if self.is_copy():
            raise ClosedError("the client is the copy of another process's, after fork()")

    def _register(self, wish: Wish) -> Request:
        """Before the call is sent, so that no message comes too early."""
        self._number += 1
        name = f"{'w' if wish.writes else 'r'}{self.id}:{self._number}{wish.owner_suffix()}"
        request = Request(self._number, name, wish.lock, self.settings.lease, _clock.now())
        self._requests[self._number] = request
        return request

    async def _ask(self, request: Request, wish: Wish, ticket: int, only_now: bool) -> bool:
        """Sends the acquire until it is answered. False: a try found the lock busy."""
        options = wish.policy + ("t" if only_now else "")
        if wish.max_queue is not None and not ticket:
            options += f"m{wish.max_queue}"
        patience = _clock.now() + request.lease
        pauses = _growing()
        sendings = 0
        while True:
            sendings += 1
            try:
                answer = await self._script(
                    "acquire", wish.lock, options, request.name, request.lease_ms, ticket or "", about=request
                )
                status, value, next_ms, seq = _acquired(answer)
                if sendings > 1 and next_ms is None:
                    next_ms = GRACE_MS  # the reply that was lost may have told when to look again
            except Disconnected as error:
                if self._closed:
                    raise ClosedError("the client is closed") from error
                if request.phase is Phase.OVER:
                    return True  # evicted: an earlier sending has arrived
                if _clock.now() >= patience:
                    raise UnavailableError(f"lock {wish.name!r}", error) from error
            except (ReplyError, MalformedError) as error:
                if not isinstance(error, ReplyError) or not is_transient(error):
                    raise ServerError(f"lock {wish.name!r}", str(error)) from error
                if _clock.now() >= patience:
                    raise UnavailableError(f"lock {wish.name!r}", error) from error
            else:
                if status in (1, 2):
                    self._stands(request, answer.sent, status, value, next_ms, seq)
                    return True
                is_orphan = status == -2 and self._is_orphan(value)
                if is_orphan and await self._end_orphan(wish, value):
                    continue
                # The orphan is still there, so the next sending comes after a pause.
                if not is_orphan or _clock.now() >= patience:
                    # An earlier sending may still be on its way.
                    if sendings > 1:
                        self.leave(request)
                    else:
                        self._forget(request)
                    self._note_next(wish.lock, next_ms)
                    self._raise_refusal(wish, status, value)
                    return False
            await asyncio.sleep(next(pauses))

    def _stands(self, request: Request, sent: float, status: int, value: int, next_ms: int | None, seq: int) -> None:
        """Takes in that the server has queued or granted the request."""
        if status == 2:
            request.entered(sent, value)
        else:
            request.queued(sent, value, seq)
            self._look(request.lock, next_ms)
        self._note_next(request.lock, next_ms)
        self._schedule(request.due)

    def _is_orphan(self, number: int) -> bool:
        """Whether nobody wants this request of ours: the server executed its acquire after its release."""
        request = self._requests.get(number)
        return 0 < number <= self._number and (request is None or request.phase is Phase.OVER)

    async def _end_orphan(self, wish: Wish, number: int) -> bool:
        """Whether the server has confirmed its release."""
        names = [f"{mode}{self.id}:{number}{wish.owner_suffix()}" for mode in "rw"]
        try:
            self._note_next(wish.lock, _released(await self._script("release", wish.lock, "", *names), len(names))[1])
        except FAILURES as error:
            log.debug("an orphan was not released, so the next attempt meets it again: %s", error)
            return False
        return True

    @staticmethod
    def _raise_refusal(wish: Wish, status: int, value: int) -> None:
        if status == -1:
            raise OwnerReadsError(wish.name)
        if status == -2:
            raise OwnerWaitingError(wish.name)
        if status == -3:
            raise PolicyMismatchError(wish.name, POLICIES.get(value, f"with the policy {value}"))
        if status == -5:
            raise QueueFullError(wish.name, value)
        if status != 0:
            raise ServerError(f"lock {wish.name!r}", f"status {status}")

    async def _until_held(self, request: Request, name: str) -> bool:
        """True: it holds. False: the server does not know it any more, so that it has to ask again."""
        while True:
            now = _clock.now()
            if request.phase is Phase.GRANTED and request.proven > now:
                request.hold()
                self._schedule(min(request.due, request.proven))
                return True
            if request.phase is Phase.GRANTED:
                # The proof has ended: renew first.
                request.due = min(request.due, now)
                self._schedule(request.due)
            elif request.phase is Phase.OVER:
                if request.why is DISPLACED:
                    return False
                if isinstance(request.why, Refused):
                    raise ServerError(f"lock {name!r}", request.why.reply)
                if request.why is LostReason.CLOSED:
                    raise ClosedError("the client was closed")
                raise LostError(name, reason(request))
            await request.changed.wait()

    # ---- release

    async def release(self, request: Request, name: str, *, once: bool = False) -> None:
        """Ends a hold. Raises LostError if it was lost before.

        Whatever becomes of this call, also if its task is cancelled, the watchdog releases what was not confirmed. A
        second call does nothing. `once`: it waits for one reply and not until the lease must have ended.
        """
        self._refuse_copy()
        if request.why is RELEASED:
            return
        if once and not self._session.is_linked():
            return self.leave(request)
        request.expire(_clock.now())
        if request.phase is not Phase.HELD:
            self.leave(request)
            raise LostError(name, reason(request))
        held_until = _clock.now() if once else request.proven
        # From here on nobody renews it.
        request.end(RELEASED)
        try:
            stood, lost_reply = await self._release(request, name, held_until)
        except BaseException:
            self.leave(request)
            raise
        self._forget(request)
        if not lost_reply and not 1 < stood <= request.token:
            raise LostError(name, LostReason.UNKNOWN_TO_SERVER)

    async def _release(self, request: Request, name: str, held_until: float) -> tuple[int, bool]:
        """How the request stood, and whether an earlier sending got no reply."""
        lost_reply = False
        pauses = _growing()
        while True:
            try:
                answer = await self._script("release", request.lock, "", request.name)
                (stood,), next_ms = _released(answer, 1)
                self._note_next(request.lock, next_ms)
                return stood, lost_reply
            except Disconnected as error:
                lost_reply |= not isinstance(error, NotSentError)
                if self._closed or _clock.now() >= held_until:
                    raise UnavailableError(f"release of lock {name!r}", error) from error
            except (ReplyError, MalformedError) as error:
                if not isinstance(error, ReplyError) or not is_transient(error):
                    raise ServerError(f"release of lock {name!r}", str(error)) from error
                if _clock.now() >= held_until:
                    raise UnavailableError(f"release of lock {name!r}", error) from error
            await asyncio.sleep(next(pauses))
            if self._closed:  # which may have released it
                raise UnavailableError(f"release of lock {name!r}", ClosedError("the client is closed"))

    def leave(self, request: Request, *, now: bool = False) -> None:
        """Releases it in the background, until its lease must have ended.

        `now`: the release is sent at once, too, because the event loop may end before its next turn.
        """
        if self.is_copy():
            return
        request.end(RELEASED)
        if request.number not in self._requests or request.number in self._left:
            return
        if not request.sent:
            self._forget(request)
            return
        if now:
            self._session.post("release", request.lock, "", request.name)
        begun = _clock.now()
        self._left[request.number] = (request, begun + request.lease, begun, _growing())
        self._schedule(begun)

    def _forget(self, request: Request) -> None:
        self._requests.pop(request.number, None)
        self._left.pop(request.number, None)
        self._forgotten.notify()

    # ---- the watchdog

    def _schedule(self, at: float) -> None:
        if at < self._wakes_at:
            self._kick.notify()

    def _look(self, lock: LockKeys, next_ms: int | None) -> None:
        """A lease of another request ends then: checks whether one of ours enters."""
        if next_ms is not None and next_ms >= 0:
            at = _clock.now() + next_ms / 1000
            self._looks[lock] = min(self._looks.get(lock, at), at)
            self._schedule(at)

    def _note_next(self, lock: LockKeys, next_ms: int | None, until: float | None = None) -> None:
        """A script stopped at its limit, or cut a lease that ends soon. Perhaps nobody else knows.

        `until`: when this chain of looks ends, because leases that are short follow each other for ever. None: a chain
        begins. A look that is planned already stays planned, whatever this reply tells.
        """
        now = _clock.now()
        until = now + FOLLOWED_SECONDS if until is None else until
        if next_ms is not None and 0 <= next_ms <= GRACE_MS and now < until:
            self._follow_up(lock, now + next_ms / 1000, until)

    def _follow_up(self, lock: LockKeys, at: float, until: float) -> None:
        planned_at, planned_until = self._follow_ups.get(lock, (at, until))
        self._follow_ups[lock] = (min(planned_at, at), max(planned_until, until))
        self._schedule(at)

    async def _keep(self) -> None:
        while not self.is_copy():
            now = _clock.now()
            jobs, self._wakes_at = self._due(now)
            if now >= self._introduced:
                jobs.append(self._introduce)
            if not jobs:
                await self._kick.wait(max(self._wakes_at - now, 0.0))
                continue
            for at in range(0, len(jobs), CALLS):
                ends = await asyncio.gather(*(job() for job in jobs[at : at + CALLS]), return_exceptions=True)
                failed = [error for error in ends if error is not None]
                for error in failed:
                    log.error("a call of the watchdog failed", exc_info=error)
                if failed:
                    await asyncio.sleep(RETRY_SECONDS)

    def _due(self, now: float) -> tuple[list[Callable[[], Coroutine[Any, Any, None]]], float]:
        """Returns what to do now, and when to look next."""
        next_at = min(now + LONGEST_SLEEP, max(self._introduced, now))
        due: list[Request] = []
        waiting: set[LockKeys] = set()
        for request in list(self._requests.values()):
            request.expire(now)
            self._settle(request)
            if request.phase is Phase.WAITING:
                waiting.add(request.lock)
            if request.phase in (Phase.WAITING, Phase.GRANTED, Phase.HELD):
                if request.due <= now:
                    due.append(request)
                else:
                    next_at = min(next_at, request.due)
                if request.phase is Phase.HELD:
                    next_at = min(next_at, request.proven)
        leaving = [request for request, _, at, _ in self._left.values() if at <= now]
        next_at = min([next_at, *(at for _, _, at, _ in self._left.values() if at > now)])
        chains = {lock: until for lock, (at, until) in self._follow_ups.items() if at <= now}
        for lock in chains:
            del self._follow_ups[lock]
        next_at = min([next_at, *(at for at, _ in self._follow_ups.values())])
        looks = set(chains)
        for lock, at in list(self._looks.items()):
            if lock in waiting and at > now:
                next_at = min(next_at, at)
                continue
            del self._looks[lock]
            if lock in waiting:
                looks.add(lock)
        jobs = [self._renewal(lock, chunk, chains.get(lock)) for lock, chunk in _chunks(due)]
        jobs += [self._renewal(lock, [], chains.get(lock)) for lock in looks - {request.lock for request in due}]
        jobs += [self._departure(lock, chunk) for lock, chunk in _chunks(leaving)]
        return jobs, next_at

    def _settle(self, request: Request) -> None:
        """A lost hold is released at once, so that others need not wait for the end of its lease."""
        if request.phase is Phase.OVER and isinstance(request.why, LostReason):
            self.leave(request)

    def _renewal(
        self, lock: LockKeys, requests: list[Request], until: float | None
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Renews the requests. `until`: the call also belongs to a chain of looks, which ends then."""

        async def renew() -> None:
            pairs: list[Word] = [word for request in requests for word in (request.name, request.lease_ms)]
            try:
                answer = await self._script("renew", lock, "", *pairs)
                next_ms, first, standings = _renewed(answer, len(requests))
            except FAILURES as error:
                self._log_failure("a renewal", lock, error)
                again = _clock.now() + RETRY_SECONDS
                for request in requests:
                    request.due = max(request.due, again)
                if not _passes(error):
                    # Without requests the call was a look, for all who wait for the lock.
                    for request in requests or [r for r in self._requests.values() if r.lock == lock]:
                        request.refuse(str(error))
                    if until is not None:
                        self._note_next(lock, GRACE_MS, until)
                    return
                if until is not None:
                    self._note_next(lock, int(RETRY_SECONDS * 1000), until)
                if not requests:
                    self._look(lock, int(RETRY_SECONDS * 1000))
                return
            now = _clock.now()
            for request, standing in zip(requests, standings):
                request.stands(now, answer.sent, standing, first)
                self._settle(request)
            if next_ms == 0 or not requests or until is not None:
                self._note_next(lock, next_ms, until)
            # Of holders too: the call may have taken the place of a look.
            if any(r.lock == lock and r.phase is Phase.WAITING for r in self._requests.values()):
                self._look(lock, next_ms)

        return renew

    def _departure(self, lock: LockKeys, requests: list[Request]) -> Callable[[], Coroutine[Any, Any, None]]:
        async def depart() -> None:
            try:
                answer = await self._script("release", lock, "", *(request.name for request in requests))
                _, next_ms = _released(answer, len(requests))
            except FAILURES as error:
                self._log_failure("a release", lock, error)
                now = _clock.now()
                for request in requests:
                    _, until, _, pauses = self._left.get(request.number, (request, 0.0, 0.0, _growing()))
                    if now < until:
                        self._left[request.number] = (request, until, now + next(pauses), pauses)
                    else:
                        # Its lease is over.
                        self._forget(request)
                return
            for request in requests:
                self._forget(request)
            self._note_next(lock, next_ms)

        return depart

    @staticmethod
    def _log_failure(what: str, lock: LockKeys, error: Exception) -> None:
        level = logging.DEBUG if _passes(error) else logging.WARNING
        log.log(level, "%s about %s failed: %s", what, lock.state, error)

    async def _introduce(self) -> None:
        """For status. It is optional, so a failure is not fatal."""
        self._introduced = _clock.now() + INTRODUCED_EVERY
        text = f"{os.getpid()}\n{socket.gethostname()}\n{self.settings.label}"
        try:
            await self._session.command("SET", f"{self.settings.prefix}:client:{self.id}", text, "EX", 90)
        except FAILURES as error:
            log.debug("the client could not introduce itself: %s", error)

    # ---- messages

    def _subscribed(self) -> None:
        """Messages may have been lost: renews every waiter, and believes nothing from before."""
        now = _clock.now()
        for request in self._requests.values():
            request.doubt(now)
        self._kick.notify()

    def _heard(self, payload: str) -> None:
        message = read_message(payload)
        if message is None:
            return
        grants, state = message
        if not is_state(self.settings.prefix, state):
            return  # whoever wrote that must not lead to other keys
        now = _clock.now()
        for name, token in grants:
            named = read_request(name)
            if named is None:
                continue
            client, number = named
            request = self._requests.get(number)
            if request is not None and request.name == name and request.lock.state == state:
                request.heard(token, now)
                self._settle(request)
            elif client == self.id and token > 1 and number <= self._number and number not in self._requests:
                # An orphan, which nobody will use: the server executed an acquire after its release.
                orphan = Request(number, name, LockKeys.of_state(state), self.settings.lease, now)
                orphan.sent = True
                self._requests[number] = orphan
                self.leave(orphan)


def reason(request: Request) -> LostReason:
    """Why a hold is lost."""
    return request.why if isinstance(request.why, LostReason) else LostReason.LEASE_EXPIRED


def _growing() -> Iterator[float]:
    """The pauses between sendings of a call that fails, in seconds."""
    pause = RETRY_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, MOST_PAUSE)


def _passes(error: Exception) -> bool:
    """Whether the same call may succeed a little later."""
    return isinstance(error, Disconnected) or (isinstance(error, ReplyError) and is_transient(error))


def _chunks(requests: Iterable[Request]) -> list[tuple[LockKeys, list[Request]]]:
    """The requests by lock, as many as go into one call."""
    by_lock: dict[LockKeys, list[Request]] = {}
    for request in requests:
        by_lock.setdefault(request.lock, []).append(request)
    return [(lock, all_[at : at + CHUNK]) for lock, all_ in by_lock.items() for at in range(0, len(all_), CHUNK)]


def _acquired(answer: Answer) -> tuple[int, int, int | None, int]:
    """Status, value, next ms and seq in the reply of acquire. None: the reply does not tell next ms."""
    if isinstance(answer.reply, int):  # a token; or 0: busy
        return (2 if answer.reply else 0), answer.reply, None, 0
    status, value, next_ms, seq, *_ = integers(_long(answer, 4))
    return status, value, next_ms, seq


def _released(answer: Answer, count: int) -> tuple[list[int], int | None]:
    """How each request stood, and next ms, in the reply of release. None: the reply does not tell next ms.

    Unknown is perhaps the reply to a copy, and the reply that was lost told when to look again.
    """
    if isinstance(answer.reply, int):  # of one request
        return [answer.reply], None if answer.reply else GRACE_MS
    next_ms, *stood = integers(_long(answer, 1 + count))
    if len(stood) != count:
        raise MalformedError(f"not a reply about {count} requests: {answer.reply!r:.80}")
    return stood, next_ms


def _renewed(answer: Answer, count: int) -> tuple[int, int, list[int]]:
    """Next ms, first, and how each request stands, in the reply of renew."""
    next_ms, first, *standings = integers(_long(answer, 2 + count))
    return next_ms, first, standings


def _long(answer: Answer, least: int) -> list[Any]:
    if isinstance(answer.reply, list) and len(answer.reply) >= least:
        return answer.reply
    raise MalformedError(f"not a reply of this script: {answer.reply!r:.80}")


def _report(task: asyncio.Task[None]) -> None:
    """A task of the engine ends only by being cancelled. Without it holds are not renewed, so they end in time."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task of the client failed: holds will be lost", exc_info=error)
