"""One connection to the server. Many tasks share it: replies come in the order of the calls.

A task that is cancelled while it waits for a reply leaves its place in the line of calls, and the connection lives on.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import parse_qsl, unquote, urlsplit

from ._resp import MalformedError, Parser, Reply, ReplyError, Word, encoded
from .errors import InvalidInputError

CONNECT_SECONDS = 2.0

_FORM = (
    "it must be like redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], rediss://... or unix:///PATH; in a password / is "
    "written as %2F, ? as %3F, # as %23 and @ as %40"
)
_OPTIONS = (
    "it has an option or a fragment that this client does not know; a database must be written as /DATABASE, with "
    "unix:///PATH as ?db=DATABASE, and in a password ? as %3F and # as %23; rediss:// takes a context in `tls` instead"
)
_LOGIN = "its login has no colon; it must be USER:PASSWORD@ or :PASSWORD@, and USER:@ is a user without a password"


def _refused(why: str) -> InvalidInputError:
    return InvalidInputError(f"the server's URL is refused: {why}")


class Disconnected(Exception):
    """The connection has ended. The server may have executed what was sent."""


class NotSentError(Disconnected):
    """There is no connection, so nothing was sent."""


@dataclass(frozen=True)
class Address:
    """Where the server is, and who connects."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: ssl.SSLContext | None = None
    # What the server's list of its clients shows.
    name: str = ""

    @staticmethod
    def of_url(url: str, tls: ssl.SSLContext | None = None, name: str = "") -> Address:
        """Reads `redis://`, `rediss://` and `unix://` URLs."""
        try:
            url.encode()
            parts = urlsplit(url)
            port = 6379 if parts.port is None else parts.port
            host = parts.hostname or "127.0.0.1"
            # As the look-up of its address does.
            host.encode("idna")
            user, password = (unquote(part or "", errors="strict") for part in (parts.username, parts.password))
            path = parts.path if parts.scheme == "unix" else None
            options = dict(parse_qsl(parts.query, keep_blank_values=True, errors="strict"))
            if path is not None:
                user, password = options.pop("user", user), options.pop("pass", password)
            database = int((parts.path.strip("/") if path is None else options.pop("db", "")) or "0")
        except ValueError:
            # Its text repeats a part of the URL, which belongs to the password if that has a `/`, `?` or `#`.
            raise _refused(_FORM) from None
        after_host = parts.fragment if path else parts.path + parts.query + parts.fragment
        is_known = parts.scheme in ("redis", "rediss", "unix") and path != "" and not (path and parts.hostname)
        if not is_known or "@" in after_host or "\0" in url:
            raise _refused(_FORM)
        if parts.username and parts.password is None:
            raise _refused(_LOGIN)
        if options or parts.fragment:
            raise _refused(_OPTIONS)
        if tls is not None and parts.scheme != "rediss":
            raise _refused("with a context for TLS it must begin with rediss://")
        if parts.scheme == "rediss" and tls is None:
            tls = ssl.create_default_context()
        return Address(
            host=host,
            port=port,
            path=path,
            user=user or None,
            password=password if user or password else None,
            database=database,
            tls=tls,
            name=name,
        )

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class Connection(asyncio.Protocol):
    """A connection, from `open` until `close` or until it ends by itself.

    `patience`: after so many seconds without a sign of life the connection counts as dead. It pings to get one.
    """

    def __init__(self, patience: float, on_push: Callable[[Reply], None] | None = None) -> None:
        self._patience = patience
        self._on_push = on_push
        self._process = os.getpid()
        self._parser = Parser()
        self._calls: deque[asyncio.Future[Reply]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._heard = self._asked = self._loop.time()
        self._awaits = False
        self._subscribed = False
        self.ended: asyncio.Future[str] = self._loop.create_future()

    @staticmethod
    async def open(address: Address, patience: float, on_push: Callable[[Reply], None] | None = None) -> Connection:
        """Connects and logs in. Raises Disconnected or ReplyError."""
        connection = Connection(patience, on_push)
        try:
            async with asyncio.timeout(max(CONNECT_SECONDS, patience)):
                await connection._connect(address)
        # The look-up of a name needs a thread, and there may be none.
        except (OSError, RuntimeError, TimeoutError) as error:
            connection.close()
            raise Disconnected(f"cannot connect to {address}: {str(error) or 'no reply'}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    async def _connect(self, address: Address) -> None:
        loop = self._loop
        if address.path is not None:
            await loop.create_unix_connection(lambda: self, address.path)
        else:
            await self._connect_to_first(address)
        if address.password is not None:
            try:
                await self.call("AUTH", *([address.user] if address.user else []), address.password)
            except ReplyError as error:
                # A server repeats the arguments of a command that it does not know.
                raise ReplyError(error.text.partition(", with args beginning with")[0]) from None
        if address.database:
            await self.call("SELECT", address.database)
        if address.name:
            # A user without the right to it goes without.
            self.send("CLIENT", "SETNAME", address.name).add_done_callback(_ignore)

    async def _connect_to_first(self, address: Address) -> None:
        """A name may have several addresses, and a dead one among them must not take the time of all."""
        kind = socket.SOCK_STREAM
        try:
            # An address that is no name needs no thread.
            found = socket.getaddrinfo(address.host, address.port, type=kind, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await self._loop.getaddrinfo(address.host, address.port, type=kind)
        name = address.host if address.tls else None
        failed: Exception = OSError("the name has no address")
        for family, _, protocol, _, (host, port, *_) in found:
            try:
                async with asyncio.timeout(CONNECT_SECONDS / min(len(found), 4)):
                    await self._loop.create_connection(
                        lambda: self, str(host), int(port), family=family, proto=protocol, ssl=address.tls, server_hostname=name
                    )
                return
            except (OSError, TimeoutError) as error:
                failed = error
        raise failed

    async def call(self, *words: Word) -> Reply:
        """Returns the reply.

        Raises ReplyError, or Disconnected: the server may have executed the call. If the task is cancelled, the server
        may execute the call too.
        """
        return await self.send(*words)

    def send(self, *words: Word) -> asyncio.Future[Reply]:
        """Sends now. The future is the reply."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self._transport is None or self.ended.done() or self._is_copy():
            future.set_exception(NotSentError(self.ended.result() if self.ended.done() else "not connected"))
            return future
        if not self._calls:
            self._asked = self._loop.time()
        self._calls.append(future)
        self._transport.write(encoded(words))
        return future

    def subscribe(self, *channels: str) -> None:
        """Subscribes. No call may follow.

        The replies to earlier calls come first. Whatever follows goes to `on_push`, with the confirmations.
        """
        self._subscribed = True
        self._write("SUBSCRIBE", *channels)

    def _write(self, *words: Word) -> None:
        if self._transport is not None and not self._is_copy():
            self._transport.write(encoded(words))

    def _is_copy(self) -> bool:
        """Whether this is the copy in a child of fork(). The socket is the parent's, and so is the loop's selector."""
        return os.getpid() != self._process

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of other event loops, such as uvloop's, do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        self._heard = self._asked = self._loop.time()
        self._awaits = False
        try:
            for reply in self._parser.feed(data):
                self._take(reply)
        except MalformedError as error:
            self._end(str(error))

    def _take(self, reply: Reply) -> None:
        if self._subscribed and not self._calls:
            if self._on_push is not None:
                self._on_push(reply)
            return
        if not self._calls:
            raise MalformedError("a reply to no call")
        future = self._calls.popleft()
        if future.done():
            return  # its task was cancelled
        if isinstance(reply, ReplyError):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "the server closed the connection")

    # ---- signs of life

    def _look(self) -> None:
        """Looks for signs of life twice in the time of patience."""
        if self.ended.done():
            return
        now = self._loop.time()
        if (self._awaits or self._calls) and now - max(self._heard, self._asked) >= self._patience:
            self._end(f"no sign of life for {self._patience:.3g} s")
            return
        if not self._awaits and not self._calls:
            self._awaits, self._asked = True, now
            if self._subscribed:
                self._write("PING")
            else:
                # Nobody waits for this reply, and an error would be a sign of life too.
                self.send("PING").add_done_callback(_ignore)
        self._timer = self._loop.call_later(self._patience / 2, self._look)

    def close(self) -> None:
        self._end("closed by this client")

    def _end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None and not self._is_copy():
            self._transport.abort()
        calls, self._calls = self._calls, deque()
        for future in calls:
            if not future.done():
                future.set_exception(Disconnected(self.ended.result()))


def _ignore(future: asyncio.Future[Reply]) -> None:
    if not future.cancelled():
        future.exception()
