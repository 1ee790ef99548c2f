"""The connection for pub/sub: grants for this client's requests, and announcements of those who listen to events."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from . import _clock
from ._connection import Address, Connection, Disconnected, _ignore
from ._resp import MalformedError, Reply, ReplyError, texts
from ._session import LEAST_PAUSE, MOST_PAUSE, Session, is_transient, refuse_others

log = logging.getLogger("fairlock")

# How long a client believes an announcement.
BELIEVED_SECONDS = 10.0


class Subscription:
    """Subscribes, and subscribes again after each loss.

    `on_message` gets the payload of each message for this client. `on_subscribed` is called after each confirmation.
    What a call proved before it is void: PROTOCOL.md, *Believing*.
    """

    def __init__(
        self,
        address: Address,
        patience: float,
        channel: str,
        announcements: str,
        on_message: Callable[[str], None],
        on_subscribed: Callable[[], None],
    ) -> None:
        self._address = address
        self._patience = patience
        self._channel = channel
        self._announcements = announcements
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._process = os.getpid()
        self._connection: Connection | None = None
        # Done when the server was left to which `subscribe` is connecting.
        self._left: asyncio.Future[None] | None = None
        # A lock's state key, or "*": until when the client believes that somebody listens to its events.
        self._audience: dict[str, float] = {}

    def listens(self, state: str) -> bool:
        """Whether somebody listens to the events of the lock with this state key."""
        if not self._audience:
            return False
        now = _clock.now()
        return any(self._audience.get(subject, 0.0) > now for subject in (state, "*"))

    async def subscribe(self, session: Session) -> None:
        """Returns after the confirmation. Raises Disconnected, or ReplyError."""
        loop = asyncio.get_running_loop()
        confirmed: asyncio.Future[None] = loop.create_future()
        left: asyncio.Future[None] = loop.create_future()
        self._left, waiting = left, {self._channel, self._announcements}

        def on_push(reply: Reply) -> None:
            if isinstance(reply, ReplyError):
                if not confirmed.done():
                    confirmed.set_exception(reply)
            elif isinstance(reply, list) and len(reply) == 3 and reply[0] == "subscribe":
                waiting.discard(str(reply[1]))
                if not waiting and not confirmed.done():
                    confirmed.set_result(None)
                    self._on_subscribed()
            elif isinstance(reply, list) and len(reply) == 3 and reply[0] == "message":
                self._take(str(reply[1]), str(reply[2]))

        connection = await Connection.open(self._address, self._patience, on_push)
        try:
            hello = connection.send("HELLO")
            hello.add_done_callback(_ignore)
            connection.subscribe(self._channel, self._announcements)
            await asyncio.wait((confirmed, connection.ended, left), return_when=asyncio.FIRST_COMPLETED)
            if confirmed.done():
                confirmed.result()
            # A former server may be alive and confirm, but the grants are told at the server of the calls.
            if left.done():
                raise Disconnected("the server was left meanwhile")
            if not confirmed.done():
                raise Disconnected(connection.ended.result())
            # Its reply came before the confirmation. A replica passes messages on that its master takes for unheard.
            if hello.exception() is None:
                refuse_others(hello.result())
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        await self._read_audience(session)

    async def _read_audience(self, session: Session) -> None:
        try:
            for subject in texts(await session.command("ZRANGE", self._announcements, "0", "-1")):
                self._believe(subject)
        except (Disconnected, ReplyError, MalformedError) as error:
            # Only events are missing, until the next announcement.
            log.debug("cannot read who listens: %s", error)

    async def run(self, session: Session) -> None:
        """Keeps the subscription that `subscribe` made, for ever."""
        pause, refusal = 0.0, ""
        while True:
            begun = _clock.now()
            if self._connection is not None:
                why = await asyncio.shield(self._connection.ended)
                if os.getpid() != self._process:
                    return  # the copy in a child of fork()
                log.debug("the subscription ended: %s", why)
                self._connection = None
                # A server that confirms and hangs up at once is not asked without a pause.
                if _clock.now() - begun > MOST_PAUSE:
                    pause = 0.0
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, LEAST_PAUSE), MOST_PAUSE)
            try:
                await self.subscribe(session)
                refusal = ""
            except Disconnected as error:
                log.debug("cannot subscribe: %s", error)
            except Exception as error:
                # A refusal mostly lasts, and without a subscription waiters learn of their grants by renewals only.
                passes = isinstance(error, ReplyError) and is_transient(error)
                level = logging.DEBUG if passes or str(error) == refusal else logging.WARNING
                trace = None if isinstance(error, (ReplyError, MalformedError)) else error
                log.log(level, "no subscription, so grants are heard late: %s", error, exc_info=trace)
                refusal = str(error)

    def _take(self, channel: str, payload: str) -> None:
        if channel == self._channel:
            self._on_message(payload)
        elif channel == self._announcements:
            self._believe(payload)

    def _believe(self, subject: str) -> None:
        now = _clock.now()
        # Announcements come every few seconds, so what is over is dropped here.
        self._audience = {subject: until for subject, until in self._audience.items() if until > now}
        self._audience[subject] = now + BELIEVED_SECONDS

    def close(self) -> None:
        """Leaves the server, also one to which `subscribe` is still connecting."""
        if self._left is not None and not self._left.done():
            self._left.set_result(None)
        if self._connection is not None:
            self._connection.close()
