"""The connection for commands: greets each server, calls scripts, reconnects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from . import _clock
from ._connection import Address, Connection, Disconnected, NotSentError, _ignore
from ._names import LockKeys
from ._request import Phase, Request
from ._resp import MalformedError, Reply, ReplyError, Word
from ._scripts import Script, library, life, scripts

# Pauses between attempts to connect, in seconds.
LEAST_PAUSE = 0.01
MOST_PAUSE = 0.5

# The server executed nothing, and the same call may succeed later.
TRANSIENT = ("LOADING", "BUSY", "MASTERDOWN", "READONLY", "MISCONF", "NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN")

# Only a replica replies so.
OF_A_REPLICA = ("READONLY", "MASTERDOWN")


def is_transient(error: ReplyError) -> bool:
    """Whether the same call may succeed a little later."""
    return error.code in TRANSIENT


def refuses_functions(error: ReplyError) -> bool:
    """Whether the server refuses FCALL itself: the user may not call it, or the server has renamed it."""
    return error.code in ("NOPERM", "ERR") and "'fcall'" in error.text.lower()


def greeted(hello: Reply, field: str) -> str:
    """A field in the reply to HELLO. Empty: the server does not tell it."""
    if isinstance(hello, list) and field in hello[:-1]:
        return str(hello[hello.index(field) + 1])
    return ""


def refuse_others(hello: Reply) -> None:
    """Raises for a server that is no master, or that keeps the locks of some slots only."""
    mode = greeted(hello, "mode")
    if mode in ("cluster", "sentinel"):
        raise MalformedError(f"its mode is {mode}, and this client knows single servers only")
    if greeted(hello, "role") in ("replica", "slave"):
        raise Disconnected("the server is a replica")


class Answer(NamedTuple):
    """A reply, and when its call was sent (seconds of `_clock`)."""

    reply: Reply
    sent: float


@dataclass
class Link:
    """A connection that was greeted, and how scripts are called over it."""

    connection: Connection
    texts: dict[str, Script]
    # The name of the library of functions. None: scripts are called by their texts.
    functions: str | None
    # Until when the server may have forgotten holds.
    quarantined_until: float
    # Scripts whose texts were sent over this connection.
    seen: set[str] = field(default_factory=set)

    async def call(self, name: str, rest: tuple[Word, ...]) -> Answer:
        script = self.texts[name]
        sent = _clock.now()
        try:
            if self.functions is not None:
                return Answer(await self.connection.call("FCALL", f"{self.functions}_{name}", *rest), sent)
            # The first call carries the text, because calls that get NOSCRIPT lose their order.
            if name in self.seen:
                return Answer(await self.connection.call("EVALSHA", script.sha1, *rest), sent)
            self.seen.add(name)
        except ReplyError as error:
            # In these cases nothing was executed.
            if refuses_functions(error):
                self.functions = None
                self.seen.add(name)
            elif "Function not found" in error.text:
                self.connection.send("FUNCTION", "LOAD", library()[1]).add_done_callback(_ignore)
            elif error.code != "NOSCRIPT":
                raise
        sent = _clock.now()
        return Answer(await self.connection.call("EVAL", script.text, *rest), sent)

    def post(self, name: str, rest: tuple[Word, ...]) -> None:
        """Sends a script now, and does not read its reply."""
        whole = self.functions is None
        words = ("EVAL", self.texts[name].text) if whole else ("FCALL", f"{self.functions}_{name}")
        self.connection.send(*words, *rest).add_done_callback(_ignore)


class Session:
    """The calls of a client, over one connection at a time."""

    def __init__(self, address: Address, prefix: str, patience: float, quarantine: float) -> None:
        self._address = address
        self._prefix = prefix
        self._patience = patience
        self._quarantine = quarantine
        self._link: Link | None = None
        self._connecting: asyncio.Task[Link] | None = None
        self._pause = 0.0
        self._closed = False
        self._process = os.getpid()
        # Called when the server may be no master any more, or another one.
        self.on_left: Callable[[], None] = lambda: None

    async def command(self, *words: Word) -> Reply:
        """Raises ReplyError, or Disconnected: the server may have executed the call."""
        link = await self.link()
        try:
            return await link.connection.call(*words)
        except ReplyError as error:
            self._leave_replica(link, error)
            raise

    async def script(
        self, name: str, lock: LockKeys, options: str, *args: Word, about: Request | None = None
    ) -> Answer:
        """Calls a script. `about`: a request that the server may know from now on. Raises as `command` does."""
        try:
            link = await self.link()
        except Disconnected as error:
            raise NotSentError(*error.args) from error
        rest_ms = int((link.quarantined_until - _clock.now()) * 1000)
        if name == "acquire" and rest_ms > 0:
            args = (*args, rest_ms)
        if about is not None:
            if about.phase is Phase.OVER:
                raise NotSentError("the client is closed")
            about.sent = True
        try:
            answer = await link.call(name, (3, *lock, options, *args))
        except ReplyError as error:
            self._leave_replica(link, error)
            raise
        # A greeting is not enough: a server that is no master any more greets, and each script fails.
        self._pause = 0.0
        return answer

    def _leave_replica(self, link: Link, error: ReplyError) -> None:
        """The server is no master any more. The address may lead to another one, and grants are told there."""
        if error.code in OF_A_REPLICA:
            link.connection.close()
            self.on_left()

    def post(self, name: str, lock: LockKeys, options: str, *args: Word) -> bool:
        """Sends a script if there is a connection. Whether it did: the reply is not read."""
        link = self._link
        if link is None or not self.is_linked():
            return False
        link.post(name, (3, *lock, options, *args))
        return True

    def is_linked(self) -> bool:
        return not (self._closed or self.is_copy() or self._link is None or self._link.connection.ended.done())

    def is_copy(self) -> bool:
        """Whether this is the copy in a child of fork()."""
        return os.getpid() != self._process

    async def link(self) -> Link:
        """The connection that is there, or a new one. All who wait share one attempt."""
        if self._closed or self.is_copy():
            raise Disconnected("the client is closed")
        if self._link is not None and not self._link.connection.ended.done():
            return self._link
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(_retrieve)
        try:
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                # The attempt was cancelled, and not who waits for it.
                raise Disconnected("the client is closed") from None
            raise

    async def _connect(self) -> Link:
        await asyncio.sleep(self._pause)
        self._pause = min(max(2 * self._pause, LEAST_PAUSE), MOST_PAUSE)
        connection = await Connection.open(self._address, self._patience)
        if self._link is not None:
            # The address may lead to another server by now, and grants are told there.
            self.on_left()
        try:
            async with asyncio.timeout(max(2.0, self._patience)):
                self._link = await self._greet(connection)
        except TimeoutError as error:
            connection.close()
            raise Disconnected("the server does not greet") from error
        except BaseException:
            connection.close()
            raise
        return self._link

    async def _greet(self, connection: Connection) -> Link:
        flagged = await self._is_modern(connection)
        functions = await self._load(connection) if flagged else None
        until = 0.0
        if self._quarantine > 0:
            until = await self._quarantined(connection, flagged)
        return Link(connection, scripts(flagged), functions, until)

    async def _is_modern(self, connection: Connection) -> bool:
        """Whether the server has functions, and flags of scripts: from version 7 on, or if the version cannot be read.
        """
        try:
            hello = await connection.call("HELLO")
        except ReplyError:
            return True
        refuse_others(hello)
        version = greeted(hello, "version").split(".")[0]
        return not version.isdecimal() or int(version) >= 7

    async def _load(self, connection: Connection) -> str | None:
        name, text = library()
        try:
            await connection.call("FUNCTION", "LOAD", text)
        except ReplyError as error:
            # Without the right to load, scripts are called by their texts.
            return name if f"'{name}' already exists" in error.text else None
        return name

    async def _quarantined(self, connection: Connection, flagged: bool) -> float:
        info = await connection.call("INFO", "server")
        lines = info.splitlines() if isinstance(info, str) else []
        runs = [line.removeprefix("run_id:").strip() for line in lines if line.startswith("run_id:")]
        if not runs:
            raise MalformedError("INFO server tells no run_id, which a quarantine needs")
        age_ms = await connection.call("EVAL", life(flagged), 1, f"{self._prefix}:life", runs[0])
        if not isinstance(age_ms, int):
            raise MalformedError(f"not an age of a server: {age_ms!r:.80}")
        return _clock.now() + self._quarantine - age_ms / 1000

    def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.connection.close()


def _retrieve(task: asyncio.Task[Link]) -> None:
    """Those who wait get the error. If all of them were cancelled, nobody does."""
    if not task.cancelled():
        task.exception()
