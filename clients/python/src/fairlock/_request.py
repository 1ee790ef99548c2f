"""One call of acquire: what the client knows of it, and what that proves. No I/O and no clock: every time is passed in.

A request's phase only moves forward (ASKED, WAITING, GRANTED, HELD, OVER), except that a grant that was not handed out
yet may turn out to be over. So the order in which the two connections deliver does not matter. PROTOCOL.md,
*Believing*, has the rules. Times are in seconds of `_clock`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto

from ._names import LockKeys
from .errors import LostReason


class Phase(Enum):
    """How far a request has come."""

    ASKED = auto()
    WAITING = auto()
    GRANTED = auto()
    HELD = auto()
    OVER = auto()


class Displaced:
    """Why a waiter is over that asks again: the server does not know it any more."""


class Released:
    """Why a request is over that its user left."""


@dataclass(frozen=True)
class Refused:
    """Why a waiter is over about which the server replies an error that does not end by itself."""

    reply: str


DISPLACED, RELEASED = Displaced(), Released()
End = LostReason | Displaced | Released | Refused


class Signal:
    """Wakes all who wait, whenever something has changed."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, seconds: float | None = None) -> None:
        """Returns after the next `notify`, or after so many seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait((future,), timeout=seconds)
        finally:
            self._waiting.discard(future)


class Request:
    """What the client knows of one request."""

    def __init__(self, number: int, name: str, lock: LockKeys, lease: float, now: float) -> None:
        self.number = number
        self.name = name
        self.lock = lock
        self.lease = lease
        self.changed = Signal()
        self.phase = Phase.ASKED
        self.why: End | None = None
        # A call about it may have reached the server.
        self.sent = False
        self.ticket = 0
        # The lock's counter when a reply last said that it waits.
        self.seq = 0
        self.token = 0
        # The server executes calls that are sent later after the grant.
        self.since = 0.0
        # The server keeps the request at least until then.
        self.proven = 0.0
        # "Waits" proves nothing if its call was sent earlier, because the lease may have been cut since.
        self.doubted = 0.0
        self.renewed = now
        self.due = now + lease / 3

    @property
    def reads(self) -> bool:
        return self.name.startswith("r")

    @property
    def lease_ms(self) -> int:
        return int(self.lease * 1000)

    def _prove(self, sent: float, *, waits: bool = False) -> None:
        """A call sent at that time was answered: the server gave a lease later than that."""
        if not waits or sent >= self.doubted:
            self.proven = max(self.proven, sent + self.lease - max(self.lease / 50, 0.002))
        self.renewed = max(self.renewed, sent)
        # A waiter about which no call was sent since the subscription is due already.
        doubtful = waits and self.renewed < self.doubted
        self.due = self.doubted if doubtful else self.renewed + self.lease / 3

    def doubt(self, now: float) -> None:
        """A subscription was confirmed. Before it nobody heard the client's messages, and scripts may have cut leases.
        """
        if self.phase in (Phase.ASKED, Phase.WAITING):
            self.doubted, self.proven = now, 0.0
        if self.phase is Phase.WAITING:
            self.due = now

    def _grant(self, token: int, since: float) -> None:
        self.phase, self.token, self.since = Phase.GRANTED, token, since

    def hold(self) -> None:
        """The grant is handed out."""
        self.phase = Phase.HELD
        self.changed.notify()

    def end(self, why: End) -> None:
        if self.phase is not Phase.OVER:
            self.phase, self.why = Phase.OVER, why
            self.changed.notify()

    def entered(self, sent: float, token: int) -> None:
        """The acquire that was sent at that time was answered: it holds."""
        self._prove(sent)
        if self.phase is Phase.ASKED:
            self._grant(token, sent)

    def queued(self, sent: float, ticket: int, seq: int) -> None:
        """The acquire that was sent at that time was answered: it waits."""
        if self.phase is Phase.ASKED and self.token == 1:  # an upgrade, and its end came first
            self.ticket = ticket
            self.end(DISPLACED)
        elif self.phase is Phase.ASKED and self.token > seq:  # its message came first
            self.ticket = ticket
            self._grant(self.token, sent)
        elif self.phase is Phase.ASKED:
            self.phase, self.ticket, self.seq = Phase.WAITING, ticket, seq
        else:
            self._told_to_wait(sent, seq)
        self._prove(sent, waits=True)
        self.changed.notify()

    def _told_to_wait(self, sent: float, seq: int) -> None:
        """A call sent at that time found the request waiting, and the counter at `seq`.

        A grant up to that number is over. So is a grant that was known before: the server went back to an earlier
        state.
        """
        if self.phase is Phase.WAITING:
            self.seq = max(self.seq, seq)
        elif self.token <= seq or sent > self.since:
            if self.phase is Phase.HELD:
                self.end(LostReason.UNKNOWN_TO_SERVER)
            elif self.phase is Phase.GRANTED:
                self.phase, self.seq = Phase.WAITING, max(self.token, seq)
                self.ticket = self.ticket or self.token

    def heard(self, number: int, now: float) -> None:
        """A message has this number for the request."""
        if number == 0:
            self.end(LostReason.EVICTED)
        elif self.phase is Phase.ASKED:
            # The reply decides what the greatest number means.
            self.token = max(self.token, number)
        elif number == 1:  # an upgrade, and its owner's read hold has ended
            if self.phase is Phase.WAITING:
                self.end(DISPLACED)
        elif self.phase is Phase.WAITING and number > self.seq:  # otherwise it is of a former life
            self._grant(number, now)
            self.changed.notify()

    def stands(self, now: float, sent: float, standing: int, first: int) -> None:
        """Takes in the reply to a renewal that was sent at that time. `first` is the token with which the phase began.
        """
        self.expire(now)
        if self.phase in (Phase.ASKED, Phase.OVER):
            return
        if standing == -1:
            self.end(LostReason.UNKNOWN_TO_SERVER if self.phase is Phase.HELD else DISPLACED)
            return
        if standing <= 0:
            self._told_to_wait(sent, -standing)
        elif self.phase is Phase.WAITING:
            if standing > self.seq or sent >= self.renewed:  # otherwise a later call overtook this reply
                self._grant(standing, now)
        elif (first if self.reads else standing) > self.token:
            if self.phase is Phase.HELD:  # the hold was interrupted, and its owner entered once more
                self.end(LostReason.UNKNOWN_TO_SERVER)
                return
            self.token = standing
        self._prove(sent, waits=standing <= 0)
        self.changed.notify()

    def refuse(self, reply: str) -> None:
        """A call about it got an error that does not end by itself. A hold lasts for as long as it is proven."""
        if self.phase in (Phase.WAITING, Phase.GRANTED):
            self.end(Refused(reply))

    def expire(self, now: float) -> None:
        """Ends a hold whose proof has ended. It is lost for ever, whatever a late reply says."""
        if self.phase is Phase.HELD and now >= self.proven:
            self.end(LostReason.LEASE_EXPIRED)
